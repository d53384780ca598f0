// Hopper's version of forward_few.cu: a warpgroup computes blocks of more than 16 rows; smaller
// ones are computed by warps, as there.
#include "mod.cuh"

#include "sm80/few_by_warps.cuh"
#include "sm80/few_merging.cuh"
#include "sm90/few_by_warpgroup.cuh"

using namespace sm80;

static_assert(few_bytes(kSizes, 1) <= mod::kSharedBytes);
static_assert(sm90::kFewLayout.bytes <= mod::kSharedBytes);

extern "C" __global__ void __launch_bounds__(32 * kBlockWarps, 3)
    flexc_forward_few(const __grid_constant__ KernelArguments attention,
                      const __grid_constant__ mod::Arguments arguments) {
    let_next_start();
    with_few_block(attention, arguments, [&](const FewBlock& block, int tiles) {
        if (tiles > 1)
            sm90::attend_by_warpgroup(block);
        else
            attend_by_warps(block, 1, 1);
    });
}
