// Copies of reads whose addresses are affine in q and kv: threads of the producer warpgroup copy
// tiles of them to shared memory, line by line.
#pragma once

#include "common/select.h"
#include "sm90/copy_async.cuh"
#include "sm90/forward_dense_bias.cuh"
#include "sm90/forward_tasks.cuh"
#include "sm90/shifted_tile.cuh"

namespace sm90 {

class ShiftsBeforeProducts;
class ShiftsAfterProducts;

#ifdef FLEXC_HAS_SHIFTED_READS

constexpr int kShiftThreads = 96; // threads that copy

// Copies a thread's part of a tile of one read; kThreads threads copy the whole tile.
template <int kRead> class ShiftedCopy {
    using Tile = ShiftedTile<kRead>;
    using Read = typename Tile::Read;
    using Element = typename Tile::Element;
    static constexpr int kChunk = Tile::kChunk, kChunkElements = kChunk / Tile::kBytes;
    static constexpr int kLength = Tile::kLength;

  public:
    // to: the address of the stage. rows, keys: how many of the tile exist.
    __device__ ShiftedCopy(const ShiftedHead<kRead>& head, int first_row, int rows, int first_key,
                           int keys, unsigned to)
        : lines_(Read::kByKey ? keys : rows), contiguous_(head.step == 1), pitch_(head.pitch()),
          to_(to + head.origin()), step_(head.step), line_step_(head.line_step) {
        const int line = Read::kByKey ? first_key : first_row;
        const int position = Read::kByKey ? first_row : first_key;
        from_ = head.address(line, position);
        low_ = bounded_distance(head.least - head.index_of(line, position));
        high_ = bounded_distance(head.most - head.index_of(line, position));
    }

    // Whether the read is clamped. A line that has no element inside the clamp has only the one at
    // the clamp's end, in the place nearest to it.
    static constexpr bool kHasEnds = Read::kHasLeast || Read::kHasMost;
    template <int kThreads>
    static constexpr int kEnds = (Tile::kLines + kThreads - 1) / kThreads; // lines of a thread
    template <int kThreads> using Ends = Element[kEnds<kThreads>];
    // Loads the ends of the thread's lines; store_ends() stores them later, so that all loads are
    // under way before the first is waited for.
    template <int kThreads> __device__ void load_ends(int thread, Ends<kThreads>& ends) const {
#pragma unroll
        for (int i = 0; i < kEnds<kThreads>; ++i) {
            const int line = thread + i * kThreads;
            if (is_end(line))
                ends[i] = from_[line * line_step_ +
                                (is_below(line) ? low_of(line) : high_of(line)) * step_];
        }
    }
    template <int kThreads>
    __device__ void store_ends(int thread, const Ends<kThreads>& ends) const {
#pragma unroll
        for (int i = 0; i < kEnds<kThreads>; ++i) {
            const int line = thread + i * kThreads;
            if (is_end(line)) store(line, is_below(line) ? kLength - 1 : 0, ends[i]);
        }
    }

    // Copies the elements of the thread's part. lines_of_head: the number of lines in the head.
    template <int kThreads>
    __device__ void copy(int thread, const ShiftedHead<kRead>& head, int lines_of_head) const {
        if (!contiguous_) return copy_elements<kThreads>(thread);
        const Lines lines = lines_with_elements();
        if (is_between_elements(head, lines, lines_of_head))
            copy_lines<kThreads>(thread, lines);
        else
            copy_chunks<kThreads>(thread);
    }

  private:
    // Return the first and the last place of a line whose index has an element. Both are counted
    // from the line's beginning and may be outside of the tile; low > high where there is none.
    __device__ int low_of(int line) const { return low_ - Tile::kAcross * line; }
    __device__ int high_of(int line) const { return high_ - Tile::kAcross * line; }
    __device__ const char* line(int line) const {
        return reinterpret_cast<const char*>(from_ + line * line_step_);
    }
    static __device__ int behind_aligned(const char* from) {
        return static_cast<int>(reinterpret_cast<unsigned long long>(from) % kChunk);
    }

    // The first and the last line that have elements in the tile; first > last where none has.
    struct Lines {
        int first, last;
    };
    __device__ Lines lines_with_elements() const {
        const int by_low = Tile::kAcross * (low_ - (kLength - 1)), by_high = Tile::kAcross * high_;
        if (Tile::kAcross == 0) return {0, by_low <= 0 && by_high >= 0 ? lines_ - 1 : -1};
        return {max(min(by_low, by_high), 0), min(max(by_low, by_high), lines_ - 1)};
    }
    // Returns whether all that copy_lines() would read lies between elements of the head.
    __device__ bool is_between_elements(const ShiftedHead<kRead>& head, Lines lines,
                                        int lines_of_head) const {
        return line_step_ >= Tile::kAcross &&
               head.element(0, head.least) <= from_ + lines.first * line_step_ &&
               from_ + lines.last * line_step_ + kLength + kChunkElements <=
                   head.element(lines_of_head - 1, head.most) + 1;
    }
    // Copies lines with what lies before and behind their elements. A thread keeps its chunk and
    // steps down the lines; the last chunk is for lines that start behind an aligned place.
    template <int kThreads> __device__ void copy_lines(int thread, Lines lines) const {
        constexpr int kChunks = kLength / kChunkElements + 1, kRows = kThreads / kChunks;
        if (thread >= kRows * kChunks) return;
        const int first = lines.first + thread / kChunks, chunk = thread % kChunks * kChunk;
        unsigned long long from = reinterpret_cast<unsigned long long>(line(first)) + chunk;
        unsigned to = to_ + first * pitch_ + chunk;
        constexpr unsigned kBehind = kChunk - 1;
#pragma unroll 4
        for (int i = first; i <= lines.last; i += kRows) {
            copy_async(to & ~kBehind, reinterpret_cast<const void*>(
                                          from & ~static_cast<unsigned long long>(kBehind)));
            from += kRows * line_step_ * Tile::kBytes;
            to += kRows * pitch_;
        }
    }
    // Calls copy(line, chunk, from, to) for the thread's chunks; from, to: the line's first place.
    // A thread keeps its chunk and steps down the lines; the last chunk, which only lines that do
    // not start at aligned places reach, comes at the end.
    template <int kThreads, typename Copy>
    __device__ void visit_chunks(int thread, Copy copy) const {
        constexpr int kChunks = kLength / kChunkElements, kRows = kThreads / kChunks;
        if (thread < kRows * kChunks)
            visit_lines<kRows>(thread / kChunks, [&](int i, const char* from, unsigned to) {
                copy(i, thread % kChunks, from, to);
            });
        visit_lines<kThreads>(thread, [&](int i, const char* from, unsigned to) {
            if (behind_aligned(from) != 0) copy(i, kChunks, from, to);
        });
    }
    // Calls visit(line, from, to) for each kStep-th line from `first` on.
    template <int kStep, typename Visit> __device__ void visit_lines(int first, Visit visit) const {
        const char* from = line(first);
        unsigned to = to_ + first * pitch_;
#pragma unroll 1
        for (int i = first; i < lines_; i += kStep) {
            visit(i, from, to);
            from += kStep * line_step_ * Tile::kBytes;
            to += kStep * pitch_;
        }
    }
    // Copies the chunks that hold an element, without what comes behind the last element. What
    // comes before the first one in its 16 aligned bytes can be read, too.
    template <int kThreads> __device__ void copy_chunks(int thread) const {
        visit_chunks<kThreads>(thread, [&](int i, int chunk, const char* from, unsigned to) {
            const int ahead = chunk * kChunk - behind_aligned(from);
            const int first = ahead / Tile::kBytes;
            const int low = max(low_of(i), 0), high = min(high_of(i), kLength - 1);
            if (low <= high && high >= first && low < first + kChunkElements)
                copy_async(to + ahead, from + ahead,
                           min(high_of(i) - first + 1, kChunkElements + 0) * Tile::kBytes);
        });
    }
    template <int kThreads> __device__ void copy_elements(int thread) const {
#pragma unroll 1
        for (int i = thread / 32; i < lines_; i += kThreads / 32) {
#pragma unroll 4
            for (int place = thread % 32; place < kLength; place += 32)
                if (low_of(i) <= place && place <= high_of(i))
                    store(i, place, from_[i * line_step_ + place * step_]);
        }
    }
    __device__ void store(int line, int place, Element element) const {
        store_shared_element(to_ + line * pitch_ + place * Tile::kBytes, element);
    }
    __device__ bool is_below(int line) const {
        return Read::kHasLeast && low_of(line) > kLength - 1;
    }
    __device__ bool is_end(int line) const {
        return line < lines_ && (is_below(line) || (Read::kHasMost && high_of(line) < 0));
    }

    int lines_;
    bool contiguous_;
    unsigned pitch_, to_;
    long long step_, line_step_;
    const Element* from_; // of the first line's first place
    int low_, high_;      // indices that have an element, relative to that place's
};

// Copies a thread's part of a tile of all reads. Some elements are stored, others are copied
// asynchronously.
template <int kThreads, int kRead = 0>
__device__ inline void copy_shifts(const AttentionArguments& attention,
                                   const ShiftedHeads<kRead>& heads, int first_row, int first_key,
                                   unsigned to, int thread) {
    if constexpr (kRead < mod::ShiftedReads::kCount) {
        using Copy = ShiftedCopy<kRead>;
        const Copy copies(heads.head, first_row, min(attention.q_len - first_row, mod::kQueryTile),
                          first_key, min(attention.kv_len - first_key, mod::kKeyTile), to);
        // Ends are stored after those of the other reads are loaded: all loads run at once.
        typename Copy::template Ends<kThreads> ends;
        if constexpr (Copy::kHasEnds) copies.template load_ends<kThreads>(thread, ends);
        copies.template copy<kThreads>(thread, heads.head,
                                       mod::ShiftedRead<kRead>::kByKey ? attention.kv_len
                                                                       : attention.q_len);
        copy_shifts<kThreads, kRead + 1>(attention, heads.rest, first_row, first_key, to, thread);
        if constexpr (Copy::kHasEnds) copies.template store_ends<kThreads>(thread, ends);
    }
}

// Stages tiles in the ring of the dense bias, which no program with shifted reads has, and lines'
// ends in a ring of their own.
class StagedShifts : public NoDenseBias {
    static constexpr int kCopiers = kShiftThreads;

  public:
    static __device__ int producers(const ForwardTensorMaps&) { return kCopiers; }
    static __device__ void initialise(const Shared& shared, int producers) {
        shared.biases.initialise(2 * producers, kConsumerThreads / 32);
        shared.shifted_ends.initialise(producers / 32, kConsumerThreads / 32);
    }
    static __device__ void produce(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const ForwardTensorMaps&,
                                   const Shared& shared, int) {
        const int thread = static_cast<int>(threadIdx.x) - (128 - kCopiers);
        if (thread < 0 || thread >= kCopiers) return;
        Position<BiasRing> slot;
        Position<ShiftedEndRing> end_slot;
        visit_tasks(attention, arguments, shared, [&](const Task& task, const HeadPlace& place) {
            const ShiftedHeads<> heads(attention, arguments, place);
            KeyOrder order(task.begin, task.end);
#pragma unroll 1
            for (int next = task.end - 1; next >= task.begin; --next) {
                copy_ends(attention, heads, task, shared, thread, order, next, end_slot);
                if (next < task.begin) return;
                const int first_key = order.tile(next) * mod::kKeyTile;
                shared.biases.empty(slot.stage).wait(slot.parity ^ 1);
                copy_shifts<kCopiers>(attention, heads.again(), task.first_row, first_key,
                                      shared.biases.at(slot.stage), thread);
                // Arrives once for what the thread stored, and once when its copies are complete.
                shared.biases.full(slot.stage).arrive();
                arrive_after_copies(shared.biases.full(slot.stage));
                slot.advance();
                order.advance();
            }
        });
    }

  protected:
    // Finds whether a tile of keys has only ends, and waits for the stage of these or of the tile.
    __device__ void wait(Logits& logits, const Shared& shared, int block) {
        logits.find_reach_of_shifts(block * mod::kKeyStep);
        has_ends_ = logits.shifts().have_ends();
        if (has_ends_)
            shared.shifted_ends.full(end_slot_.stage).wait(end_slot_.parity);
        else
            shared.biases.full(slot_.stage).wait(slot_.parity);
    }
    // Returns the address of the stage that was waited for.
    __device__ unsigned stage(const Shared& shared) const {
        return has_ends_ ? shared.shifted_ends.at(end_slot_.stage) : shared.biases.at(slot_.stage);
    }
    __device__ void release(const Shared& shared) {
        if (has_ends_) {
            arrive_as_warp(shared.shifted_ends.empty(end_slot_.stage));
            end_slot_.advance();
        } else {
            arrive_as_warp(shared.biases.empty(slot_.stage));
            slot_.advance();
        }
    }

  private:
    // Copies the ends of the tiles from `next` on that have nothing else, and moves `next` to the
    // first other tile. `ends` is made here, as it would take registers where tiles are copied.
    static __device__ void copy_ends(const AttentionArguments& attention,
                                     const ShiftedHeads<>& heads, const Task& task,
                                     const Shared& shared, int thread, KeyOrder& order, int& next,
                                     Position<ShiftedEndRing>& slot) {
        if constexpr (kHasShiftedEnds) {
            const ShiftedEnds<kCopiers> ends(attention, heads.again(), task.first_row,
                                             1 / attention.scale);
#pragma unroll 1
            for (; next >= task.begin; --next) {
                const int first_key = order.tile(next) * mod::kKeyTile;
                if (!ends.are_beyond(first_key)) return;
                ends.copy(thread, first_key, shared.shifted_ends.at(slot.stage),
                          [&] { shared.shifted_ends.empty(slot.stage).wait(slot.parity ^ 1); });
                arrive_as_warp(shared.shifted_ends.full(slot.stage));
                slot.advance();
                order.advance();
            }
        }
    }

    Position<BiasRing> slot_;
    Position<ShiftedEndRing> end_slot_;
    bool has_ends_ = false;
};

// Starts accumulators with what is read, so that products are added to it. The next block's values
// are loaded under the exponentials of this one.
class ShiftsBeforeProducts : public StagedShifts {
  public:
    __device__ void start(Scores& scores, Logits& logits, const Shared& shared,
                          const ConsumerThread&, int block) {
        wait(logits, shared, block);
        logits.start(scores, stage(shared), block * mod::kKeyStep);
        release(shared);
    }
    __device__ void await_next(Logits& logits, const Shared& shared, int block, bool has_more) {
        if (has_more) wait(logits, shared, block);
    }
    // After the last block, what is loaded does not matter: see BiasBeforeProducts.
    __device__ void start_next(Scores& scores, Logits& logits, const Shared& shared,
                               const ConsumerThread&, const KeyOrder& order, int next,
                               bool has_more) {
        logits.start(scores, has_more ? stage(shared) : shared.keys.at(0),
                     (has_more ? order.after(next) : order.tile(next)) * mod::kKeyStep);
        pin(scores);
        if (has_more) release(shared);
    }
};

// Adds what is read to finished products, from the stage.
class ShiftsAfterProducts : public StagedShifts {
  public:
    __device__ void load(Logits& logits, const Shared& shared, const ConsumerThread&,
                         int first_key) {
        wait(logits, shared, first_key / mod::kKeyStep);
        logits.use_shifts(stage(shared));
    }
    __device__ void release_after_logits(const Shared& shared) { release(shared); }
};

#endif

using Biases =
    Select<kReadsShifts, Select<Logits::kStartsWithBias, ShiftsBeforeProducts, ShiftsAfterProducts>,
           DenseBias>;

} // namespace sm90
