// Elements of one tensor on their way to the same places of another.
#pragma once

namespace ranks {

struct Move {
    // Bytes as they are, in units of so many; or elements, one or four at a time, in another type;
    // or added, both f32.
    enum Kind : int {
        kCopy1,
        kCopy2,
        kCopy4,
        kCopy8,
        kCopy16,
        kFromF16,
        kFromBf16,
        kToF16,
        kToBf16,
        kToF64,
        kAdd
    };
    static constexpr int kMostDims = 8;

    const char* from;
    char* to;
    long long units; // of all
    int rank;        // 1 to kMostDims
    Kind kind;
    bool by_fours;
    // Of units; strides in bytes.
    long long extents[kMostDims], from_strides[kMostDims], to_strides[kMostDims];
};

} // namespace ranks
