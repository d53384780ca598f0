// A tile's corners, which tell of most tiles that intervals leave open. Included by tests on the
// host too.
#pragma once

// Whether one is visible and another hidden, so that the tile is partial: of visible(q, kv), which
// is asked for all four whatever it says, so that what it reads arrives together.
template <typename Visible>
__device__ inline bool corners_differ(int first_q, int last_q, int first_kv, int last_kv,
                                      Visible visible) {
    const bool a = visible(first_q, first_kv), b = visible(first_q, last_kv);
    const bool c = visible(last_q, first_kv), d = visible(last_q, last_kv);
    return (a != b) | (a != c) | (a != d);
}
