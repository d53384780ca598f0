// Clears elements of gradients of shifted reads that belong to no tile which a block visits: the
// rest of lines beside the tensors' queries and keys, and tiles in which all is hidden. So nobody
// has to clear these gradients before.
#pragma once

#include "sm90/backward_heads.cuh"
#include "sm90/gradients/shifted_lines.cuh"

namespace sm90 {

// Called by one warp: writes zeros to `count` elements.
__device__ inline void clear_floats(float* to, int count) {
    constexpr float kZeros[4] = {};
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int behind = static_cast<int>(reinterpret_cast<unsigned long long>(to) / 4 % 4);
    const int lead = min((4 - behind) % 4, count), fours = (count - lead) / 4;
    store_float_if(lane < lead, to + lane, 0);
#pragma unroll 1
    for (int i = lane; i < fours; i += 32)
        store_floats(to + lead + 4 * i, kZeros);
    const int last = lead + 4 * fours + lane;
    store_float_if(last < count, to + last, 0);
}

// What one of two warps of a block clears of one gradient and head. The block of a tile of keys
// clears its keys for all queries, and of the rest of lines those of its keys, or its share of
// those of queries.
template <int kGradient> class ShiftedRest {
    using To = mod::ShiftedGradient<kGradient>;
    using Lines = ShiftedLines<kGradient>;

  public:
    __device__ ShiftedRest(const AttentionArguments& attention, const mod::Arguments& arguments,
                           const HeadPlace& place, const KeyTile& keys, int warp)
        : attention_(attention), keys_(keys), warp_(warp),
          lines_(attention, arguments, place, 0, 0) {}

    static __device__ bool is_cleared(const AttentionArguments& attention) {
        return !mod::Mask::kHasBlockMask && !To::kHasLeast && !To::kHasMost &&
               stores_shifted<kGradient>(attention);
    }

    // Called with each tile of queries that the block visits: clears a part of the rest of lines.
    __device__ void clear_with(int tile, TileRange tiles) const {
        clear_part(tile - tiles.begin, tiles.end - tiles.begin);
    }
    // Called after these: clears what is in no such tile.
    __device__ void clear_others(TileRange tiles) const {
        if (tiles.begin == tiles.end) clear_part(0, 1);
        clear_queries(0, tiles.begin * mod::kQueryTile);
        clear_queries(tiles.end * mod::kQueryTile, attention_.q_len);
    }

  private:
    __device__ void clear_part(int part, int parts) const {
        const int tiles = (attention_.kv_len + mod::kKeyTile - 1) / mod::kKeyTile;
        const int share = (attention_.q_len + tiles - 1) / tiles;
        const int first =
            To::kByKey ? keys_.first_kv : min(keys_.index() * share, attention_.q_len);
        const int count =
            (To::kByKey ? end_of_keys() : min(first + share, attention_.q_len)) - first;
        const int length = To::kByKey ? attention_.q_len : attention_.kv_len;
        const int begin = first + count * part / parts, end = first + count * (part + 1) / parts;
        clear(begin, end, -kAnyDistance, 0);
        clear(begin, end, length, kAnyDistance);
    }
    // Clears the block's keys for these queries.
    __device__ void clear_queries(int first, int end) const {
        if (To::kByKey)
            clear(keys_.first_kv, end_of_keys(), first, end);
        else
            clear(first, end, keys_.first_kv, end_of_keys());
    }
    __device__ int end_of_keys() const {
        return min(keys_.first_kv + mod::kKeyTile, attention_.kv_len);
    }
    // Clears positions [from, to) of lines [first, end).
    __device__ void clear(int first, int end, int from, int to) const {
        const int least = Lines::kAlong > 0 ? from : 1 - to;
        const int most = Lines::kAlong > 0 ? to - 1 : -from;
        if (first >= end || least > most) return;
        const int across[2] = {Lines::kAcross * first, Lines::kAcross * (end - 1)};
        if (least + min(across[0], across[1]) > lines_.high() ||
            most + max(across[0], across[1]) < lines_.low())
            return;
#pragma unroll 1
        for (int i = first + warp_; i < end; i += kSumWarps) {
            const int begin = max(least, lines_.low() - Lines::kAcross * i);
            const int last = min(most, lines_.high() - Lines::kAcross * i);
            if (begin <= last)
                clear_floats(lines_.line(i) + Lines::kAcross * i + begin, last - begin + 1);
        }
    }

    const AttentionArguments& attention_;
    const KeyTile& keys_;
    const int warp_;
    const Lines lines_;
};

// Calls visit(ShiftedRest) for every gradient that is cleared.
template <int kGradient = 0, typename Visit>
__device__ inline void visit_rests(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const HeadPlace& place,
                                   const KeyTile& keys, int warp, Visit visit) {
    if constexpr (kGradient < mod::ShiftedGradients::kCount) {
        if (ShiftedRest<kGradient>::is_cleared(attention)) {
            read_again(arguments);
            visit(ShiftedRest<kGradient>(attention, arguments, place, keys, warp));
        }
        visit_rests<kGradient + 1>(attention, arguments, place, keys, warp, visit);
    }
}

} // namespace sm90
