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

plan::CallLengths lengths_of(const AttentionArguments& attention) {
    return {.batch = attention.batch,
            .heads = attention.heads,
            .kv_heads = attention.kv_heads,
            .queries = attention.q_len,
            .keys = attention.kv_len};
}

PlacedWorkspace::PlacedWorkspace(std::span<const plan::WorkspaceRegion> regions, const Call& call) {
    const plan::CallLengths lengths = lengths_of(call.attention);
    for (const plan::WorkspaceRegion& region : regions) {
        const std::size_t bytes = bytes_of_region(region, lengths, call);
        regions_[count_++] = {region.region, bytes_, bytes};
        bytes_ = support::plus(bytes_, aligned(bytes));
    }
}

const PlacedRegion* PlacedWorkspace::find(plan::Region region) const {
    const auto end = regions_.begin() + count_;
    const auto found = std::find_if(
        regions_.begin(), end, [region](const PlacedRegion& one) { return one.region == region; });
    return found == end ? nullptr : &*found;
}

void PlacedWorkspace::name_in(AttentionArguments& attention, void* memory) const {
    for (const PlacedRegion& one : std::span(regions_).first(count_)) {
        void* const at = static_cast<std::byte*>(memory) + one.offset;
        switch (one.region) {
        case plan::Region::delta: attention.delta = static_cast<float*>(at); break;
        case plan::Region::dq_accumulator:
            attention.dq_accumulator = static_cast<float*>(at);
            break;
        case plan::Region::row_facts: attention.row_facts = static_cast<float*>(at); break;
        case plan::Region::distance_sums: attention.distance_sums = static_cast<float*>(at); break;
        case plan::Region::distance_values:
            attention.distance_values = static_cast<float*>(at);
            break;
        case plan::Region::key_values: attention.key_values = static_cast<float*>(at); break;
        case plan::Region::stored_tiles: attention.stored_tiles = static_cast<int*>(at); break;
        case plan::Region::blocks_done: attention.blocks_done = static_cast<int*>(at); break;
        case plan::Region::tiles_taken: attention.tiles_taken = static_cast<int*>(at); break;
        case plan::Region::slab_states: attention.slab_states = static_cast<int*>(at); break;
        case plan::Region::dq_semaphores: // follows dq_accumulator
        case plan::Region::exact_sums:    // named by the words of gradients
            break;
        }
    }
}

} // namespace flexc::runtime
