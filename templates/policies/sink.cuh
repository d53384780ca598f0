// A sink: a logit of a row that takes weight and has no value.
#pragma once

namespace defaults {

struct Sink {
    static constexpr bool kExists = false;
    // Computed from nothing, where a row ends.
    template <typename Arguments>
    static __device__ float value(const Arguments&, int b, int h, int h_kv, int q) {
        return 0;
    }

    // The kernel before a backward that passes over rows. What rows' references are
    // (sm80/row_references.cuh): products, to which the scale has yet to come, or scores.
    static constexpr bool kReferencesAreProducts = false;
    // add(address, d sink / d read) for each read of a grad buffer, null outside the buffer.
    template <typename Add, typename Arguments>
    static __device__ void visit_gradients(const Arguments&, int b, int h, int h_kv, int q, Add) {}
};

} // namespace defaults
