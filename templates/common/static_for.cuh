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

// 0 ... kCount - 1 as arguments of a template, where what a lambda refers to would take registers:
// a function of IndicesTo<kCount>, with Indices<kIndices...> as its parameter, calls another for
// each of kIndices.
template <int... kIndices> struct Indices {};
template <int kCount, int... kIndices> struct IndicesOf {
    using Type = typename IndicesOf<kCount - 1, kCount - 1, kIndices...>::Type;
};
template <int... kIndices> struct IndicesOf<0, kIndices...> {
    using Type = Indices<kIndices...>;
};
template <int kCount> using IndicesTo = typename IndicesOf<kCount>::Type;
