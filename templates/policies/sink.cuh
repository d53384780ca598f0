// Policy of a sink: a logit of a row that takes weight and has no value.
#pragma once

namespace defaults {

struct Sink {
    static constexpr bool kExists = false;
    // Returns the sink's logit of a query. Called once when a row ends; uses no values hoisted
    // before.
    template <typename Arguments>
    static __device__ float value(const Arguments&, int b, int h, int h_kv, int q) {
        return 0;
    }

    // For the kernel that passes over rows before a backward: whether rows' references
    // (sm80/row_references.cuh) are products, to which the scale is yet to be applied, or scores.
    static constexpr bool kReferencesAreProducts = false;
    // Calls add(address, d sink / d read) for each read of a grad buffer; the address is null
    // outside the buffer.
    template <typename Add, typename Arguments>
    static __device__ void visit_gradients(const Arguments&, int b, int h, int h_kv, int q, Add) {}
};

} // namespace defaults
