// Runs after Hopper's backward kernel: computes the gradients of what is read by distance, or
// enters values by distance, from the sums of dS over diagonals or over parts of them. One thread
// handles one distance of one head.
#include "mod.cuh"

#include "sm90/gradients/distance_sums.cuh"
#include "sm90/grid_digits.cuh"
#include "sm90/warp_additions.cuh"

namespace {
constexpr int kThreads = 32 * mod::kWarps;
static_assert(kThreads == kTabulatedStep);
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_fold_sm90(const __grid_constant__ sm90::KernelArguments attention,
                             const __grid_constant__ mod::Arguments arguments) {
    const auto distance = sm90::Entry::of_distance(attention, static_cast<int>(blockIdx.x));
    const int count = sm90::distance_count(attention);
    const sm90::DistanceSum* const sums =
        sm90::distance_sums(attention) +
        static_cast<long long>(distance.head) * sm90::kGridForms * count + distance.index +
        sm90::kGridShift;
#pragma unroll 1
    for (int form = 0; form < sm90::kGridForms; ++form) {
        const float sum =
            distance.exists ? flexc_value(sums[static_cast<long long>(form) * count]) : 0;
        sm90::Entry entry = distance;
        // A sum of 0 needs no element of this form, and there may be none.
        if (mod::GridGradients::kPlaces > 0 && sum != 0)
            sm90::find_form(entry, attention, arguments, form);
        entry.visit(attention, arguments, [&](const mod::At& at) {
#pragma unroll
            for (int gradient = 0; gradient < mod::kGradients; ++gradient)
                if (mod::ReadGradients::sum_of(gradient) == mod::Sum::distance)
                    // A sum of 0 adds 0, since the factor of a diagonal that is hidden as a whole
                    // may be infinite or NaN.
                    sm90::add_by_warp(mod::ReadGradients::address(at, gradient),
                                      sum == 0 ? 0 : sum * mod::distance_factor(at, gradient));
            // A block's distances are of one head, and terms mostly add to one address for each.
            if (mod::TermGradients::kExist && __syncthreads_or(sum != 0))
                mod::TermGradients::visit(at, [&](auto* to, float factor, bool is_of_head) {
                    const float product = sum == 0 ? 0 : sum * factor;
                    if (is_of_head)
                        sm90::add_by_block<mod::kWarps>(to, product);
                    else
                        sm90::add_by_warp(to, product);
                });
        });
    }
}
