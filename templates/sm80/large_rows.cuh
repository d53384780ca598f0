// Computes the maximum score and the sum of P again for rows whose lse is too large to be exact.
#pragma once

#include "common/math.cuh"
#include "common/place.cuh"
#include "common/row_lse.cuh"
#include "common/transpose_quad.cuh"
#include "sm80/mma.cuh"

namespace sm80 {

// 16 queries of one head, some groups of 8 keys at a time, loaded directly from global memory, as
// few rows need it. Where a few rows of a call do, few warps run: what they load must be under way
// together.
class LargeRows {
  public:
    static constexpr int kRows = 16, kWarps = kReferenceRows / 32;
    // Each warp's maximum and sum for each row, over its share of the keys.
    struct Parts {
        float maximum[kWarps][kRows], sum[kWarps][kRows];
    };

    __device__ LargeRows(const AttentionArguments& attention, const mod::Arguments& arguments,
                         int head, int first_row)
        : attention_(attention), arguments_(arguments), place_(attention, arguments, head),
          length_(attention, place_.b),
          queries_(query_plane<mod::Element>(attention.q, length_, place_.h)),
          keys_(key_plane<mod::Element>(attention.k, length_, place_.h_kv)), first_row_(first_row) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            q_[r] = length_.q_idx(row(r));
            values_[r] = mod::at_row(arguments, place_.launch, place_.head, place_.b, place_.h,
                                     place_.h_kv, q_[r]);
        }
    }

    // Finds the references of the rows. Called by all warps of a block. visit(row, reference,
    // lse_log2) is called by one thread for each row.
    template <typename Visit> __device__ void find(Parts& parts, Visit visit) {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        measure<kWarps>(warp, [&](int r, float maximum, float sum) {
            parts.maximum[warp][lane_index() / 4 + 8 * r] = maximum;
            parts.sum[warp][lane_index() / 4 + 8 * r] = sum;
        });
        __syncthreads();
        const int row = static_cast<int>(threadIdx.x);
        if (row < kRows) {
            float maximum = negative_infinity(), sum = 0;
            for (int w = 0; w < kWarps; ++w)
                maximum = fmaxf(maximum, parts.maximum[w][row]);
            for (int w = 0; w < kWarps; ++w)
                sum += relative(parts.maximum[w][row], maximum) * parts.sum[w][row];
            report(first_row_ + row, maximum, log2_fast(sum), visit);
        }
        __syncthreads(); // before other rows have their parts there
    }
    // The same with a single warp, which goes over all keys.
    template <typename Visit> __device__ void find(Visit visit) {
        measure<1>(0, [&](int r, float maximum, float sum) {
            if (lane_index() % 4 == 0) report(row(r), maximum, log2_fast(sum), visit);
        });
    }

  private:
    static constexpr int kGroups = 4, kKeys = 8 * kGroups;
    // Products of two rows and two keys of each group, as MMAs leave them.
    using Products = float[kGroups][4];

    // Goes over the warp's share of the keys: kKeys of every kParts * kKeys. visit_row(r, maximum,
    // sum) is called in all lanes.
    template <int kParts, typename VisitRow> __device__ void measure(int part, VisitRow visit_row) {
        const Positions seen =
            place_.keys_of(first_row_, min(first_row_ + kRows - 1, length_.queries() - 1));
        const int last = min(seen.last, length_.keys() - 1);
        const bool in_pieces = has_pieces();
#pragma unroll 1
        for (int first = max(seen.first, 0) / 8 * 8 + kKeys * part; first <= last;
             first += kKeys * kParts) {
            prefetch_keys(first + kKeys * kParts);
            Products products = {};
            if (in_pieces)
                multiply_keys<true>(products, first);
            else
                multiply_keys<false>(products, first);
            add_keys(products, first);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float maximum = quad_max(maximum_[r]);
            visit_row(r, maximum, quad_sum(relative(maximum_[r], maximum) * sum_[r]));
        }
    }

    template <typename Visit>
    __device__ void report(int row, float maximum, float lse_log2, Visit visit) const {
        if (row >= length_.queries()) return;
        constexpr float kRounding = 0x1p-20f; // of the forward's lse
        constexpr float kVagueLse = 0x1p120f; // from where on it may be the largest float
        const float lse = *query_plane<float>(attention_.lse, length_, place_.h).at(row, 0);
        const float own = maximum * factor() + lse_log2 * kLn2;
        if (fabsf(own - lse) <= kRounding * fabsf(lse) || fabsf(lse) >= kVagueLse)
            visit(row, maximum * sign(), lse_log2);
        else
            visit(row, fmaxf(maximum, lse / factor()) * sign(), 0.0f);
    }

    __device__ int row(int r) const { return first_row_ + lane_index() / 4 + 8 * r; }

    static __device__ unsigned bits(const flexc_f16* x) {
        return *reinterpret_cast<const unsigned short*>(x);
    }
    static __device__ unsigned bits(const flexc_bf16* x) {
        return *reinterpret_cast<const unsigned short*>(x);
    }
    static constexpr int kWord = 4 / static_cast<int>(sizeof(mod::Element)); // columns
    static constexpr int kSteps = 2; // of the products, whose operands are loaded at once
    static constexpr int kColumns = kSteps * kStepK<mod::Element>;

    // Whether rows are loaded in pieces of 16 bytes.
    __device__ bool has_pieces() const {
        return mod::kHeadDim % (4 * kWord) == 0 && queries_.aligned_to(16) && keys_.aligned_to(16);
    }
    // Loads what a lane multiplies of a row in two steps, two words for each; zeros past the end.
    // A step has eight words of a row, of which a lane of four has every fourth. In pieces, each
    // of the four lanes loads neighbouring words, and they exchange them.
    template <bool kInPieces, typename E>
    static __device__ void load(unsigned (&words)[2 * kSteps], const Plane<E>& plane, int row,
                                int column) {
        if constexpr (kInPieces) {
            const int own = column + lane_index() % 4 * (4 * kWord);
            uint4 piece{};
            if (own < mod::kHeadDim) piece = *reinterpret_cast<const uint4*>(plane.at(row, own));
            const unsigned loaded[4] = {piece.x, piece.y, piece.z, piece.w};
            piece = transpose_quad(loaded);
            words[0] = piece.x;
            words[1] = piece.y;
            words[2] = piece.z;
            words[3] = piece.w;
        } else {
#pragma unroll
            for (int i = 0; i < 2 * kSteps; ++i)
                words[i] = word(plane, row, column + (4 * i + lane_index() % 4) * kWord);
        }
    }
    // 32 bits of a row from a column on; zeros past the end.
    template <typename E>
    static __device__ unsigned word(const Plane<E>& plane, int row, int column) {
        if constexpr (sizeof(E) == 4) {
            return column < mod::kHeadDim
                       ? *reinterpret_cast<const unsigned*>(plane.at(row, column))
                       : 0;
        } else {
            const unsigned low = column < mod::kHeadDim ? bits(plane.at(row, column)) : 0;
            const unsigned high = column + 1 < mod::kHeadDim ? bits(plane.at(row, column + 1)) : 0;
            return low | high << 16;
        }
    }

    // Asks for the keys of a step to come, one for each lane.
    __device__ void prefetch_keys(int first_key) const {
        static_assert(kKeys == 32);
        constexpr int kLine = 128 / static_cast<int>(sizeof(mod::Element)); // columns
        const int key = min(first_key + lane_index(), length_.keys() - 1);
#pragma unroll
        for (int column = 0; column < mod::kHeadDim; column += kLine)
            prefetch_line(keys_.at(key, column));
    }

    template <bool kInPieces>
    __device__ void multiply_keys(Products& products, int first_key) const {
        constexpr int kAtOnce = kInPieces ? 2 : 1; // times kColumns, whose loads wait together
#pragma unroll kAtOnce
        for (int column = 0; column < mod::kHeadDim; column += kColumns) {
            unsigned of_rows[2][2 * kSteps], of_keys[kGroups][2 * kSteps];
#pragma unroll
            for (int r = 0; r < 2; ++r)
                load<kInPieces>(of_rows[r], queries_, min(row(r), length_.queries() - 1), column);
#pragma unroll
            for (int group = 0; group < kGroups; ++group)
                load<kInPieces>(of_keys[group], keys_,
                                min(first_key + 8 * group + lane_index() / 4, length_.keys() - 1),
                                column);
#pragma unroll
            for (int step = 0; step < kSteps; ++step) {
                const unsigned words[4] = {of_rows[0][2 * step], of_rows[1][2 * step],
                                           of_rows[0][2 * step + 1], of_rows[1][2 * step + 1]};
                OperandA<mod::Element> a;
                operand_from(a, words);
#pragma unroll
                for (int group = 0; group < kGroups; ++group) {
                    OperandB<mod::Element> b;
                    operand_from(b, of_keys[group][2 * step], of_keys[group][2 * step + 1]);
                    multiply(products[group], a, b);
                }
            }
        }
    }

    // Adds the keys of one step, whose products become scores.
    __device__ void add_keys(Products& products, int first_key) {
        float maximum[2] = {maximum_[0], maximum_[1]};
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = first_key + 8 * group + lane_index() % 4 * 2 + i % 2;
                float& score = products[group][i];
                score = score_of(score, i / 2, key);
                maximum[i / 2] = fmaxf(maximum[i / 2], score);
            }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum_[r] *= relative(maximum_[r], maximum[r]);
            maximum_[r] = maximum[r];
        }
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
#pragma unroll
            for (int i = 0; i < 4; ++i)
                sum_[i / 2] += relative(products[group][i], maximum[i / 2]);
    }
    // The score of the thread's row r and a key; -inf if it is hidden.
    __device__ float score_of(float product, int r, int key) const {
        const int kv = length_.kv_idx(key);
        const mod::Column column = mod::at_column(arguments_, place_.launch, place_.head, place_.b,
                                                  place_.h, place_.h_kv, kv);
        const mod::At at{arguments_, place_.launch, place_.head, values_[r], column,
                         place_.b,   place_.h,      place_.h_kv, q_[r],      kv};
        if (key >= length_.keys() || !mod::visible(at)) return negative_infinity();
        return mod::kHasScoreMod ? mod::score(at, product * attention_.scale) : product * sign();
    }

    // The sign that makes products compare as their scores do.
    __device__ float sign() const {
        return mod::kHasScoreMod || attention_.scale > 0 ? 1.0f : -1.0f;
    }
    __device__ float factor() const { return mod::kHasScoreMod ? 1 : fabsf(attention_.scale); }
    __device__ float relative(float score, float maximum) const {
        return score == negative_infinity() ? 0 : exp2_fast((score - maximum) * factor() * kLog2E);
    }

    const AttentionArguments& attention_;
    const mod::Arguments& arguments_;
    const HeadPlace place_;
    const SequenceLength length_;
    const Plane<mod::Element> queries_, keys_;
    const int first_row_;
    int q_[2]; // of the thread's rows, as the program sees them
    mod::Row values_[2];
    float maximum_[2] = {negative_infinity(), negative_infinity()};
    float sum_[2] = {0, 0}; // of P, this thread's columns only
};

} // namespace sm80
