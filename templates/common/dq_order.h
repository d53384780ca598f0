// In which order tiles of keys add to what they share. Included by device and host code.
#pragma once

#include "common/host_device.h"

// How many tiles of earlier keys visit a tile of queries that this one visits too, when visible
// elements have kv - q >= low. Both ends of what is visited rise with the keys, so that these are
// neighbours: all from the first whose last key can see the tile's first query.
FLEXC_SHARED int earlier_key_tiles(int own_tile, int key_tile, int first_query, int low) {
    const int first_kv = first_query + low;
    return own_tile - (first_kv > 0 ? first_kv / key_tile : 0);
}
