// The variants of a pass: kernels for all calls, and for some that others serve too, or cannot.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "flexc/result.h"
#include "plan/kernel.h"
#include "plan/kernel_request.h"

namespace flexc::plan {

class TargetProgram;

// Which calls a variant of a pass can serve.
enum class Calls : std::uint8_t {
    usual,            // tensors that TMA can address, if kernels need that; aligned dense biases;
                      // tables of which a block has room for all entries, where kernels need that
    large_tables,     // like usual, but there is more room, or none is needed
    short_sequences,  // many sequences of at most SequenceForm::most_rows rows
    few_queries,      // few queries, with keys that blocks divide: are_few_faster()
    outside,          // like usual, but not of Mod::inside_calls
    unaligned_biases, // like these, but rows of dense biases need not be aligned
    any               // tensors of any strides and alignment, any scale and offset
};

// Whether a variant is faster for calls of some sizes, which others can serve too.
constexpr bool is_by_size(Calls calls) {
    return calls == Calls::short_sequences || calls == Calls::few_queries;
}

// One way to compute a pass. Its kernels are compiled for the best candidate that does not spill.
struct Variant {
    Calls calls = Calls::usual;
    KernelRequest request;
    std::vector<KernelConfig> candidates; // of the main kernel
    // The program of these kernels, if it is not the plan's: that of calls that keep indices inside
    // or, where several kernels share the gradients of buffers, that of this one's. Then also the
    // kernels that sum the others' after it. BufferGradients::are_alone of these.
    std::shared_ptr<const TargetProgram> program = nullptr;
    std::vector<Variant> further = {};
};

// Returns the program of a variant's kernels.
inline const TargetProgram& program_of(const Variant& variant, const TargetProgram& of_plan) {
    return variant.program != nullptr ? *variant.program : of_plan;
}

Result<std::vector<Variant>> forward_variants(const TargetProgram& program);
Result<std::vector<Variant>> backward_variants(const TargetProgram& program);

} // namespace flexc::plan
