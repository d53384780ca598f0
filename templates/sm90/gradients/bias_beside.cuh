// Gradients of dense biases in 16 bits, beside tables: the warps that sum tables from a tile of dS
// add it to memory, each its panel.
#pragma once

#include "sm90/gradients/dense_bias.cuh"
#include "sm90/gradients/warp_panel.cuh"

namespace sm90 {

template <> struct SumOf<mod::Sum::bias_beside> : NoSum {};

// Adds a panel element by element, to rows that begin anywhere and whose keys are `step` apart.
__device__ inline void add_elements(const BiasRows<float>& to, long long step,
                                    const WarpPanel& panel, int rows, int keys) {
    const int lane = WarpPanel::lane();
    float* next = to.corner + panel.first_query * to.step + 2 * lane * step;
#pragma unroll 1
    for (int row = 0; row < rows; ++row, next += to.step) {
        const unsigned pair = load_shared_word(panel.d_scores + row * kRowBytes +
                                               (lane / 4 ^ row % 8) * 16 + lane % 4 * 4);
        add_float_if(2 * lane < keys, next, flexc_first(mod::Element{}, pair));
        add_float_if(2 * lane + 1 < keys, next + step, flexc_second(mod::Element{}, pair));
    }
}

// Adds a panel to the gradients of dense biases.
__device__ inline void add_biases(const KernelArguments& attention, const mod::Arguments& arguments,
                                  const HeadPlace& place, const WarpPanel& panel) {
    const int rows = min(attention.q_len - panel.first_query, WarpPanel::kRows);
    const int keys = attention.kv_len - panel.first_key;
    visit_gradients([&](auto gradient) {
        constexpr int kGradient = decltype(gradient)::kValue;
        if constexpr (mod::ReadGradients::sum_of(kGradient) == mod::Sum::bias_beside) {
            if (rows <= 0 || keys <= 0) return;
            const auto address = [&](const mod::At& at) {
                // Never an exact::Sum: gradients that need one are summed in other ways.
                return reinterpret_cast<float*>(mod::ReadGradients::address(at, kGradient));
            };
            const auto to =
                BiasRows<float>::of(attention, arguments, place, panel.first_key, address);
            const long long step = keys > 1 ? visit_element(attention, arguments, place, 0,
                                                            panel.first_key + 1, address) -
                                                  to.corner
                                            : 1;
            const bool are_aligned = reinterpret_cast<unsigned long long>(to.corner) % 16 == 0 &&
                                     to.step % 4 == 0 && step == 1;
            if (are_aligned && keys % 4 == 0)
                add_panel<WarpPanel::kRows>(to, panel.first_query, rows, keys, panel.d_scores,
                                            false);
            else
                add_elements(to, step, panel, rows, keys);
        }
    });
}

} // namespace sm90
