// A plan of Hopper's fused backward asks for the shared memory that its kernel lays out.
#include <doctest/doctest.h>

#include <vector>

#include "plan/plan.h"
#include "sm90/backward_layout.h"

using namespace flexc;
using namespace flexc::plan;

namespace {

// What the kernel derives from mod.cuh, with as much for a query as it may stage.
::sm90::BackwardShape shape_in_kernel(const KernelRequest& request, const KernelConfig& config) {
    const passes::Index2dReads& reads = request.gradients.index_2d;
    const bool has_index_2d = config.sums.key_width != 0;
    ::sm90::BackwardShape shape{};
    shape.head_dim = request.head_dim;
    shape.head_dim_v = request.head_dim_v;
    shape.query_tile = config.block.query_tile;
    shape.d_scores_stages = config.storage.d_scores_stages;
    shape.bias_stages = config.storage.bias_stages;
    shape.bias_bytes = request.bias.bytes;
    shape.adds_bias_gradients = config.sums.adds_bias_gradients;
    shape.biases_are_narrow = request.bias.has_narrow_gradient;
    shape.sums_tile = request.gradients.by_distance || has_index_2d;
    shape.row_bytes = shape.most_row_bytes();
    shape.key_width = has_index_2d ? config.sums.key_width : config.block.key_tile;
    shape.row_reads = has_index_2d ? reads.by_row : 0;
    shape.column_reads = config.storage.stages_columns ? reads.by_column : 0;
    shape.column_bytes = config.storage.stages_columns ? reads.column_bytes : 0;
    shape.column_sums =
        config.storage.stages_sums && reads.sums_columns ? config.sums.key_width : 0;
    shape.query_sums = config.storage.query_sums;
    shape.has_block_mask = config.has_block_mask;
    shape.is_persistent = config.block.is_persistent;
    return shape;
}

// visit(request): each feature that has memory of its own, alone and with others.
template <typename Visit> void visit_requests(Visit visit) {
    for (int head_dim = 8; head_dim <= 256; head_dim += 8)
        for (const int head_dim_v : {8, 64, 72, 128, 136, 256})
            for (const int bias_bytes : {0, 2, 4})
                for (const int query_sums : {0, 1, 3})
                    for (const int width : {0, 14, 64})
                        for (unsigned bits = 0; bits < 64; ++bits) {
                            const auto has = [&](unsigned bit) { return (bits >> bit & 1) != 0; };
                            KernelRequest request;
                            request.kind = KernelKind::backward_fused;
                            request.arch = 90;
                            request.head_dim = head_dim;
                            request.head_dim_v = head_dim_v;
                            request.bias.bytes = bias_bytes;
                            request.gradients.by_query = query_sums;
                            request.mask.has_block_mask = has(0);
                            request.mask.has_window = has(1);
                            request.bias.adds_gradients = has(2);
                            request.bias.has_gradient_of_score = request.bias.has_narrow_gradient =
                                has(3);
                            request.derivative.uses_score = has(4);
                            request.gradients.by_distance = has(5) && width == 0;
                            if (width != 0)
                                request.gradients.index_2d = {.width = width,
                                                              .by_row = 1,
                                                              .by_column = 1,
                                                              .sums_columns = has(5),
                                                              .sums_are_linear = true,
                                                              .column_bytes = 2};
                            visit(request);
                        }
}

} // namespace

TEST_CASE("the plan of Hopper's backward asks for the bytes that the kernel lays out") {
    visit_requests([](const KernelRequest& request) {
        for (const KernelConfig& config : candidates(request)) {
            if (config.family != "sm90") continue;
            const ::sm90::BackwardShape shape = shape_in_kernel(request, config);
            const ::sm90::BackwardLayout layout = backward_layout(shape);
            REQUIRE(config.block.key_tile == shape.key_tile());
            REQUIRE(layout.end <= config.block.shared_bytes);
            REQUIRE((config.block.is_persistent || layout.end == config.block.shared_bytes));
            REQUIRE((!config.block.is_persistent || shape.can_be_persistent()));
        }
    });
}

TEST_CASE(
    "regions of Hopper's backward start where TMA and MMAs find them, and hold what is there") {
    visit_requests([](const KernelRequest& request) {
        for (const KernelConfig& config : candidates(request)) {
            if (config.family != "sm90") continue;
            const ::sm90::BackwardShape shape = shape_in_kernel(request, config);
            const ::sm90::BackwardLayout layout = backward_layout(shape);
            for (const int panels : {layout.keys, layout.values, layout.queries, layout.d_out,
                                     layout.d_scores, layout.p, layout.spare_keys})
                REQUIRE(panels % ::sm90::kPanelAlignment == 0);
            for (const int bytes : {layout.query_gradient, layout.biases, layout.statistics,
                                    layout.index_2d, layout.sums, layout.key_tiles})
                REQUIRE(bytes % 16 == 0);
            REQUIRE(layout.barriers % 8 == 0);
            if (shape.shares_keys() || shape.adds_bias_gradients) continue;
            int pieces = 0;
            for (int piece = 0; piece < shape.pieces(); ++piece)
                pieces += shape.piece_row_blocks() * shape.groups_of(piece) * ::sm90::kGroupBytes;
            REQUIRE(pieces == shape.row_blocks() * shape.groups() * ::sm90::kGroupBytes);
            REQUIRE(pieces <= layout.biases - layout.query_gradient);
            REQUIRE((shape.pieces() == 1 ||
                     shape.piece_bytes() + shape.groups_of(1) * ::sm90::kGroupBytes <=
                         layout.biases - layout.query_gradient));
        }
    });
}
