// Where a tile's dq goes, from the warpgroups that have multiplied it to its accumulator.
#pragma once

#include "common/select.h"
#include "sm90/backward_ordered_dq.cuh"
#include "sm90/backward_pieces.cuh"
#include "sm90/backward_query_gradient.cuh"

namespace sm90 {

// Through shared memory; a thread of the producer's warpgroup adds pieces when they are there.
struct DqThroughMemory {
    static constexpr bool kHasThread = true;
    // accumulator: of the head. tile: of queries.
    static __device__ void give(const QueryPiece& piece, const QueryGradient& dq, unsigned step,
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
// By atomics from registers, where a dense bias's gradient has the memory.
struct DqFromRegisters {
    static constexpr bool kHasThread = false;
    static __device__ void give(const QueryPiece& piece, const QueryGradient& dq, unsigned,
                                float* accumulator, int tile) {
        piece.add(dq,
                  accumulator + static_cast<long long>(tile) * (mod::kQueryTile * mod::kHeadDim));
    }
    static __device__ void serve(const KernelArguments&, const mod::Arguments&,
                                 const BackwardTensorMaps&, Shared, const KeyTile&) {}
};
using DqSink = Select<kAddsBiasGradients, DqFromRegisters,
                      Select<mod::kDeterministic, DqInOrder, DqInAnyOrder>>;

} // namespace sm90
