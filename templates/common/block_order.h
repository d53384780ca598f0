// Maps each block of Hopper's backward to a tile of keys. Included by device and host code.
#pragma once

#include "common/host_device.h"

struct HeadTile {
    int head, tile;
};

// Parameters of an order. head_bytes: bytes that blocks read and write for a head. short_tiles: the
// number of tiles at the end of the keys with less work than the others.
struct BlockOrder {
    int tiles, heads;
    long long head_bytes;
    int short_tiles;
};

// Heads are grouped: as many as share the L2 cache, and at least as many as fill the GPU. A group
// is walked tile by tile, so that its last blocks are those of its last tiles. The last group also
// gets the remaining heads, so that it is long enough for blocks to end at the same time. Short
// tiles of all heads come at the very end.
FLEXC_SHARED HeadTile tile_of_block(const BlockOrder& order, int block) {
    constexpr int kCacheBytes = 32 << 20, kBlocksAtOnce = 128;
    const int heads = order.heads, tiles = order.tiles - order.short_tiles;
    if (block >= heads * tiles) {
        const int rest = block - heads * tiles;
        return {rest % heads, tiles + rest / heads};
    }
    const int fitting =
        order.head_bytes > kCacheBytes ? 1 : kCacheBytes / static_cast<int>(order.head_bytes);
    const int filling = (kBlocksAtOnce + tiles - 1) / tiles;
    const int wanted = fitting > filling ? fitting : filling;
    const int together = wanted < heads ? wanted : heads;
    const int last = heads / together - 1;
    const int of_index = block / (together * tiles);
    const int group = of_index < last ? of_index : last;
    const int first_head = group * together;
    const int width = group == last ? heads - first_head : together;
    const int rest = block - first_head * tiles;
    return {first_head + rest % width, rest / width};
}
