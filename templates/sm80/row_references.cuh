// Before a backward kernel: what the P of every query are relative to,
//     weight = exp2((score - reference) * log2(e) - lse_log2).
// Without a score mod the reference is a product, to which the scale has yet to come. lse alone is
// enough as long as rounding it changes P by less than rounding them to 16 bits
// does: the reference is 0 then. Rows whose lse is larger than that have the maximum and the
// sum of P of their scores found again here, by the products that the backward kernel
// computes. An lse that is not of these scores, but of more keys than this call has (partial
// results that were merged), is the reference itself.
#pragma once

#include "common/dependence.cuh"
#include "common/math.cuh"
#include "common/place.cuh"
#include "common/row_lse.cuh"
#include "sm80/mma.cuh"
#include "sm80/tile_order.cuh"
#include "sm80/workspace.cuh"

namespace sm80 {

// 16 queries of one head by all warps of a block, each 8 keys at a time, read from memory as they
// are: this is for few rows.
class LargeRows {
  public:
    static constexpr int kRows = 16, kWarps = kReferenceRows / 32;
    // What each warp's keys give for each row.
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

    // visit(row, reference, lse_log2), in one thread for each row.
    template <typename Visit> __device__ void find(Parts& parts, Visit visit) {
        const int warp = static_cast<int>(threadIdx.x) / 32;
        const Positions seen =
            place_.keys_of(first_row_, min(first_row_ + kRows - 1, length_.queries() - 1));
        const int last = min(seen.last, length_.keys() - 1);
        const bool has_words = has_whole_words();
#pragma unroll 1
        for (int first = max(seen.first, 0) / 8 * 8 + 8 * warp; first <= last;
             first += 8 * kWarps) {
            float products[4] = {0, 0, 0, 0};
            if (has_words)
                multiply_keys<true>(products, first);
            else
                multiply_keys<false>(products, first);
            add_keys(products, first);
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const float maximum = quad_max(maximum_[r]);
            const float sum = quad_sum(relative(maximum_[r], maximum) * sum_[r]);
            parts.maximum[warp][lane_index() / 4 + 8 * r] = maximum;
            parts.sum[warp][lane_index() / 4 + 8 * r] = sum;
        }
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

  private:
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
    // Whether no row ends, or lies, within a word of 32 bits.
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

    template <bool kHasWholeWords>
    __device__ void multiply_keys(float (&products)[4], int first_key) const {
        constexpr int kWord = 4 / static_cast<int>(sizeof(mod::Element)); // columns
        constexpr int kStep = kStepK<mod::Element>;
        const int key = min(first_key + lane_index() / 4, length_.keys() - 1);
        constexpr int kAtOnce = kHasWholeWords ? 4 : 1; // steps whose loads wait together
#pragma unroll kAtOnce
        for (int step = 0; step < mod::kHeadDim; step += kStep) {
            const int column = step + lane_index() % 4 * kWord;
            unsigned words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                words[i] = word<kHasWholeWords>(queries_, min(row(i % 2), length_.queries() - 1),
                                                column + i / 2 * (kStep / 2));
            OperandA<mod::Element> a;
            OperandB<mod::Element> b;
            operand_from(a, words);
            operand_from(b, word<kHasWholeWords>(keys_, key, column),
                         word<kHasWholeWords>(keys_, key, column + kStep / 2));
            multiply(products, a, b);
        }
    }

    __device__ void add_keys(const float (&products)[4], int first_key) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int r = i / 2, position = first_key + lane_index() % 4 * 2 + i % 2;
            const int kv = length_.kv_idx(position);
            const mod::Column column = mod::at_column(arguments_, place_.launch, place_.head,
                                                      place_.b, place_.h, place_.h_kv, kv);
            const mod::At at{arguments_, place_.launch, place_.head, values_[r], column,
                             place_.b,   place_.h,      place_.h_kv, q_[r],      kv};
            if (position >= length_.keys() || !mod::visible(at)) continue;
            const float score = mod::kHasScoreMod ? mod::score(at, products[i] * attention_.scale)
                                                  : products[i] * sign();
            const float before = maximum_[r];
            maximum_[r] = fmaxf(before, score);
            sum_[r] = sum_[r] * relative(before, maximum_[r]) + relative(score, maximum_[r]);
        }
    }

    // Products are compared as their scores are.
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

// One block does kReferenceRows rows of one head, each of its threads one.
extern "C" __global__ void __launch_bounds__(kReferenceRows)
    flexc_backward_references(const __grid_constant__ AttentionArguments attention,
                              const __grid_constant__ mod::Arguments arguments) {
    let_next_start();
    const sm80::BlockTile block =
        sm80::tile_of_rows(attention, static_cast<int>(blockIdx.x), kReferenceRows);
    const int first_row = block.tile * kReferenceRows;
    const SequenceLength length(attention, block.head / attention.heads);
    const int h = block.head % attention.heads;
    if (!mod::kIsDense && (block.tile < 0 || first_row >= length.queries())) return;
    const sm80::RowFacts facts(attention, length, h);
    const auto store = [&](int row, float reference, float lse_log2) {
        facts.of(row, kReferenceFact) = reference;
        facts.of(row, kLseLog2Fact) = lse_log2;
    };
    const int row = first_row + static_cast<int>(threadIdx.x);
    float lse = negative_infinity();
    if (row < length.queries())
        lse = *sm80::query_plane<float>(attention.lse, length, h).at(row, 0);
    const bool tile_has_large = __syncthreads_or(is_large_lse(lse));
    store(row, 0, row_lse_log2(lse == negative_infinity() ? -lse : lse * kLog2E, tile_has_large));
    if (!tile_has_large) return;
    __shared__ unsigned large_of_warps[sm80::LargeRows::kWarps];
    __shared__ sm80::LargeRows::Parts parts;
    const unsigned large_of_warp = __ballot_sync(0xffffffffu, is_large_lse(lse));
    if (threadIdx.x % 32 == 0) large_of_warps[threadIdx.x / 32] = large_of_warp;
    __syncthreads();
#pragma unroll 1
    for (int first = 0; first < kReferenceRows; first += sm80::LargeRows::kRows) {
        const unsigned large = large_of_warps[first / 32] >> first % 32;
        if ((large & 0xffff) == 0) continue;
        sm80::LargeRows(attention, arguments, block.head, first_row + first)
            .find(parts, [&](int found, float reference, float lse_log2) {
                if (large >> (found - first_row - first) & 1)
                    store(found, reference, row_lse_log2(lse_log2, true));
            });
    }
}
