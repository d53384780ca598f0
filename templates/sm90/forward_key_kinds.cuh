// Kinds of keys: what a program adds by a key's kind is the product of a row with an addend for
// each kind and of a column with a one where the key's kind is, and zeros. Both lie behind queries
// and keys in their stages, as more columns that the MMAs of QK sum over. An addend is the sum of
// two bf16 numbers, whatever the type of queries and keys. Consumers store those of their queries
// when these arrive; threads beside the producer store the ones with each tile of keys.
//
// Where a warp's rows have an addend for which two numbers are not enough, its columns are zeros,
// and each of its elements finds the addend behind them.
#pragma once

#include "common/math.cuh"
#include "common/select.h"
#include "sm90/forward_kind_copies.cuh"
#include "sm90/forward_pair_kinds.cuh"
#include "sm90/pack.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

class MultipliedKeyKinds;
class CopiedKeyKinds;
class CopiedPairKinds;
struct PairAddends;
struct TableSlices;
template <typename Slices> class StagedSlices;

#ifdef FLEXC_HAS_KEY_KINDS

class MultipliedKeyKinds : public KeyKindProducers {
  public:
    static __device__ void produce(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const Shared& shared) {
        if (thread() < 0) return;
        visit_tiles(attention, arguments, shared,
                    [&](const HeadPlace& place, int stage, int first_key) {
#pragma unroll 1
                        for (int row = thread(); row < mod::kKeyTile; row += kProducers)
                            store_key(shared.keys.at(stage), row,
                                      kind_of_key(attention, arguments, place, first_key + row));
                        publish_shared();
                    });
    }

    __device__ void store_queries(const mod::Arguments& arguments, const HeadPlace& place,
                                  const SequenceLength& length, float scale, int warp_row,
                                  const Shared& shared, int stage, const ConsumerThread& thread) {
        store_rows(arguments, place, length, 1 / scale, warp_row, shared.queries.at(stage), thread);
        publish_shared();
        synchronize(1 + kConsumers + thread.warpgroup, 128);
    }
    // Stores a warp's rows, each by two lanes. per_product: factor from scores to products.
    __device__ void store_rows(const mod::Arguments& arguments, const HeadPlace& place,
                               const SequenceLength& length, float per_product, int warp_row,
                               unsigned queries, const ConsumerThread& thread) {
        const int row = thread.lane / 2, chunk = thread.lane % 2;
        const int q = length.q_idx(warp_row + row);
        const mod::Row of_query =
            mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
        float addends[kChunkKinds];
        bool are_small = true;
#pragma unroll
        for (int i = 0; i < kChunkKinds; ++i) {
            const float addend =
                addend_of_kind(arguments, place, of_query, q, kChunkKinds * chunk + i);
            are_small = are_small && fabsf(addend) <= kMostMultiplied;
            addends[i] = multiply_finite(addend, per_product);
        }
        adds_apart_ = __any_sync(0xffffffffu, !are_small);
        if (chunk < kChunks)
            store_addends(queries + kLayout.kind_queries, thread.warp_row() + row, chunk, addends);
    }

    // Adds the addends that two bf16 numbers cannot hold to the scores, element by element. keys,
    // queries: addresses of their stages.
    __device__ void add_apart(Scores& scores, unsigned keys, unsigned queries,
                              const ConsumerThread& thread) const {
        if (!adds_apart_) return;
        const unsigned rows = queries + kLayout.kind_queries + thread.first_row() * kRowBytes;
        const unsigned of_row = thread.lane / 4 * 16;
        const int column = thread.lane % 4 * 2;
#pragma unroll
        for (int j = 0; j < kFragmentColumns; ++j) {
            const unsigned place =
                load_shared_word(place_of_addend(keys, column + j % 2) + j / 2 * 8 * kRowBytes);
            const unsigned from = rows + (place ^ of_row);
#pragma unroll
            for (int r = 0; r < 2; ++r)
                scores[accumulator(r, j)] +=
                    __uint_as_float(load_shared_word(from + 8 * r * kRowBytes));
        }
        __syncwarp();
    }

    // Stores a row of a tile of keys: both parts of an addend have the same ones, in one step of
    // the MMAs where there are eight columns, and in two else. kind: -1 for none.
    static __device__ void store_key(unsigned keys, int row, int kind) {
        constexpr unsigned kOne = 0x3f80; // of bf16
        const unsigned one = kind % 2 == 0 ? kOne : kOne << 16;
#pragma unroll
        for (int chunk = 0; chunk < kPlaceChunk; ++chunk) {
            const int word = kind < 0 ? kind : kind / 2 - chunk % kChunks * 4;
            store_shared(
                keys + kLayout.kind_keys + place_in_panel(row, chunk),
                static_cast<int>(word == 0 ? one : 0), static_cast<int>(word == 1 ? one : 0),
                static_cast<int>(word == 2 ? one : 0), static_cast<int>(word == 3 ? one : 0));
        }
        // A key of no kind reads its addend from the columns of the operand, which are zeros then.
        store_shared_word(place_of_addend(keys, row),
                          kind < 0 ? 0 : 16 * kFirstFloatChunk + 4 * kind);
    }

  private:
    // The sum of two bf16 numbers is off by 2^-18 of an addend, and P by so much times the addend's
    // exponent: of 64, by less than 2^-12, where rounding to f16 is off by 2^-11.
    static constexpr float kMostMultiplied = 64 * kLn2;
    static constexpr int kColumns = mod::kSizes.kind_columns;
    // A panel's row has eight chunks of 16 bytes: of queries those of first parts, second parts and
    // floats, of keys two of ones and one that says where a query's float is.
    static constexpr int kChunkKinds = 8, kChunks = kColumns == 0 ? 1 : kColumns / kChunkKinds;
    static constexpr int kFirstFloatChunk = 2 * kChunks, kPlaceChunk = 2;
    static_assert(kColumns <= ForwardLayout::kMostKinds);

    static __device__ int place_in_panel(int row, int chunk) {
        return row * kRowBytes + (chunk ^ row % 8) * 16;
    }
    static __device__ unsigned place_of_addend(unsigned keys, int row) {
        return keys + kLayout.kind_keys + place_in_panel(row, kPlaceChunk);
    }
    __device__ void store_addends(unsigned panel, int row, int chunk,
                                  const float (&addends)[kChunkKinds]) const {
        unsigned first[4], second[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float x = adds_apart_ ? 0 : addends[2 * i];
            const float y = adds_apart_ ? 0 : addends[2 * i + 1];
            first[i] = pack(flexc_bf16{}, x, y);
            second[i] = pack(flexc_bf16{}, x - flexc_first(flexc_bf16{}, first[i]),
                             y - flexc_second(flexc_bf16{}, first[i]));
        }
        store_chunk(panel + place_in_panel(row, chunk), first);
        store_chunk(panel + place_in_panel(row, kChunks + chunk), second);
        if (!adds_apart_) return;
#pragma unroll
        for (int half = 0; half < 2; ++half)
            store_shared(panel + place_in_panel(row, kFirstFloatChunk + 2 * chunk + half),
                         addends[4 * half], addends[4 * half + 1], addends[4 * half + 2],
                         addends[4 * half + 3]);
    }
    static __device__ void store_chunk(unsigned to, const unsigned (&words)[4]) {
        store_shared(to, static_cast<int>(words[0]), static_cast<int>(words[1]),
                     static_cast<int>(words[2]), static_cast<int>(words[3]));
    }

    bool adds_apart_; // addends of the warp's rows are added apart
};

#endif

using KeyKinds = Select<mod::kSizes.kind_columns != 0, MultipliedKeyKinds,
                        Select<mod::kSizes.kind_copies != 0, CopiedKeyKinds,
                               Select<kHasPairKinds, CopiedPairKinds, NoKeyKinds>>>;
using TableStages = Select<kStagesTables, StagedSlices<TableSlices>,
                           Select<kHasPairKinds, StagedSlices<PairAddends>, NoStagedTables>>;

} // namespace sm90
