// Gradients of tables of which a tile meets few entries: sums in shared memory.
#pragma once

namespace defaults {

struct TableGradients {
    static constexpr int kCount = 0;
    // Of shared memory, for each warp that sums; sums over parts of diagonals have it too.
    static constexpr int kWords = 0;
    static constexpr bool kAreOfKinds = false; // it is one, by a kind of queries and one of keys
};

// Each of them; templates/README.md has its members.
template <int kTable> struct TableGradient;

} // namespace defaults
