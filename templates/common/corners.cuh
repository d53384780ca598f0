// The corners of a tile, which classify most tiles that interval arithmetic cannot. Included by
// host tests too.
#pragma once

// Whether one corner is visible and another is hidden, so that the tile is partial. visible(q, kv)
// is always called for all four corners, so that their loads overlap.
template <typename Visible>
__device__ inline bool corners_differ(int first_q, int last_q, int first_kv, int last_kv,
                                      Visible visible) {
    const bool a = visible(first_q, first_kv), b = visible(first_q, last_kv);
    const bool c = visible(last_q, first_kv), d = visible(last_q, last_kv);
    return (a != b) | (a != c) | (a != d);
}
