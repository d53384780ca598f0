// Which tiles of keys a warp of the kernel for few queries visits: every kWarps-th tile of its
// part, out of a range or out of those that a block mask names. Called by whole warps.
#pragma once

#include "common/select.h"
#include "common/tile_walk.cuh"
#include "sm80/partial_results.cuh"

namespace sm80 {

// The work of one block: rows of some heads that share keys, over one part of a request's keys.
struct FewTask {
    const SequenceLength& length;
    int first_head, heads;
    PartOfRequest part;
    Positions seen; // keys that the mask's band shows to some row
    int warp;
};

// Divides `count` tiles evenly over the parts; the first parts have one more if it does not divide.
__device__ inline TileRange tiles_of_part(int count, const PartOfRequest& part) {
    const int each = flexc_quotient(count, part.count), more = count - each * part.count;
    const int begin = part.part * each + min(part.part, more);
    return {begin, begin + each + (part.part < more)};
}

template <int kWarps> class RangeOfWarp {
  public:
    __device__ RangeOfWarp(const AttentionArguments&, const FewTask& task) {
        const TileRange all = tiles_between(task.seen, task.length.keys(), mod::kKeyTile);
        const TileRange own = tiles_of_part(all.end - all.begin, task.part);
        tile_ = all.begin + own.begin + task.warp;
        end_ = all.begin + own.end;
    }

    __device__ bool is_done() const { return tile_ >= end_; }
    // Whether the warp `behind` places after this one has a tile in this step.
    __device__ bool has(int behind) const { return tile_ + behind < end_; }
    __device__ int tile() const { return tile_; }
    __device__ int step() const { return step_; }
    // Whether nothing in the tile is hidden from any row of the request.
    static __device__ bool is_full() { return false; }
    __device__ void advance() {
        tile_ += kWarps;
        ++step_;
    }

  private:
    int tile_, end_, step_ = 0;
};

// Visits the tiles in which some head sees something, numbered in order. Each lane holds a word of
// the block mask, for 32 tiles.
template <int kWarps> class NamedOfWarp {
  public:
    __device__ NamedOfWarp(const AttentionArguments& attention, const FewTask& task)
        : mask_(&attention.block_mask), first_head_(task.first_head),
          heads_(mask_->head_stride == 0 ? 1 : task.heads), b_(task.length.b()),
          first_query_row_(task.length.first_query_row()),
          words_((tiles_between(0, task.length.keys() - 1, task.length.keys(), mod::kKeyTile).end +
                  31) /
                 32) {
        int count = 0;
        for (int first = 0; first < words_; first += 32) {
            load(first);
            count += sum_;
        }
        const TileRange own = tiles_of_part(count, task.part);
        number_ = own.begin + task.warp;
        end_ = own.end;
        load(0);
        find();
    }

    __device__ bool is_done() const { return number_ >= end_; }
    __device__ bool has(int behind) const { return number_ + behind < end_; }
    __device__ int tile() const { return tile_; }
    __device__ int step() const { return step_; }
    __device__ bool is_full() const { return is_full_; }
    __device__ void advance() {
        number_ += kWarps;
        ++step_;
        find();
    }

  private:
    static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }

    // Loads words first ... first + 31 of the row, one a lane.
    __device__ void load(int first) {
        first_word_ = first;
        const int word = first + lane();
        own_ = {0, 0};
        if (word < words_) {
            own_.full = ~0u;
            for (int i = 0; i < heads_; ++i) {
                const long long row = row_of_tile<kMostFewRows, mod::Layouts::kQueriesAreRagged>(
                    *mask_, b_, first_head_ + i, first_query_row_, 0);
                const TileWord of_head = mask_->words[row * mask_->word_count + word];
                own_.visible |= of_head.visible;
                own_.full &= of_head.full;
            }
        }
        upto_ = __popc(own_.visible);
        for (int distance = 1; distance < 32; distance *= 2) {
            const int before = __shfl_sync(0xffffffffu, upto_, lane() - distance & 31);
            upto_ += lane() >= distance ? before : 0;
        }
        sum_ = __shfl_sync(0xffffffffu, upto_, 31);
    }
    // Finds the tile whose number is number_.
    __device__ void find() {
        if (is_done()) return;
        while (number_ - before_ >= sum_) {
            before_ += sum_;
            load(first_word_ + 32);
        }
        const int place = number_ - before_;
        const int owner = __ffs(__ballot_sync(0xffffffffu, upto_ > place)) - 1;
        const unsigned visible = __shfl_sync(0xffffffffu, own_.visible, owner);
        const int in_word = place - (__shfl_sync(0xffffffffu, upto_, owner) - __popc(visible));
        // Each lane tests the tile of one bit.
        const bool is_it =
            (visible >> lane() & 1) != 0 && __popc(visible & ((1u << lane()) - 1)) == in_word;
        const int bit = __ffs(__ballot_sync(0xffffffffu, is_it)) - 1;
        tile_ = 32 * (first_word_ + owner) + bit;
        is_full_ = (__shfl_sync(0xffffffffu, own_.full, owner) >> bit & 1) != 0;
    }

    const BlockMask* mask_;
    int first_head_, heads_, b_;
    long long first_query_row_;
    int words_; // of a row that has been built
    int number_, end_, step_ = 0, tile_ = 0;
    int first_word_, before_ = 0; // of the lanes' words: the first, tiles ahead of them
    int upto_, sum_;              // tiles to the end of the lane's word, in all
    TileWord own_;
    bool is_full_ = false;
};

template <int kWarps>
using TilesOfWarp = Select<mod::Mask::kHasBlockMask, NamedOfWarp<kWarps>, RangeOfWarp<kWarps>>;

} // namespace sm80
