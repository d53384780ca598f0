// A loop over numbers that are known when a kernel is compiled.
#pragma once

template <int kIndex> struct StaticIndex {
    static constexpr int kValue = kIndex;
};
// visit(StaticIndex<i>) for 0 <= i < kCount.
template <int kCount, int kFirst = 0, typename Visit>
__device__ inline void static_for(Visit visit) {
    if constexpr (kFirst < kCount) {
        visit(StaticIndex<kFirst>{});
        static_for<kCount, kFirst + 1>(visit);
    }
}
