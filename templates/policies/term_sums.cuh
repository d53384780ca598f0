// Policy of gradients of the terms of sums, which a backward adds up over a tile for one term after
// another, as Hopper's does the sums themselves (ElementSums).
#pragma once

namespace defaults {

// Whose elements add to one address of a term.
enum class TermPlace { head, query, key, element };

struct TermSums {
    static constexpr bool kExist = false;
    // Words in which a warp keeps the sums of heads and keys until the queries of a head have
    // passed; 0 if each tile's go to memory.
    static constexpr int kWords = 0;
    // Of a generic kernel, values of an element that enter terms: Joint::carried.
    static constexpr int kCarried = 0;
    // A program that has such gradients has these, too:
    //
    // visit(visit): calls visit(terms) for the learned reads in the terms of each counter, with a
    //     type that has
    //     kReads, kCount: numbers of reads, and of terms (0: not known);
    //     kFirstWord: of the words of their sums;
    //     Counter, first(at), end(at);
    //     place(read), is_finite(read): where elements add, and whether their parts are finite;
    //     parts(at, carried, counter): what elements multiply d_modified with, for each read;
    //     factor(at, read, counter): by what sums of these are multiplied;
    //     address(at, read, counter): where they go; null outside the buffer.
    template <typename Visit> static __device__ void visit(Visit) {}
};

} // namespace defaults
