#include "plan/arch/sm90/backward_tile.h"

#include <algorithm>

namespace flexc::plan::sm90 {

using ::sm90::BackwardShape;

namespace {

BackwardShape heads_of(const KernelRequest& request) {
    BackwardShape shape{};
    shape.head_dim = request.head_dim;
    shape.head_dim_v = request.head_dim_v;
    shape.are_alone = request.gradients.are_alone;
    return shape;
}

} // namespace

bool shares_keys(const KernelRequest& request) { return heads_of(request).shares_keys(); }

passes::Index2dReads index_2d_of(const KernelRequest& request) {
    return shares_keys(request) ? passes::Index2dReads{} : request.gradients.index_2d;
}

BackwardShape shape_of(const KernelRequest& request, const FusedTile& tile) {
    const BackwardStorage& storage = tile.storage;
    // Tiles of a dense bias leave no shared memory for a 2-D key index.
    const passes::Index2dReads index_2d =
        tile.has_dense_bias() ? passes::Index2dReads{} : index_2d_of(request);
    BackwardShape shape = heads_of(request);
    shape.query_tile = tile.query_tile;
    shape.d_scores_stages = storage.d_scores_stages;
    shape.bias_stages = storage.bias_stages;
    shape.bias_bytes = request.bias.bytes;
    shape.bias_is_shifted = request.bias.is_shifted;
    shape.bias_is_by_key = request.bias.is_by_key;
    shape.adds_bias_gradients = tile.sums.adds_bias_gradients;
    shape.biases_are_narrow = request.bias.has_narrow_gradient;
    shape.sums_tile = request.gradients.by_distance || index_2d.width != 0 ||
                      storage.table_words > 0 || request.gradients.by_shift ||
                      tile.sums.weighs_distances;
    shape.table_words = storage.table_words + storage.kind_words;
    shape.entry_words =
        storage.entries == 0 ? 0 : (storage.entries + 1) << storage.entry_copy_shift;
    shape.has_weighted_tile =
        tile.sums.weighs_distances || (request.gradients.weighs_tables && storage.table_words > 0);
    shape.term_words = storage.term_words;
    shape.row_bytes = storage.stages_rows ? shape.most_row_bytes() : 0;
    shape.key_width = index_2d.width;
    shape.row_reads = index_2d.by_row;
    shape.column_reads = storage.stages_columns ? index_2d.by_column : 0;
    shape.column_bytes = index_2d.column_bytes;
    shape.column_sums = storage.stages_sums && index_2d.sums_columns ? index_2d.width : 0;
    shape.has_block_mask = request.mask.has_block_mask;
    shape.is_ragged = request.sequences.is_ragged;
    // Persistent blocks pay off if blocks are short, or if some of them have no queries to visit.
    // Without a mask, not with gradients of buffers, whose sums at a block's end take longer then.
    constexpr int kShortHeadDim = 64;
    const bool is_short =
        !request.gradients.any && std::max(request.head_dim, request.head_dim_v) <= kShortHeadDim;
    shape.is_persistent = (request.mask.has_block_mask || request.mask.has_window ||
                           request.sequences.is_ragged || is_short) &&
                          request.gradients.index_2d.width == 0 && shape.can_be_persistent();
    return shape;
}

bool fits(const KernelRequest& request, const BackwardShape& shape) {
    return backward_layout(shape).end <= shared_memory_limit(request.arch);
}

bool should_stage_rows(const KernelRequest& request, const BackwardShape& shape) {
    const bool loads_them = shape.sums_tile && !shape.shares_keys() && shape.key_width == 0;
    return !loads_them || request.derivative.reads_rows;
}

BackwardShape with_query_sums(const KernelRequest& request, const BackwardShape& shape) {
    BackwardShape gathering = shape;
    gathering.query_sums = request.gradients.by_query;
    return !shape.shares_keys() && fits(request, gathering) ? gathering : shape;
}

int accumulators_of(const KernelRequest& request, const FusedTile& tile) {
    const int of_inputs =
        (padded_columns(request.head_dim) + padded_columns(request.head_dim_v)) / 2;
    return tile.query_tile + (request.gradients.are_alone ? 0 : of_inputs);
}

} // namespace flexc::plan::sm90
