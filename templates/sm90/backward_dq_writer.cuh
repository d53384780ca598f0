// How a tile's dq gets from the warpgroups that compute it to its accumulator.
#pragma once

#include "common/dependence.cuh"
#include "common/select.h"
#include "sm90/backward_ordered_dq.cuh"
#include "sm90/backward_pieces.cuh"
#include "sm90/backward_query_gradient.cuh"

namespace sm90 {

// Warpgroups write pieces of dq to shared memory, and a thread of the producer warpgroup adds
// them to the accumulator.
struct DqThroughMemory {
    static constexpr bool kHasThread = true;
    // Hands over a piece of dq. Does not need the last arguments, the head's accumulator and the
    // tile of queries.
    static __device__ void write(const QueryPiece& piece, const QueryGradient& dq, unsigned step,
                                 float*, int) {
        piece.hand_over(dq, step);
    }
};
struct DqInAnyOrder : DqThroughMemory {
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 const BackwardTensorMaps& maps, Shared shared,
                                 const KeyTile& keys) {
        add_pieces(attention, arguments, maps, shared, keys);
    }
};
struct DqInOrder : DqThroughMemory {
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 const BackwardTensorMaps& maps, Shared shared,
                                 const KeyTile& keys) {
        add_pieces_in_order(attention, arguments, maps, shared, keys);
    }
};
// Adds dq from registers by atomics, where the shared memory of its pieces is taken by the gradient
// of a dense bias.
struct DqFromRegisters {
    static constexpr bool kHasThread = false;
    static __device__ void write(const QueryPiece& piece, const QueryGradient& dq, unsigned,
                                 float* accumulator, int tile) {
        piece.add(dq,
                  accumulator + static_cast<long long>(tile) * (mod::kQueryTile * mod::kHeadDim));
    }
    static __device__ void serve(const KernelArguments&, const mod::Arguments&,
                                 const BackwardTensorMaps&, Shared, const KeyTile&) {}
};
// In a kernel for gradients of buffers alone. The thread waits also where the block has no queries,
// so that the kernel ends after those ahead of it.
struct NoDq {
    static constexpr bool kHasThread = true;
    static __device__ void serve(const KernelArguments&, const mod::Arguments&,
                                 const BackwardTensorMaps&, Shared, const KeyTile&) {
        wait_for_kernel_ahead();
    }
};
using DqWriter = Select<kAreAlone, NoDq,
                        Select<kAddsBiasGradients, DqFromRegisters,
                               Select<mod::kDeterministic, DqInOrder, DqInAnyOrder>>>;

} // namespace sm90
