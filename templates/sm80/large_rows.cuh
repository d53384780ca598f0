// Computes the maximum score and the sum of P again for rows whose lse is too large to be exact.
#pragma once

#include "common/math.cuh"
#include "common/place.cuh"
#include "common/row_lse.cuh"
#include "sm80/mma.cuh"

namespace sm80 {

// 16 queries of one head, loaded directly from global memory, as few rows need it. A step goes over
// kGroups groups of 8 keys. Where only a few rows of a call need it, few warps run, so that what
// they load must be under way together: then it is four. A kernel that does other work too has no
// registers for more than one.
template <int kGroups> class LargeRows {
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
    static constexpr int kKeys = 8 * kGroups;
    // Products of two rows and two keys of each group, as MMAs leave them.
    using Products = float[kGroups][4];

    // Goes over the warp's share of the keys: kKeys of every kParts * kKeys. visit_row(r, maximum,
    // sum) is called in all lanes.
    template <int kParts, typename VisitRow> __device__ void measure(int part, VisitRow visit_row) {
        const Positions seen =
            place_.keys_of(first_row_, min(first_row_ + kRows - 1, length_.queries() - 1));
        const int last = min(seen.last, length_.keys() - 1);
        const bool has_words = has_whole_words();
#pragma unroll 1
        for (int first = max(seen.first, 0) / 8 * 8 + kKeys * part; first <= last;
             first += kKeys * kParts) {
            if constexpr (kKeys == 32) prefetch_keys(first + kKeys * kParts);
            Products products = {};
            if (has_words)
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
    // Whether each word of 32 bits lies within one row and is aligned.
    __device__ bool has_whole_words() const {
        return sizeof(mod::Element) == 4 ||
               (mod::kHeadDim % 2 == 0 && queries_.aligned_to(4) && keys_.aligned_to(4));
    }
    // 32 bits of a row from a column on; zeros past the end.
    template <bool kHasWholeWords, typename E>
    static __device__ unsigned word(const Plane<E>& plane, int row, int column) {
        if constexpr (kHasWholeWords || sizeof(E) == 4) {
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

    template <bool kHasWholeWords>
    __device__ void multiply_keys(Products& products, int first_key) const {
        constexpr int kWord = 4 / static_cast<int>(sizeof(mod::Element)); // columns
        constexpr int kStep = kStepK<mod::Element>;
        // Steps whose loads wait together, as far as registers reach.
        constexpr bool kIsNarrow = sizeof(mod::Element) == 2;
        constexpr int kAtOnce = !kHasWholeWords ? 1 : kGroups == 1 ? 4 : kIsNarrow ? 2 : 1;
#pragma unroll kAtOnce
        for (int step = 0; step < mod::kHeadDim; step += kStep) {
            const int column = step + lane_index() % 4 * kWord;
            unsigned words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                words[i] = word<kHasWholeWords>(queries_, min(row(i % 2), length_.queries() - 1),
                                                column + i / 2 * (kStep / 2));
            OperandA<mod::Element> a;
            operand_from(a, words);
#pragma unroll
            for (int group = 0; group < kGroups; ++group) {
                const int key = min(first_key + 8 * group + lane_index() / 4, length_.keys() - 1);
                OperandB<mod::Element> b;
                operand_from(b, word<kHasWholeWords>(keys_, key, column),
                             word<kHasWholeWords>(keys_, key, column + kStep / 2));
                multiply(products[group], a, b);
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
