// The order in which tiles of keys add to dq when results must be deterministic. Included by device
// and host code.
#pragma once

#include "common/host_device.h"

// Returns how many earlier tiles of keys add to a tile of queries before this one does, if visible
// elements have kv - q >= low. Both ends of the visible range increase with the keys, so these are
// adjacent tiles: all from the first one whose last key is visible to the tile's first query.
FLEXC_SHARED int earlier_key_tiles(int own_tile, int key_tile, int first_query, int low) {
    const int first_kv = first_query + low;
    return own_tile - (first_kv > 0 ? first_kv / key_tile : 0);
}
