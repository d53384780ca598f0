// Copies, converts or adds the elements of one tensor to those of another.
#pragma once

namespace ranks {

struct Move {
    // kCopyN: bytes unchanged, in units of N. kFrom, kTo: converts elements, one or four at a time.
    // kAdd: adds, both f32.
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
    // In units; strides in bytes.
    long long extents[kMostDims], from_strides[kMostDims], to_strides[kMostDims];
};

// The moves of one launch: as many as a kernel's arguments have room for.
struct Moves {
    static constexpr int kMost = 16;
    Move all[kMost];
};

} // namespace ranks
