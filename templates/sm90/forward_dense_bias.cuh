// The dense bias: one number for each query and key. Threads beside the producer copy tiles of it
// to shared memory, or one of them loads these through TMA, and consumers add them to the products.
#pragma once

#include "common/select.h"

#include "sm90/copy_async.cuh"
#include "sm90/forward_tasks.cuh"
#include "sm90/logits.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// No bias: the interface of all classes here, with functions that do nothing.
struct NoDenseBias {
    static __device__ int producers(const ForwardTensorMaps&) { return 0; }
    static __device__ void initialise(const Shared&, int) {}
    static __device__ void produce(const AttentionArguments&, const mod::Arguments&,
                                   const ForwardTensorMaps&, const Shared&, int) {}

    // Called before the MMAs of a block of keys, where it cannot run under a softmax.
    __device__ void start(Scores&, Logits&, const Shared&, const ConsumerThread&, int) {}
    // Called before the MMAs of the next block of keys, under the exponentials of this one: first
    // await_next(), then start_next(), when logits are no longer needed in scores.
    __device__ void await_next(Logits&, const Shared&, int, bool) {}
    __device__ void start_next(Scores&, Logits&, const Shared&, const ConsumerThread&,
                               const KeyOrder&, int, bool) {}
    // Called after the MMAs, or while they run: loads what is added to products.
    __device__ void load(Logits&, const Shared&, const ConsumerThread&, int) {}
    // Called when products have become logits.
    __device__ void release_after_logits(const Shared&) {}
    // Called after the last block of keys.
    __device__ void finish(const Shared&) {}
};

class StagedBias;
class BiasAfterProducts;
class BiasInLogits;

#ifdef FLEXC_HAS_DENSE_BIAS

constexpr int kBiasThreads = 64; // threads that copy, where TMA does not
constexpr int kChunkKeys = kBiasChunk / kBiasBytes;

// The place of a head's dense bias in memory. Rows are those of queries.
struct DenseBiasOfHead {
    const mod::DenseBias::Element* corner; // of the first query and key in memory
    long long row_step, key_step;          // in elements
    bool in_chunks;                        // rows start at 16 aligned bytes; no gaps between keys

    __device__ DenseBiasOfHead(const AttentionArguments& attention, const mod::Arguments& arguments,
                               const HeadPlace& place) {
        const auto address = [&](int row) {
            return visit_element(attention, arguments, place, row, 0,
                                 [](const mod::At& at) { return mod::DenseBias::address(at); });
        };
        corner = address(0);
        row_step = attention.q_len > 1 ? address(1) - corner : 0;
        key_step = mod::DenseBias::step(arguments);
        in_chunks = key_step == 1 && row_step % kChunkKeys == 0 &&
                    reinterpret_cast<unsigned long long>(corner) % 16 == 0;
    }
};

// The band in which elements use a head's dense bias, as key - row in the tensors. Tiles outside
// are not copied: elements choose something else, whatever is in their stage.
class BandOfBias {
  public:
    __device__ BandOfBias(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const HeadPlace& place) {
        if constexpr (!mod::DenseBias::kHasBand) return;
        visit_element(attention, arguments, place, 0, 0, [&](const mod::At& at) {
            const long long offset = attention.q_offset - attention.kv_offset;
            low_ = bounded(mod::DenseBias::low(at), offset);
            high_ = bounded(mod::DenseBias::high(at), offset);
        });
    }
    __device__ bool meets(int first_row, int rows, int first_key, int keys) const {
        return !mod::DenseBias::kHasBand || (first_key + keys - 1 - first_row >= low_ &&
                                             first_key - (first_row + rows - 1) <= high_);
    }

  private:
    // A distance is less than 2^30, and so is an offset.
    static __device__ int bounded(long long x, long long offset) {
        constexpr long long kMost = 1ll << 32;
        const long long sum = flexc_min(flexc_max(x, -kMost), kMost) + offset;
        return static_cast<int>(flexc_min(flexc_max(sum, -0x7fffffffll), 0x7fffffffll));
    }
    int low_ = 0, high_ = 0;
};

// Copies a thread's part of a tile in chunks. A thread keeps its chunk and steps down the rows;
// some threads have none. Rows past the end are not copied, as their output is not stored.
__device__ inline void copy_chunks(const DenseBiasOfHead& bias, int first_row, int rows,
                                   int first_key, int keys, unsigned to, Barrier full, int thread) {
    constexpr int kChunks = mod::kKeyTile / kChunkKeys, kRows = kBiasThreads / kChunks;
    const int first = thread / kChunks, key = thread % kChunks * kChunkKeys;
    if (first < kRows && key < keys) {
        const mod::DenseBias::Element* from =
            bias.corner + (first_row + first) * bias.row_step + first_key + key;
#pragma unroll 4
        for (int row = first; row < rows; row += kRows) {
            copy_async(to + bias_chunk_at(row, thread % kChunks), from);
            from += kRows * bias.row_step;
        }
    }
    arrive_after_copies(full);
}

// Row and column of a head's first element in the one tensor that TMA sees.
struct BiasCorner {
    int row = 0, column = 0;

    __device__ BiasCorner(const DenseBiasOfHead& bias, const ForwardTensorMaps& maps) {
        if (maps.biases_from == nullptr) return;
        const long long elements =
            bias.corner - static_cast<const mod::DenseBias::Element*>(maps.biases_from);
        row = static_cast<int>(elements / maps.bias_row_step);
        column = static_cast<int>(elements % maps.bias_row_step);
    }
};

// Loads a tile through TMA; called by one thread. What is outside the dense bias arrives as zeros.
__device__ inline void load_boxes(const ForwardTensorMaps& maps, const BiasCorner& corner,
                                  int first_row, int first_key, unsigned to, Barrier full) {
    full.arrive_expecting(kBiasTile.panels * kBiasTile.panel_bytes);
#pragma unroll
    for (int panel = 0; panel < kBiasTile.panels; ++panel)
        load_box(to + panel * kBiasTile.panel_bytes, maps.biases, corner.row + first_row,
                 corner.column + first_key + panel * (kBiasTile.row_bytes / kBiasBytes), full);
}

// Copies a thread's part of a tile element by element, for any layout in memory.
__device__ inline void copy_elements(const DenseBiasOfHead& bias, int first_row, int rows,
                                     int first_key, int keys, unsigned to, Barrier full,
                                     int thread) {
    for (int key = thread; key < keys; key += kBiasThreads) {
        const mod::DenseBias::Element* from =
            bias.corner + first_row * bias.row_step + (first_key + key) * bias.key_step;
        const unsigned column = to + key % kChunkKeys * kBiasBytes;
#pragma unroll 4
        for (int row = 0; row < rows; ++row) {
            store_shared_element(column + bias_chunk_at(row, key / kChunkKeys), *from);
            from += bias.row_step;
        }
    }
    full.arrive();
}

// Copies a thread's part of all tiles of the block. thread: its number among those that copy.
__device__ inline void copy_biases(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const ForwardTensorMaps& maps,
                                   const Shared& shared, int thread) {
    Position<BiasRing> slot;
    visit_tasks(attention, arguments, shared, [&](const Task& task, const HeadPlace& place) {
        const DenseBiasOfHead bias(attention, arguments, place);
        const BiasCorner corner(bias, maps);
        const BandOfBias band(attention, arguments, place);
        const int rows = min(attention.q_len - task.first_row, mod::kQueryTile);
#pragma unroll 1
        for (int block = task.end - 1; block >= task.begin; --block) {
            shared.biases.empty(slot.stage).wait(slot.parity ^ 1);
            const int first_key = block * mod::kKeyTile;
            const unsigned to = shared.biases.at(slot.stage);
            const Barrier full = shared.biases.full(slot.stage);
            const int keys = min(attention.kv_len - first_key, mod::kKeyTile);
            if (!band.meets(task.first_row, rows, first_key, keys))
                full.arrive();
            else if (maps.biases_from != nullptr)
                load_boxes(maps, corner, task.first_row, first_key, to, full);
            else if (bias.in_chunks && keys % kChunkKeys == 0)
                copy_chunks(bias, task.first_row, rows, first_key, keys, to, full, thread);
            else
                copy_elements(bias, task.first_row, rows, first_key, keys, to, full, thread);
            slot.advance();
        }
    });
}

// A bias that is staged: its producers and barriers, and a consumer's position in the ring.
class StagedBias : public NoDenseBias {
  public:
    static __device__ int producers(const ForwardTensorMaps& maps) {
        return maps.biases_from == nullptr ? kBiasThreads : 1;
    }
    static __device__ void initialise(const Shared& shared, int producers) {
        shared.biases.initialise(producers, kConsumerThreads);
    }
    static __device__ void produce(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const ForwardTensorMaps& maps,
                                   const Shared& shared, int producers) {
        constexpr int kFirst = 64; // thread of the producer warpgroup
        if (threadIdx.x >= kFirst && threadIdx.x < kFirst + producers)
            copy_biases(attention, arguments, maps, shared, static_cast<int>(threadIdx.x) - kFirst);
    }

  protected:
    __device__ void wait(const Shared& shared) const {
        shared.biases.full(bias_.stage).wait(bias_.parity);
    }
    // Returns the address of the rows of the thread's warp.
    __device__ unsigned rows(const Shared& shared, const ConsumerThread& thread) const {
        return shared.biases.at(bias_.stage) + thread.warp_row() * kBiasTile.row_bytes;
    }
    __device__ void release(const Shared& shared) {
        shared.biases.empty(bias_.stage).arrive();
        bias_.advance();
    }

  private:
    Position<BiasRing> bias_;
};

// Adds the bias to finished products, where something else multiplies or adds to them, too.
class BiasAfterProducts : public StagedBias {
  public:
    __device__ void load(Logits& logits, const Shared& shared, const ConsumerThread& thread, int) {
        wait(shared);
        logits.load_biases(rows(shared, thread));
        release(shared);
    }
};

// Leaves the bias in shared memory for the program, which computes logits from it.
class BiasInLogits : public StagedBias {
  public:
    __device__ void load(Logits& logits, const Shared& shared, const ConsumerThread& thread, int) {
        wait(shared);
        logits.load_biases(rows(shared, thread));
    }
    __device__ void release_after_logits(const Shared& shared) { release(shared); }
};

#endif

// Starts the accumulators with the bias; the MMAs add QK to it.
template <typename Staged> class BiasBeforeProducts : public Staged {
  public:
    __device__ void start(Scores& scores, Logits& logits, const Shared& shared,
                          const ConsumerThread& thread, int block) {
        this->wait(shared);
        logits.start(scores, this->rows(shared, thread), block * mod::kKeyStep);
        this->release(shared);
    }
    __device__ void await_next(Logits&, const Shared& shared, int, bool has_more) {
        if (has_more) this->wait(shared);
    }
    // After the last block of keys, what is read does not matter: a branch around the reads would
    // keep them from running under the exponentials.
    __device__ void start_next(Scores& scores, Logits& logits, const Shared& shared,
                               const ConsumerThread& thread, const KeyOrder&, int next,
                               bool has_more) {
        const unsigned from = has_more ? this->rows(shared, thread) : shared.keys.at(0);
        logits.start(scores, from, (has_more ? next - 1 : next) * mod::kKeyStep);
        pin(scores);
        if (has_more) this->release(shared);
    }
};

// Starts the accumulators with elements of tables, which stay in shared memory for all tiles:
// nothing is waited for or released.
struct TablesAsBias : public NoDenseBias {
  protected:
    static __device__ void wait(const Shared&) {}
    static __device__ unsigned rows(const Shared&, const ConsumerThread&) { return 0; }
    static __device__ void release(const Shared&) {}
};

// Starts the accumulators with elements of tables that are found from tabulated values. A block's
// values are kept until the next block's have arrived, so that reads after the last block find
// values, too.
class TabulatedTablesAsBias : public NoDenseBias {
  public:
    __device__ void start(Scores& scores, Logits& logits, const Shared& shared,
                          const ConsumerThread& thread, int block) {
        finish(shared);
        await(shared, slot_);
        read(scores, logits, shared, thread, slot_, block);
        is_kept_ = true;
    }
    __device__ void await_next(Logits&, const Shared& shared, int, bool has_more) {
        if (has_more) await(shared, next_slot());
    }
    __device__ void start_next(Scores& scores, Logits& logits, const Shared& shared,
                               const ConsumerThread& thread, const KeyOrder&, int next,
                               bool has_more) {
        read(scores, logits, shared, thread, has_more ? next_slot() : slot_,
             has_more ? next - 1 : next);
        pin(scores);
        if (has_more) release(shared);
    }
    __device__ void finish(const Shared& shared) {
        if (is_kept_) release(shared);
        is_kept_ = false;
    }

  private:
    using Slot = Position<TabulatedRing>;

    __device__ Slot next_slot() const {
        Slot slot = slot_;
        slot.advance();
        return slot;
    }
    static __device__ void await(const Shared& shared, const Slot& slot) {
        shared.tabulated.full(slot.stage).wait(slot.parity);
    }
    static __device__ void read(Scores& scores, Logits& logits, const Shared& shared,
                                const ConsumerThread& thread, const Slot& slot, int block) {
        logits.find_tabulated(shared.tabulated.at(slot.stage), thread.first_row());
        logits.start(scores, 0, block * mod::kKeyStep);
    }
    __device__ void release(const Shared& shared) {
        shared.tabulated.empty(slot_.stage).arrive();
        slot_.advance();
    }

    Slot slot_; // of the newest block
    bool is_kept_ = false;
};

using DenseBias =
    Select<!kReadsBias,
           Select<!Logits::kStartsWithBias, NoDenseBias,
                  Select<kHasTabulated, TabulatedTablesAsBias, BiasBeforeProducts<TablesAsBias>>>,
           Select<Logits::kStartsWithBias, BiasBeforeProducts<StagedBias>,
                  Select<Logits::kAffine, BiasAfterProducts, BiasInLogits>>>;

} // namespace sm90
