#include "runtime/loaded_variants.h"

#include <algorithm>
#include <utility>

#include "plan/few_work.h"
#include "runtime/cuda_workspace.h"
#include "support/log.h"
#include "support/text.h"

namespace flexc::runtime {

namespace {

// Returns the variant that is made for calls of such sizes.
std::optional<std::size_t> variant_by_size(std::span<const CudaVariant> variants,
                                           const AttentionArguments& attention,
                                           std::int64_t visible_keys) {
    const std::int64_t sequences = std::int64_t{attention.batch} * attention.heads;
    const plan::DenseSizes sizes = dense_sizes_of(attention);
    const auto found = std::ranges::find_if(variants, [&](const CudaVariant& variant) {
        switch (variant.calls) {
        case plan::Calls::short_sequences:
            return sequences >= plan::kManySequences && attention.q_len >= variant.least_rows &&
                   std::max(attention.q_len, attention.kv_len) <= variant.most_rows;
        case plan::Calls::few_queries:
            return plan::has_few_rows(sizes) && plan::are_few_faster(sizes, visible_keys);
        default: return false;
        }
    });
    if (found == variants.end()) return {};
    return static_cast<std::size_t>(found - variants.begin());
}

} // namespace

LoadedVariants::LoadedVariants(LoadedPass first, CudaVariants variants, int device)
    : all_(std::move(variants.all)), compile_(std::move(variants.compile)), device_(device),
      loaded_(all_.size()), given_up_(all_.size()) {
    loaded_[0].emplace(std::move(first));
}

const LoadedPass& LoadedVariants::chosen(std::size_t variant) const {
    const std::lock_guard lock(mutex_);
    return *loaded_[variant];
}

// If several plans compile a variant at the same time, the first result is kept.
Result<const LoadedPass*> LoadedVariants::find(std::size_t variant) const {
    {
        const std::lock_guard lock(mutex_);
        if (loaded_[variant]) return &*loaded_[variant];
    }
    auto compiled = compile_(variant);
    if (!compiled) return compiled.error();
    auto pass = load_pass(*compiled, device_);
    if (!pass) return pass.error();
    const std::lock_guard lock(mutex_);
    if (!loaded_[variant]) loaded_[variant].emplace(std::move(*pass));
    return &*loaded_[variant];
}

void LoadedVariants::give_up(std::size_t variant) const {
    const std::lock_guard lock(mutex_);
    given_up_[variant] = true;
}

bool LoadedVariants::is_given_up(std::size_t variant) const {
    const std::lock_guard lock(mutex_);
    return given_up_[variant];
}

// Such a variant is only faster than others: if it cannot be compiled, no call asks for it again.
std::optional<std::size_t> LoadedVariants::choose_by_size(const Call& call,
                                                          const cuda::TensorForm& form,
                                                          std::int64_t visible_keys) const {
    const auto variant = variant_by_size(all_, call.attention, visible_keys);
    if (!variant || is_given_up(*variant)) return {};
    auto pass = find(*variant);
    if (pass) return why_not((*pass)->plan, call, form).empty() ? variant : std::nullopt;
    give_up(*variant);
    support::Log().warn("the kernels of {} cannot be compiled, slower ones take their calls: {}",
                        all_[*variant].calls == plan::Calls::few_queries
                            ? "few queries"
                            : formatted("sequences of at most {} rows", all_[*variant].most_rows),
                        pass.error().message);
    return {};
}

Result<std::size_t> LoadedVariants::choose(const Call& call, const cuda::TensorForm& form,
                                           std::int64_t visible_keys) const {
    if (const auto variant = choose_by_size(call, form, visible_keys)) return *variant;
    for (std::size_t variant = 0; variant < all_.size(); ++variant) {
        if (plan::is_by_size(all_[variant].calls)) continue;
        auto pass = find(variant);
        if (!pass) return pass.error();
        if (why_not((*pass)->plan, call, form).empty()) return variant;
    }
    return Error{ErrorCode::internal, "no kernel of this pass takes the call"};
}

} // namespace flexc::runtime
