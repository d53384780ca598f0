// Forms of Hopper's fused backward, each with fewer registers than the one before, and slower. The
// host compiles a kernel in the next form if it spilled. Included by device and host code.
#pragma once

namespace sm90 {

enum class RegisterForm : int {
    keeps_all,
    // The producer's warps spilled: they compute values of queries in parts that share no
    // registers, and read the number of heads again.
    saves_beside,
    // The consumer warps spilled: what takes a few instructions is computed again instead of kept
    // (a thread's place, a tile's first key, the head), and the mask is evaluated after the
    // products.
    saves_all,
    // Scores are modified for a few pairs of queries at a time, behind branches that ptxas does not
    // merge.
    modifies_in_parts,
    // Where a derivative is folded into P: references are subtracted in tiles that have some, by
    // code of their own. It may spill; what usual tiles run keeps no registers for references.
    subtracts_apart,
    // Where elements take roots, which no branch keeps apart: as modifies_in_parts, for one pair of
    // queries at a time.
    modifies_by_pairs
};

} // namespace sm90
