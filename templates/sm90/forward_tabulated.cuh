// Tabulated values: vectors with a number for each key or each distance q - kv, which a kernel
// before the forward has filled. Slices of them are staged beside each tile of keys.
#pragma once

#include "common/select.h"
#include "sm90/distance.cuh"
#include "sm90/element_pair.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/fragment.cuh"
#include "sm90/logit_form.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

struct NoTabulatedValues {
    static __device__ void initialise(const Shared&) {}
    // Called by the producer after the keys of a tile.
    __device__ void load_slices(const KernelArguments&, const Task&, int, const Shared&) {}
    // Called by consumers before and after the logits of a tile.
    template <typename L> __device__ void find(L&, const Shared&, const ConsumerThread&) const {}
    __device__ void release(const Shared&) {}
};

constexpr TabulatedLayout kTabulatedSlices =
    tabulated_layout(mod::kQueryTile, mod::kKeyTile, mod::kSizes.starts_with_distances);

// One thread's tabulated values: numbers for its columns of a tile, and for the distances of these
// from its two rows.
class TabulatedTile {
    static constexpr int kPairs = mod::kKeyTile / 8; // of columns

  public:
    static constexpr int kKeys = mod::TabulatedVectors::kByKey ? mod::TabulatedVectors::kByKey : 1;
    static constexpr int kStagedKeys = mod::kSizes.key_values;
    static constexpr int kDistances =
        mod::TabulatedVectors::kByDistance ? mod::TabulatedVectors::kByDistance : 1;

    // Finds where they are in shared memory. row, column: the thread's first in the tile.
    __device__ void find(unsigned slices, int row, int column) {
        keys_from_ = slices + 4 * column;
        // A slice starts with the distance of the tile's first row from the key after its last. The
        // second of two columns is nearer.
        const int nearest = row - column - 1 + 8;
        const int start = nearest % 2 == 0 ? nearest : kTabulatedSlices.twin + nearest - 1;
        distances_from_ = slices + kStagedKeys * kTabulatedSlices.key_bytes + 4 * start;
    }
    // Starts accumulators with values by distance, from the same slices, row and column. The slice
    // starts with the distance of the row after the tile's last from its first key.
    static __device__ void start(Scores& scores, unsigned slices, int row, int column) {
        const int first = column - row + mod::kQueryTile;
        const unsigned from = slices + TabulatedLayout::kStartBytes * first;
#pragma unroll
        for (int pair = 0; pair < kPairs; ++pair) {
            float values[4];
            load_shared(from + TabulatedLayout::kStartBytes * 8 * pair, values);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                scores[4 * pair + i] = values[i];
        }
    }
    // Loads what eight keys need. Called in order, from the first on: the first row is as far from
    // these keys as the second is from the next.
    __device__ void load(int pair) {
#pragma unroll
        for (int i = 0; i < kStagedKeys; ++i)
            keys_[i][pair].load(keys_from_ + i * kTabulatedSlices.key_bytes + 32 * pair);
#pragma unroll
        for (int i = 0; i < mod::TabulatedVectors::kByDistance; ++i) {
            const unsigned from = distances_from_ + i * kTabulatedSlices.distance_bytes;
            if (pair == 0) distances_[i][kPairs].load(from + 32 * kPairs);
            distances_[i][kPairs - 1 - pair].load(from + 32 * (kPairs - 1 - pair));
        }
    }

    // The values of a key that is `columns` columns behind the thread's first, read without load().
    struct KeyValues {
        float of_key[kKeys];
    };
    __device__ KeyValues of_key(int columns) const {
        KeyValues values;
#pragma unroll
        for (int i = 0; i < kStagedKeys; ++i)
            values.of_key[kFirstStagedKey + i] = __uint_as_float(
                load_shared_word(keys_from_ + i * kTabulatedSlices.key_bytes + 4 * columns));
        return values;
    }
    // All tabulated values of an element; of() returns those in row r and the j-th column.
    struct Values {
        float of_key[kKeys], of_distance[kDistances];
    };
    __device__ Values of(int r, int j) const {
        Values values;
#pragma unroll
        for (int i = 0; i < kStagedKeys; ++i)
            values.of_key[kFirstStagedKey + i] = key(i, j);
#pragma unroll
        for (int i = 0; i < mod::TabulatedVectors::kByDistance; ++i)
            values.of_distance[i] = distance(i, r, j);
        return values;
    }
    // Return the i-th staged value of the thread's j-th column, and the i-th by distance, of that
    // column and row r.
    __device__ float key(int i, int j) const {
        return j % 2 == 0 ? keys_[i][j / 2].first() : keys_[i][j / 2].second();
    }
    __device__ float distance(int i, int r, int j) const {
        const ElementPair<float>& pair = distances_[i][kPairs - 1 - j / 2 + r];
        return j % 2 == 0 ? pair.second() : pair.first();
    }

  private:
    unsigned keys_from_, distances_from_;
    ElementPair<float> keys_[kKeys][kPairs], distances_[kDistances][kPairs + 1];
};

class StagedTabulatedValues;
class EarlyTabulatedValues;

#ifdef FLEXC_TABULATES

// Returns the entry by distance with which the slice of a tile starts.
__device__ inline int first_distance_entry(const AttentionArguments& attention, int first_row,
                                           int first_key) {
    return mod::TabulatedVectors::kDistancesComeFirst
               ? distance_entry(attention, first_row + mod::kQueryTile - first_key)
               : distance_entry(attention, first_row - first_key - mod::kKeyTile);
}

// Loads slices of the vectors that were tabulated, for a tile of keys. Called by the producer.
__device__ inline void load_tabulated(const KernelArguments& attention, const Task& task, int tile,
                                      const TabulatedRing& slices,
                                      Position<TabulatedRing>& position) {
    slices.empty(position.stage).wait(position.parity ^ 1);
    const Barrier full = slices.full(position.stage);
    constexpr int kBytes = 4 * kEntryFloats * kTabulatedSlices.distances;
    full.arrive_expecting(TabulatedTile::kStagedKeys * kTabulatedSlices.key_bytes +
                          mod::TabulatedVectors::kByDistance *
                              mod::TabulatedVectors::kDistanceCopies * kBytes);
    const int head = vector_head(attention, task.b, task.h), key = tile * mod::kKeyTile;
    unsigned to = slices.at(position.stage);
#pragma unroll
    for (int i = 0; i < TabulatedTile::kStagedKeys; ++i) {
        load_bytes(to, key_vector(attention, head, kFirstStagedKey + i) + key,
                   kTabulatedSlices.key_bytes, full);
        to += kTabulatedSlices.key_bytes;
    }
    const int first = first_distance_entry(attention, task.first_row, key);
#pragma unroll
    for (int i = 0; i < mod::TabulatedVectors::kByDistance; ++i) {
#pragma unroll
        for (int copy = 0; copy < mod::TabulatedVectors::kDistanceCopies; ++copy)
            load_bytes(to + 4 * copy * kTabulatedSlices.twin,
                       distance_vector(attention, head,
                                       mod::TabulatedVectors::kDistanceCopies * i + copy) +
                           kEntryFloats * first,
                       kBytes, full);
        to += kTabulatedSlices.distance_bytes;
    }
    position.advance();
}

class StagedTabulatedValues : public NoTabulatedValues {
  public:
    static __device__ void initialise(const Shared& shared) {
        shared.tabulated.initialise(1, kConsumerThreads);
    }
    __device__ void load_slices(const KernelArguments& attention, const Task& task, int tile,
                                const Shared& shared) {
        load_tabulated(attention, task, tile, shared.tabulated, slot_);
    }
    template <typename L>
    __device__ void find(L& logits, const Shared& shared, const ConsumerThread& thread) const {
        shared.tabulated.full(slot_.stage).wait(slot_.parity);
        logits.find_tabulated(shared.tabulated.at(slot_.stage), thread.first_row());
    }
    __device__ void release(const Shared& shared) {
        shared.tabulated.empty(slot_.stage).arrive();
        slot_.advance();
    }

  private:
    Position<TabulatedRing> slot_;
};

// Consumers read them elsewhere, with what products are added to.
class EarlyTabulatedValues : public StagedTabulatedValues {
  public:
    template <typename L> __device__ void find(L&, const Shared&, const ConsumerThread&) const {}
    __device__ void release(const Shared&) {}
};

#endif

using TabulatedValues =
    Select<kHasTabulated,
           Select<LogitForm::kStartsWithBias, EarlyTabulatedValues, StagedTabulatedValues>,
           NoTabulatedValues>;

} // namespace sm90
