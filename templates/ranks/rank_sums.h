// Adds the values of all ranks, in the order of ranks.
#pragma once

namespace ranks {

struct RankSums {
    const float* parts; // [ranks, count]
    float* to;
    long long count;
    int ranks;
    float factor; // of the sums
};

} // namespace ranks
