// Skips keys that a consumer warpgroup does not need, but others of the tile do. It lets them pass:
// it waits for them, releases them, and signals the next warpgroup. That is possible where nothing
// else is staged with keys and values that it would have to release too.
#pragma once

#include "common/select.h"
#include "sm90/forward_layout.cuh"

namespace sm90 {

// Every warpgroup multiplies all keys of the tile.
struct NoSkips {
    // Returns whether a warpgroup has no rows in this tile; then all of its keys have passed.
    template <typename Consumer> static __device__ bool skips_tile(Consumer&, const Task&, int) {
        return false;
    }
    // Returns the tile of keys to start with; later ones have passed. Called for tasks that have
    // keys.
    template <typename Consumer>
    static __device__ int last_block(Consumer&, const Task& task, const HeadPlace&) {
        return task.end - 1;
    }

  protected:
    template <typename Consumer> static __device__ void pass_keys(Consumer& consumer) {
        consumer.wait_for_key();
        __syncwarp();
        consumer.release_key();
        consumer.wait_for_value();
        __syncwarp();
        consumer.release_value();
    }
};

// A short tile has rows for some warpgroups only.
struct SkipsShortTiles : NoSkips {
    template <typename Consumer>
    static __device__ bool skips_tile(Consumer& consumer, const Task& task, int first_row) {
        const bool has_no_rows = first_row >= task.end_row;
        if (has_no_rows) pass_tile(consumer, task);
        return has_no_rows;
    }

  protected:
    // Returns the last key that a row of the warpgroup sees.
    template <typename Consumer>
    static __device__ int last_key_of(const Consumer& consumer, const Task& task,
                                      const HeadPlace& place) {
        const int first_row = task.first_row + 64 * consumer.thread.warpgroup;
        return place.keys_of(first_row, first_row + 63).last;
    }

  private:
    template <typename Consumer>
    static __device__ void pass_tile(Consumer& consumer, const Task& task) {
#pragma unroll 1
        for (int next = task.begin; next < task.end; ++next) {
            pass_keys(consumer);
            // Warpgroups need not wait for each other where MMAs do not overlap with softmax.
            if (!mod::ForwardSchedule::kOverlaps || next > task.begin) consumer.ping_pong.skip();
        }
    }
};

// Skips besides, where there is a band, the last tiles of a range that only the other warpgroups'
// rows see.
struct SkipsHiddenKeys : SkipsShortTiles {
    template <typename Consumer>
    static __device__ int last_block(Consumer& consumer, const Task& task, const HeadPlace& place) {
        const int last_key = last_key_of(consumer, task, place);
        int last = task.end - 1;
#pragma unroll 1
        for (; last > task.begin && last * mod::kKeyStep > last_key; --last) {
            pass_keys(consumer);
            consumer.ping_pong.skip();
        }
        return last;
    }
};

// Skips the same tiles where consumers are told which keys a stage has.
struct SkipsHiddenTiles : SkipsShortTiles {
    template <typename Consumer>
    static __device__ int last_block(Consumer& consumer, const Task& task, const HeadPlace& place) {
        const int last_key = last_key_of(consumer, task, place);
        int last = task.end - 1;
#pragma unroll 1
        for (; last > task.begin; --last) {
            consumer.wait_for_key();
            if (consumer.key_block(last).index * mod::kKeyTile <= last_key) break;
            pass_keys(consumer);
            consumer.ping_pong.skip();
        }
        return last;
    }
};

using Skips = Select<
    !kKeysMayPass, NoSkips,
    Select<!mod::Mask::kHasBand || mod::Mask::kHasBlockMask, SkipsShortTiles,
           Select<mod::ForwardSchedule::kStartsAtHighest, SkipsHiddenTiles, SkipsHiddenKeys>>>;

} // namespace sm90
