#include "runtime/cuda_workspace.h"

#include <algorithm>

#include "runtime/alignment.h"

namespace flexc::runtime {

namespace {

std::size_t bytes_of_region(const plan::WorkspaceRegion& region, const plan::CallLengths& lengths,
                            const Call& call) {
    std::int64_t elements = region.elements.of(lengths);
    for (const std::uint32_t buffer : region.of_gradients)
        elements = support::plus(elements, call.gradients[buffer].elements());
    return support::times(static_cast<std::size_t>(elements),
                          static_cast<std::size_t>(region.element_bytes));
}

} // namespace

plan::DenseSizes dense_sizes_of(const AttentionArguments& attention) {
    return {.batch = attention.batch,
            .heads = attention.heads,
            .kv_heads = attention.kv_heads,
            .queries = attention.q_len,
            .keys = attention.kv_len};
}

plan::CallLengths lengths_of(const AttentionArguments& attention) {
    plan::CallLengths lengths = {.batch = attention.batch,
                                 .heads = attention.heads,
                                 .kv_heads = attention.kv_heads,
                                 .queries = attention.q_len,
                                 .keys = attention.kv_len,
                                 .all_queries = attention.q_rows,
                                 .all_keys = attention.kv_rows};
    const plan::DenseSizes sizes = dense_sizes_of(attention);
    if (attention.sequences.sequences == nullptr && plan::has_few_rows(sizes))
        lengths.few = plan::few_work(sizes);
    return lengths;
}

PlacedWorkspace::PlacedWorkspace(std::span<const plan::WorkspaceRegion> regions, const Call& call) {
    const plan::CallLengths lengths = lengths_of(call.attention);
    for (const plan::WorkspaceRegion& region : regions) {
        const std::size_t bytes = bytes_of_region(region, lengths, call);
        regions_[count_++] = {&region, bytes_, bytes};
        bytes_ = support::plus(bytes_, aligned(bytes));
    }
}

const PlacedRegion* PlacedWorkspace::find(plan::Region region) const {
    const auto end = regions_.begin() + count_;
    const auto found = std::find_if(regions_.begin(), end, [region](const PlacedRegion& one) {
        return one.region->region == region;
    });
    return found == end ? nullptr : &*found;
}

void PlacedWorkspace::name_in(KernelArgument& argument, void* memory, bool stores_gradients) const {
    for (const PlacedRegion& one : std::span(regions_).first(count_))
        if (one.region->argument != plan::kNoArgument &&
            (stores_gradients || !one.region->of_stored_gradients))
            argument.set(one.region->argument, static_cast<std::byte*>(memory) + one.offset);
}

const void* words_of(const Call& call) {
    // A program without arguments has an empty struct, whose one byte is never read.
    static constexpr std::uint64_t kNoWords = 0;
    return call.words.empty() ? &kNoWords : call.words.data();
}

} // namespace flexc::runtime
