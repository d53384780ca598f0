// Copies the ends of clamped reads whose addresses are affine in q and kv, for tiles in which all
// reads are beyond an end of their clamp: each then has one element for a line, so that a row or a
// column adds the same all along. Threads beside the producer store these elements as floats.
#pragma once

#include "common/element.cuh"
#include "common/math.cuh"
#include "sm90/logit_form.cuh"
#include "sm90/shifted_tile.cuh"

namespace sm90 {

constexpr bool kHasShiftedEnds = mod::kSizes.shifted_end_bytes != 0;
// Whether ends are summed: they are then multiples of the reads, in units of products.
constexpr bool kSumsShiftedEnds = LogitForm::kSumsShiftedEnds;

#ifdef FLEXC_HAS_SHIFTED_READS

// Copies a thread's part of one read's ends, for a tile of queries.
template <int kRead> class ShiftedEnd {
    using Tile = ShiftedTile<kRead>;
    using Read = typename Tile::Read;
    using Element = typename Tile::Element;

  public:
    // unit: what 1 is in units of products, if ends are summed.
    __device__ ShiftedEnd(const AttentionArguments& attention, const ShiftedHead<kRead>& head,
                          int first_row, float unit)
        : lines_(Read::kByKey ? attention.kv_len : attention.q_len), first_row_(first_row),
          unit_(kSumsShiftedEnds ? Read::kFactor * unit : 1) {
        line_step_ = head.line_step - Tile::kAcross * head.step;
        least_ = head.element(0, head.least);
        most_ = head.element(0, head.most);
        const long long index = head.index + Read::kQueryStep * first_row;
        below_ = bounded_distance(head.least - index - Tile::kMostGain);
        above_ = bounded_distance(head.most - index - Tile::kLeastGain);
    }

    __device__ bool is_beyond(int first_key) const {
        return is_below(first_key) || is_above(first_key);
    }

    template <int kThreads> static constexpr int kEnds = (Tile::kLines + kThreads - 1) / kThreads;
    // Loads the ends of the thread's lines; store() stores them later, so that all loads are under
    // way before the first is waited for.
    template <int kThreads>
    __device__ void load(int thread, int first_key, Element (&ends)[kEnds<kThreads>]) const {
        const Element* from = is_below(first_key) ? least_ : most_;
        const int first = Read::kByKey ? first_key : first_row_;
#pragma unroll
        for (int i = 0; i < kEnds<kThreads>; ++i) {
            const int line = first + min(thread + i * kThreads, Tile::kLines - 1);
            ends[i] = from[min(line, lines_ - 1) * line_step_];
        }
    }
    template <int kThreads>
    __device__ void store(int thread, unsigned stage,
                          const Element (&ends)[kEnds<kThreads>]) const {
#pragma unroll
        for (int i = 0; i < kEnds<kThreads>; ++i) {
            const int line = thread + i * kThreads;
            if (line < Tile::kLines)
                store_shared_element(stage + Tile::end_offset() + shifted_end_bytes(line),
                                     multiply_finite(flexc_to_float(ends[i]), unit_));
        }
    }

  private:
    __device__ bool is_below(int first_key) const {
        return Read::kHasLeast && Read::kKeyStep * first_key < below_;
    }
    __device__ bool is_above(int first_key) const {
        return Read::kHasMost && Read::kKeyStep * first_key > above_;
    }

    int lines_, first_row_;
    float unit_;
    long long line_step_;          // in elements, from line to line at the same index
    const Element *least_, *most_; // ends of the clamp in line 0
    int below_, above_;            // bounds of kKeyStep times a tile's first key
};

// Copies a thread's part of the ends of all reads.
template <int kThreads, int kRead = 0> class ShiftedEnds {
  public:
    __device__ ShiftedEnds(const AttentionArguments& attention, const ShiftedHeads<kRead>& heads,
                           int first_row, float unit)
        : end_(attention, heads.head, first_row, unit),
          rest_(attention, heads.rest, first_row, unit) {}

    __device__ bool are_beyond(int first_key) const {
        return end_.is_beyond(first_key) && rest_.are_beyond(first_key);
    }
    // Loads the ends of all reads, calls wait(), which waits until the stage is empty, and stores
    // them.
    template <typename Wait>
    __device__ void copy(int thread, int first_key, unsigned stage, Wait wait) const {
        typename ShiftedTile<kRead>::Element ends[ShiftedEnd<kRead>::template kEnds<kThreads>];
        end_.template load<kThreads>(thread, first_key, ends);
        rest_.copy(thread, first_key, stage, wait);
        end_.template store<kThreads>(thread, stage, ends);
    }

  private:
    ShiftedEnd<kRead> end_;
    ShiftedEnds<kThreads, kRead + 1> rest_;
};
template <int kThreads> class ShiftedEnds<kThreads, mod::ShiftedReads::kCount> {
  public:
    __device__ ShiftedEnds(const AttentionArguments&,
                           const ShiftedHeads<mod::ShiftedReads::kCount>&, int, float) {}
    __device__ bool are_beyond(int) const { return true; }
    template <typename Wait> __device__ void copy(int, int, unsigned, Wait wait) const { wait(); }
};

#endif

} // namespace sm90
