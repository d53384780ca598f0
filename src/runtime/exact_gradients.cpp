#include "runtime/exact_gradients.h"

#include <algorithm>
#include <bit>

#include "common/exact_sum.h"

namespace flexc::runtime {

namespace {

// visit(gradient, its sums)
template <typename Visit>
Result<void> for_each(const std::vector<ExactGradient>& gradients, const Call& call, void* sums,
                      Visit visit) {
    auto* at = static_cast<exact::Sum*>(sums);
    for (const ExactGradient& gradient : gradients) {
        if (Result<void> done = visit(gradient, at); !done) return done;
        at += call.gradients[gradient.buffer].elements();
    }
    return {};
}

} // namespace

int HeadTurns::heads_of_launch(const AttentionArguments& attention) const {
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

std::size_t exact_sum_bytes(const std::vector<ExactGradient>& gradients, const Call& call) {
    std::size_t elements = 0;
    for (const ExactGradient& gradient : gradients)
        elements += static_cast<std::size_t>(call.gradients[gradient.buffer].elements());
    return elements * sizeof(exact::Sum);
}

void name_exact_sums(const std::vector<ExactGradient>& gradients, const Call& call, void* sums,
                     Words& words) {
    (void)for_each(gradients, call, sums,
                   [&](const ExactGradient& gradient, exact::Sum* own) -> Result<void> {
                       words.set(gradient.word, std::bit_cast<std::uintptr_t>(own));
                       return {};
                   });
}

Result<void> round_exact_sums(const std::vector<ExactGradient>& gradients, const Call& call,
                              void* sums, const cuda::KernelConfig& config,
                              const cuda::Function& kernel) {
    constexpr std::int64_t kMostBlocks = 4096;
    const std::int64_t threads = std::int64_t{32} * config.warps;
    return for_each(
        gradients, call, sums, [&](const ExactGradient& gradient, exact::Sum* own) -> Result<void> {
            const TensorView& view = call.gradients[gradient.buffer];
            exact::Rounding rounding{own, static_cast<float*>(view.data), view.elements()};
            if (rounding.count == 0) return {};
            const std::array<void*, 1> arguments = {&rounding};
            const auto blocks =
                std::min<std::int64_t>((rounding.count + threads - 1) / threads, kMostBlocks);
            return kernel.launch({.x = static_cast<unsigned>(blocks)},
                                 static_cast<unsigned>(threads), 0, call.stream.handle, arguments);
        });
}

} // namespace flexc::runtime
