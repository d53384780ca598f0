// How a tile of a read whose address is affine in q and kv lies in shared memory. Along a line,
// which is a query's or a key's, elements are side by side, in the order of their index.
#pragma once

#include "common/again.cuh"
#include "common/place.cuh"
#include "common/visible_band.cuh"
#include "mod.cuh"
#include "sm90/shifted_layout.h"
#include "sm90/warpgroup.cuh"

namespace sm90 {

#ifdef FLEXC_HAS_SHIFTED_READS

template <int kRead> struct ShiftedTile {
    using Read = mod::ShiftedRead<kRead>;
    using Element = typename Read::Element;
    static constexpr int kBytes = sizeof(Element), kChunk = ShiftedTileLayout::kChunk;
    static constexpr int kLines = Read::kByKey ? mod::kKeyTile : mod::kQueryTile;
    static constexpr int kLength = Read::kByKey ? mod::kQueryTile : mod::kKeyTile;
    static constexpr ShiftedTileLayout kShape = shifted_tile_layout(kLines, kLength, kBytes);
    // What the index gains from one position along a line to the next, and from line to line.
    static constexpr int kAlong = Read::kByKey ? Read::kQueryStep : Read::kKeyStep;
    static constexpr int kAcross = Read::kByKey ? Read::kKeyStep : Read::kQueryStep;
    static_assert(kAlong == 1 || kAlong == -1);
    // What it gains from the first query and key of a tile to others, at least and at most.
    static constexpr int kOfQueries = Read::kQueryStep * (mod::kQueryTile - 1);
    static constexpr int kOfKeys = Read::kKeyStep * (mod::kKeyTile - 1);
    static constexpr int kLeastGain =
        (kOfQueries < 0 ? kOfQueries : 0) + (kOfKeys < 0 ? kOfKeys : 0);
    static constexpr int kMostGain =
        (kOfQueries > 0 ? kOfQueries : 0) + (kOfKeys > 0 ? kOfKeys : 0);

    // Returns the tile's offset in a stage: behind the tiles of the reads before this one.
    static constexpr __device__ int offset() {
        if constexpr (kRead == 0)
            return 0;
        else
            return ShiftedTile<kRead - 1>::offset() + ShiftedTile<kRead - 1>::kShape.bytes;
    }
    // Returns the offset in a stage of lines' ends, likewise.
    static constexpr __device__ int end_offset() {
        if constexpr (kRead == 0)
            return 0;
        else
            return ShiftedTile<kRead - 1>::end_offset() +
                   shifted_end_bytes(ShiftedTile<kRead - 1>::kLines);
    }
    // Returns where a position, counted from the first of the tile, is in its line.
    static constexpr __device__ int place_of(int position) {
        return kAlong > 0 ? position : kLength - 1 - position;
    }
};

// One read in all tiles of a head. Lines and positions along them are counted in the tensors.
template <int kRead> class ShiftedHead {
    using Tile = ShiftedTile<kRead>;
    using Read = typename Tile::Read;

  public:
    __device__ ShiftedHead(const AttentionArguments& attention, const mod::Arguments& arguments,
                           const HeadPlace& place) {
        const auto address = [&](int line) {
            return visit_element(attention, arguments, place, Read::kByKey ? 0 : line,
                                 Read::kByKey ? line : 0,
                                 [](const mod::At& at) { return Read::address(at); });
        };
        first = address(0);
        line_step =
            (Read::kByKey ? attention.kv_len : attention.q_len) > 1 ? address(1) - first : 0;
        visit_element(attention, arguments, place, 0, 0, [&](const mod::At& at) {
            index = Read::index(at);
            least = Read::least(at);
            most = Read::most(at);
            step = Read::step(at);
        });
    }

    // Returns the same as values that the compiler knows nothing of: what it computes from them for
    // a tile takes no registers for longer.
    __device__ ShiftedHead again() const {
        ShiftedHead head = *this;
        head.first = computed_again(first);
        head.line_step = computed_again(line_step);
        head.index = computed_again(index);
        head.least = computed_again(least);
        head.most = computed_again(most);
        return head;
    }
    // Return the address of the element at the head of a line of a tile, and its index.
    __device__ const typename Tile::Element* address(int line, int position) const {
        return first + line * line_step + Tile::kAlong * step * first_of(position);
    }
    __device__ long long index_of(int line, int position) const {
        return index + Tile::kAcross * line + Tile::kAlong * first_of(position);
    }
    // Returns the address of the element of a line that has this index.
    __device__ const typename Tile::Element* element(int line, long long of_index) const {
        return first + line * line_step + (of_index - index - Tile::kAcross * line) * step;
    }
    // Return the pitch of lines in shared memory, and the offset of the first one. The first line
    // of each tile begins as many bytes behind an aligned place, since tiles start at multiples of
    // 16 positions.
    __device__ unsigned pitch() const {
        return Tile::kShape.least_pitch + behind_aligned(line_step * Tile::kBytes);
    }
    __device__ unsigned origin() const {
        return Tile::offset() + behind_aligned(static_cast<long long>(
                                    reinterpret_cast<unsigned long long>(address(0, 0))));
    }

    const typename Tile::Element* first; // of query 0 and key 0, which may be outside the buffer
    long long line_step, step;           // in elements: to the next line, and along it
    long long index, least, most;        // of the last dim: of `first`, and those that exist

  private:
    static __device__ int first_of(int position) {
        return Tile::kAlong > 0 ? position : position + Tile::kLength - 1;
    }
    static __device__ unsigned behind_aligned(long long bytes) {
        return static_cast<unsigned>(bytes) % Tile::kChunk;
    }
};

// The ShiftedHead of each read.
template <int kRead = 0, bool kIsLast = kRead == mod::ShiftedReads::kCount> struct ShiftedHeads {
    ShiftedHead<kRead> head;
    ShiftedHeads<kRead + 1> rest;

    __device__ ShiftedHeads(const AttentionArguments& attention, const mod::Arguments& arguments,
                            const HeadPlace& place)
        : head(attention, arguments, place), rest(attention, arguments, place) {}
    __device__ ShiftedHeads(const ShiftedHead<kRead>& head, const ShiftedHeads<kRead + 1>& rest)
        : head(head), rest(rest) {}
    __device__ ShiftedHeads again() const { return {head.again(), rest.again()}; }
};
template <int kRead> struct ShiftedHeads<kRead, true> {
    __device__ ShiftedHeads(const AttentionArguments&, const mod::Arguments&, const HeadPlace&) {}
    __device__ ShiftedHeads again() const { return *this; }
};

__device__ inline float load_shared_element(unsigned from, float) {
    return __uint_as_float(load_shared_word(from));
}
template <typename E> __device__ inline float load_shared_element(unsigned from, E type) {
    return flexc_first(type, load_shared_half(from));
}

// Clamps a distance to what 32 bits can hold, far from their ends.
__device__ inline int bounded_distance(long long x) {
    return static_cast<int>(
        flexc_min(flexc_max(x, -static_cast<long long>(kAnyDistance)), kAnyDistance + 0ll));
}

#endif

} // namespace sm90
