// Copies of keys and values by threads beside the producer, 16 bytes at a time, instead of TMA: of
// rows that are not in order, and of rows that TMA loads slowly. Stages are as TMA would leave
// them.
#pragma once

#include "common/select.h"
#include "sm90/copy_async.cuh"
#include "sm90/forward_key_blocks.cuh"
#include "sm90/key_rows.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// TMA loads keys and values: no threads copy them.
struct NoKeyCopies {
    static constexpr int kKeyProducers = 1, kValueProducers = 1;
    static __device__ void initialise(const Shared&) {}
    static __device__ void produce(const KernelArguments&, const mod::Arguments&, const Shared&) {}
    static __device__ void publish() {}
};

class KeyCopies;

#ifdef FLEXC_COPIES_KEYS

// Copies a warp's part of a tile of keys or values, into panels of 64 columns whose chunks are
// swizzled within each row. Rows from rows_left on, and columns that pad the head dim for products,
// become zeros.
template <int kColumns>
__device__ inline void copy_key_rows(const KeyRows& rows, const KeyCopier& copier, int rows_left,
                                     unsigned to) {
    constexpr int kChunk = 16, kChunkColumns = kChunk / static_cast<int>(sizeof(mod::Element));
    constexpr int kChunks = kColumns / kChunkColumns,
                  kAllChunks = round_up_16(kColumns) / kChunkColumns;
    static_assert(kColumns % kChunkColumns == 0);
#pragma unroll
    for (int step = 0; step < KeyCopier::kSteps; ++step) {
        const int row = copier.row(step);
        if (mod::kKeyTile % KeyCopier::kStride != 0 && row >= mod::kKeyTile) break;
        const RowAddress from = rows.at(step, copier) + copier.chunk() * kChunk;
        const unsigned line = to + row * kRowBytes + (copier.chunk() ^ row % 8) * kChunk;
#pragma unroll
        for (int first = 0; first < kAllChunks; first += KeyCopier::kLanes) {
            const int chunk = first + copier.chunk();
            if (first + KeyCopier::kLanes > kAllChunks && chunk >= kAllChunks) break;
            const bool is_there = row < rows_left && (kChunks == kAllChunks || chunk < kChunks);
            copy_async(line + first / KeyCopier::kLanes * kKeyPanel,
                       reinterpret_cast<const char*>(from) + first * kChunk, is_there ? kChunk : 0);
        }
    }
}

// One of the threads that copy. They have a ring of tasks, to which the producer adds before it
// waits for room for the queries.
class KeyCopies {
  public:
    // One thread arrives once more, when it has announced which keys a stage holds.
    static constexpr int kKeyProducers = kKeyCopyThreads + 1, kValueProducers = kKeyCopyThreads;
    static_assert(!kCopiesKeys || (kKeysMayPass && !kStagesTables && !kMultipliesIndex2dRows));

    static __device__ void initialise(const Shared& shared) {
        shared.key_tasks.initialise(1, kKeyCopyThreads);
    }

    static __device__ void produce(const KernelArguments& attention,
                                   const mod::Arguments& arguments, const Shared& shared) {
        const int thread = static_cast<int>(threadIdx.x) - (128 - kKeyCopyThreads);
        if (thread < 0) return;
        KeyCopies copies(attention, arguments, shared, {thread / 32, thread % 32});
        while (copies.copy_task()) {
        }
    }

    // Makes what was copied visible to products. Called by a consumer that has waited for a stage.
    static __device__ void publish() { publish_shared(); }

  private:
    __device__ KeyCopies(const KernelArguments& attention, const mod::Arguments& arguments,
                         const Shared& shared, const KeyCopier& copier)
        : attention_(attention), arguments_(arguments), shared_(shared), copier_(copier) {}

    // Copies the thread's part of a task. Returns false after the last one.
    __device__ bool copy_task() {
        shared_.key_tasks.full(place_.stage).wait(place_.parity);
        const Task task = Task::load_by_warp(shared_.key_tasks.at(place_.stage));
        shared_.key_tasks.empty(place_.stage).arrive();
        place_.advance();
        if (task.is_none()) return false;
        const SequenceLength length(attention_, task.b);
        const auto copy_key = [&](MaskTile block) {
            copy_tile<mod::kHeadDim>(attention_.k, length, task.h_kv, block.index, shared_.keys,
                                     key_, [&](Barrier full) {
                                         if (copier_.warp != 0 || copier_.lane != 0) return;
                                         KeyBlocks::announce(shared_, key_.stage, block);
                                         full.arrive();
                                     });
        };
        const auto copy_value = [&](int tile) {
            copy_tile<mod::kHeadDimV>(attention_.v, length, task.h_kv, tile, shared_.values, value_,
                                      [](Barrier) {});
        };
        KeyBlocks::load(attention_, arguments_, task, copy_key, [] {}, copy_value);
        return true;
    }

    // Copies the thread's part of a tile to the next stage. Looks rows up before it waits for the
    // stage, and then calls announce(full).
    template <int kColumns, typename S, typename Announce>
    __device__ void copy_tile(const TensorArgument& tensor, const SequenceLength& length, int h_kv,
                              int tile, const S& stages, Position<S>& position,
                              Announce announce) const {
        const KeyRows rows(attention_, tensor, length, h_kv, tile, copier_);
        const Barrier full = stages.full(position.stage);
        stages.empty(position.stage).wait(position.parity ^ 1);
        announce(full);
        copy_key_rows<kColumns>(rows, copier_, length.keys() - tile * mod::kKeyTile,
                                stages.at(position.stage));
        arrive_after_copies(full);
        position.advance();
    }

    const KernelArguments& attention_;
    const mod::Arguments& arguments_;
    const Shared& shared_;
    const KeyCopier copier_;
    Position<KeyTasks> place_;
    Position<Keys> key_;
    Position<Values> value_;
};

#endif

using CopiedKeys = Select<kCopiesKeys, KeyCopies, NoKeyCopies>;

} // namespace sm90
