// Copies tiles of reads whose addresses are affine in q and kv to shared memory, line by line.
#pragma once

#include "sm90/copy_async.cuh"
#include "sm90/shifted_tile.cuh"

namespace sm90 {

#ifdef FLEXC_HAS_SHIFTED_READS

// Copies a thread's part of a tile of one read; kThreads threads copy the whole tile.
template <int kRead> class ShiftedCopy {
    using Tile = ShiftedTile<kRead>;
    using Read = typename Tile::Read;
    using Element = typename Tile::Element;
    static constexpr int kChunk = Tile::kChunk, kChunkElements = kChunk / Tile::kBytes;
    static constexpr int kLength = Tile::kLength;
    static constexpr int kMostChunks = kLength / kChunkElements + 1; // of a line in memory

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
        if constexpr (kThreads >= kMostChunks) {
            const Lines lines = lines_with_elements();
            if (is_between_elements(head, lines, lines_of_head))
                return copy_lines<kThreads>(thread, lines);
        }
        copy_chunks<kThreads>(thread);
    }

    // The same of a read without clamps, with zeros where a line has no elements. Called by one
    // warp, whose copies have arrived when it returns. stage: of kShape.bytes.
    __device__ void copy_with_zeros(unsigned stage) const {
        const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll 1
        for (int at = 16 * lane; at < Tile::kShape.bytes; at += 16 * 32)
            store_shared(stage + at, 0, 0, 0, 0);
        __syncwarp();
        if (!contiguous_) return copy_elements<32>(lane);
        copy_chunks<32>(lane);
        wait_for_copies();
        __syncwarp();
        // What lies in memory before the first element of a line has been copied with its chunk.
#pragma unroll 1
        for (int i = lane; i < lines_; i += 32) {
            const int low = low_of(i);
            if (low <= 0 || low >= kLength) continue;
            const int behind = behind_aligned(line(i)) / Tile::kBytes;
            for (int place = max(low - (low + behind) % kChunkElements, 0); place < low; ++place)
                store(i, place, Element{});
        }
    }
    // Whether all places of all lines have elements.
    __device__ bool are_inside() const {
        const int last = lines_ - 1;
        return max(low_of(0), low_of(last)) <= 0 && min(high_of(0), high_of(last)) >= kLength - 1;
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
        constexpr int kChunks = kMostChunks, kRows = kThreads / kChunks;
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

#endif

} // namespace sm90
