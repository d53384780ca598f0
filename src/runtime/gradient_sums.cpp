#include "runtime/gradient_sums.h"

#include <algorithm>
#include <bit>

#include "common/exact_sum.h"
#include "common/rounding.h"
#include "support/amounts.h"

namespace flexc::runtime {

namespace {

// Calls visit(gradient, its sums) for each gradient.
template <typename Visit>
Result<void> for_each(const std::vector<plan::ExactGradient>& gradients, const Call& call,
                      void* sums, Visit visit) {
    auto* at = static_cast<exact::Sum*>(sums);
    for (const plan::ExactGradient& gradient : gradients) {
        if (Result<void> done = visit(gradient, at); !done) return done;
        at += call.gradients[gradient.buffer].elements();
    }
    return {};
}

// Launches a kernel whose only argument has a count of elements, in a grid-stride loop.
template <typename Argument>
Result<void> launch_over(Argument argument, const plan::KernelConfig& config,
                         const cuda::Function& kernel, Stream stream) {
    constexpr long long kMostBlocks = 4096;
    const long long threads = config.block.threads();
    if (argument.count == 0) return {};
    const std::array<void*, 1> arguments = {&argument};
    const auto blocks = std::min((argument.count + threads - 1) / threads, kMostBlocks);
    return kernel.launch({.x = static_cast<unsigned>(blocks)},
                         {.x = static_cast<unsigned>(threads)}, 0, stream.handle, arguments);
}

} // namespace

int heads_of_launch(passes::HeadsAtOnce at_once, const AttentionArguments& attention) {
    switch (at_once) {
    case passes::HeadsAtOnce::all: break;
    case passes::HeadsAtOnce::of_batch: return attention.kv_heads;
    case passes::HeadsAtOnce::one: return 1;
    }
    return attention.batch * attention.kv_heads;
}

Words::Words(std::span<const std::uint64_t> words) : count_(words.size()) {
    std::ranges::copy(words, words_.begin());
}

void name_exact_sums(const std::vector<plan::ExactGradient>& gradients, const Call& call,
                     void* sums, Words& words) {
    (void)for_each(gradients, call, sums,
                   [&](const plan::ExactGradient& gradient, exact::Sum* own) -> Result<void> {
                       words.set(gradient.word, std::bit_cast<std::uintptr_t>(own));
                       return {};
                   });
}

Result<void> round_exact_sums(const std::vector<plan::ExactGradient>& gradients, const Call& call,
                              void* sums, const plan::KernelConfig& config,
                              const cuda::Function& kernel) {
    return for_each(gradients, call, sums,
                    [&](const plan::ExactGradient& gradient, exact::Sum* own) -> Result<void> {
                        const TensorView& view = call.gradients[gradient.buffer];
                        exact::Rounding rounding{own, static_cast<float*>(view.data),
                                                 view.elements()};
                        return launch_over(rounding, config, kernel, call.stream);
                    });
}

Result<void> round_sums(const TensorView& from, const TensorView& to,
                        const plan::KernelConfig& config, const cuda::Function& kernel,
                        Stream stream) {
    const auto type = to.dtype == DType::f16    ? Rounding::kF16
                      : to.dtype == DType::bf16 ? Rounding::kBf16
                                                : Rounding::kF64;
    return launch_over(
        Rounding{static_cast<const float*>(from.data), to.data, from.elements(), type}, config,
        kernel, stream);
}

bool are_stored_first(const plan::StoredGradients& stored, const Call& call) {
    const AttentionArguments& attention = call.attention;
    const std::int64_t heads = stored.sharing.heads   ? 1
                               : stored.sharing.group ? attention.kv_heads
                                                      : attention.heads;
    const std::int64_t elements = (stored.sharing.batches ? 1 : std::int64_t{attention.batch}) *
                                  heads * attention.q_len * attention.kv_len;
    return !call.accumulate_gradients && !stored.buffers.empty() &&
           std::ranges::all_of(stored.buffers, [&](std::uint32_t buffer) {
               return call.gradients[buffer].elements() == elements;
           });
}

bool are_lines_stored(const plan::StoredGradients& stored, const Call& call, std::uint32_t buffer) {
    const auto lines =
        std::ranges::find(stored.lines, buffer, &plan::StoredGradients::Lines::buffer);
    if (lines == stored.lines.end()) return false;
    const AttentionArguments& attention = call.attention;
    const TensorView& gradient = call.gradients[buffer];
    const std::int64_t positions = lines->by_key ? attention.kv_len : attention.q_len;
    return attention.q_len > 0 && attention.kv_len > 0 &&
           gradient.elements() == std::int64_t{attention.batch} * attention.heads * positions *
                                      gradient.shape[gradient.rank - 1];
}

} // namespace flexc::runtime
