// Loops over compile-time constants.
#pragma once

template <int kIndex> struct StaticIndex {
    static constexpr int kValue = kIndex;
};
// Calls visit(StaticIndex<i>) for 0 <= i < kCount.
template <int kCount, int kFirst = 0, typename Visit>
__device__ inline void static_for(Visit visit) {
    if constexpr (kFirst < kCount) {
        visit(StaticIndex<kFirst>{});
        static_for<kCount, kFirst + 1>(visit);
    }
}

// The indices 0 ... kCount - 1 as template arguments, for loops in which the captures of a lambda
// would take registers: a function passes IndicesTo<kCount>{} to another with a parameter
// Indices<kIndices...>, which calls a third one for each index.
template <int... kIndices> struct Indices {};
template <int kCount, int... kIndices> struct IndicesOf {
    using Type = typename IndicesOf<kCount - 1, kCount - 1, kIndices...>::Type;
};
template <int... kIndices> struct IndicesOf<0, kIndices...> {
    using Type = Indices<kIndices...>;
};
template <int kCount> using IndicesTo = typename IndicesOf<kCount>::Type;
