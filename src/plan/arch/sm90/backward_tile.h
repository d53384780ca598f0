// A tile of Hopper's fused backward: how it sums gradients, what it keeps in shared memory, and the
// registers of its threads.
#pragma once

#include "plan/arch/sm90/sm90.h"
#include "plan/kernel.h"
#include "plan/kernel_request.h"
#include "sm90/register_form.h"

namespace flexc::plan::sm90 {

struct FusedTile {
    int query_tile = 0;
    passes::TileSums sums = kNoTileSums;
    BackwardStorage storage;
    int way_to_sum = 0;          // of ways_to_sum(): those of larger numbers are slower
    bool has_slower_way = false; // of which another follows
    ::sm90::RegisterForm form = ::sm90::RegisterForm::keeps_all;
    int saving_forms = 0; // number of forms of the same tile after this one

    // Whether tables, or grids, are summed in shared memory.
    bool sums_tables() const { return storage.table_words > 0 || storage.entries > 0; }
    bool has_dense_bias() const { return storage.bias_stages > 0 || sums.adds_bias_gradients; }
};

// Returns what is read and summed by a 2-D key index. Nothing if warpgroups share keys, because no
// shared memory is left to stage it.
passes::Index2dReads index_2d_of(const KernelRequest& request);

// Returns the sizes that determine the kernel's shared memory. It reserves the maximum for values
// of a query, because what a program needs there is known only when its text is emitted.
::sm90::BackwardShape shape_of(const KernelRequest& request, const FusedTile& tile);
// Whether values of a query are worth staging: where other warps sum tiles, the warp that loads
// queries stages them, and only what is read for them, as elements compute the rest as fast.
bool should_stage_rows(const KernelRequest& request, const ::sm90::BackwardShape& shape);
// Returns the shape with shared memory in which the block's warps combine their sums by query; the
// shape itself if these do not all fit.
::sm90::BackwardShape with_query_sums(const KernelRequest& request,
                                      const ::sm90::BackwardShape& shape);
bool fits(const KernelRequest& request, const ::sm90::BackwardShape& shape);

// Returns the accumulators of a thread: two tiles of scores, dk and dv.
int accumulators_of(const KernelRequest& request, const FusedTile& tile);

} // namespace flexc::plan::sm90
