// Says which sums of gradients two warps of the producer warpgroup find in the tile of dS.
#pragma once

#include "common/select.h"
#include "sm90/gradients/distance.cuh"
#include "sm90/gradients/grid.cuh"
#include "sm90/gradients/grid_rows.cuh"
#include "sm90/gradients/index_2d_mma.cuh"
#include "sm90/gradients/kinds.cuh"
#include "sm90/gradients/shifted.cuh"
#include "sm90/gradients/table.cuh"

namespace sm90 {

struct NoTileWarps {
    static __device__ void serve(const KernelArguments&, const mod::Arguments&, Shared,
                                 const KeyTile&, int) {}
};
struct DistanceWarps {
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warp) {
        if (warp >= 2) sum_distances(attention, arguments, shared, keys, warp == 3);
    }
};
struct GridWarps {
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warp) {
        if (warp >= 2) sum_grids(attention, arguments, shared, keys, warp - 2);
    }
};
struct GridRowWarps {
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warp) {
        if (warp >= 2) sum_grid_rows(attention, arguments, shared, keys, warp - 2);
    }
};
struct Index2dWarps {
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warp) {
        if (warp >= 2) sum_index_2d(attention, arguments, shared, keys, warp - 2);
    }
};
struct TableWarps {
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warp) {
        if (warp >= 2) sum_tables(attention, arguments, shared, keys, warp - 2);
    }
};
// A template, because most programs have no such table.
template <int kTable> struct KindWarps {
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warp) {
        if (warp >= 2) sum_kinds<kTable>(attention, arguments, shared, keys, warp - 2);
    }
};
struct ShiftWarps {
    static __device__ void serve(const KernelArguments& attention, const mod::Arguments& arguments,
                                 Shared shared, const KeyTile& keys, int warp) {
        if (warp >= 2) sum_shifts(attention, arguments, shared, keys, warp - 2);
    }
};
using TileWarps =
    Select<(mod::GridGradients::kPlaces > 0), Select<kGridIsAligned, GridWarps, GridRowWarps>,
           Select<mod::ReadGradients::kSumsDistances, DistanceWarps,
                  Select<kSumsIndex2d, Index2dWarps,
                         Select<kMultipliesKinds, KindWarps<mod::TableGradients::kOfKinds>,
                                Select<(mod::TableGradients::kCount > 0 && !kSumsEntries),
                                       TableWarps,
                                       Select<(mod::ShiftedGradients::kCount > 0), ShiftWarps,
                                              NoTileWarps>>>>>>;

} // namespace sm90
