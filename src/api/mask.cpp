#include "flexc/mask.h"

#include <algorithm>

#include "analysis/tile_class.h"
#include "api/frontend.h"
#include "runtime/bind_plan.h"
#include "runtime/buffers.h"
#include "runtime/mask_values.h"
#include "support/text.h"
#include "support/watch.h"

namespace flexc {

namespace {

using analysis::TileClass;
using analysis::TiledAxis;

constexpr std::int64_t kMostTiles = std::int64_t{1} << 28;

char letter(TileClass tile) {
    return tile == TileClass::full ? '#' : tile == TileClass::partial ? '/' : '.';
}

// Returns one view per buffer of the program; empty if the caller gave none.
std::vector<TensorView> views_of(const ir::Program& program, std::span<const NamedTensor> buffers) {
    std::vector<TensorView> views(program.buffers.size());
    for (std::size_t i = 0; i < views.size(); ++i)
        for (const NamedTensor& given : buffers)
            if (given.name == program.buffers[i].name) views[i] = given.tensor;
    return views;
}

// Fails if a buffer that the mask reads is missing.
Result<void> check_reads(const passes::Mod& mod, std::span<const TensorView> views,
                         std::span<const std::int64_t> sizes) {
    const ir::Program& program = mod.program;
    for (const ir::NodeId id : ir::reachable(program.graph, std::span(&mod.mask, 1))) {
        const ir::Node& node = program.graph[id];
        if (node.op == ir::Op::read && !views[node.symbol])
            return runtime::invalid(
                formatted("'{}': missing; the mask reads it", program.buffers[node.symbol].name));
        if (node.op == ir::Op::size && sizes[node.symbol] == runtime::kUnbound)
            return runtime::invalid(formatted("size '{}' is not known: give a buffer that has it",
                                              program.sizes[node.symbol]));
    }
    return {};
}

// Fails if the watch is over.
Result<void> check(const support::Watch& watch, const CompileOptions& options) {
    if (!watch.is_over() && !watch.was_ended()) return {};
    if (options.cancel.is_cancelled())
        return Error{ErrorCode::cancelled, "the mask map was cancelled"};
    return Error{ErrorCode::limit,
                 formatted("the mask map takes more than {:g} seconds, or than {} MiB: ask for "
                           "shorter lengths or fewer heads, or raise the limit (CompileLimits, "
                           "--max-seconds)",
                           options.limits.seconds, options.limits.memory_bytes >> 20)};
}

} // namespace

Result<MaskMap> mask_map(std::string_view text, const CompileOptions& given, const Sizes& sizes,
                         std::span<const NamedTensor> buffers, const MaskTiles& tile,
                         const PlanOptions& plan_options) {
    return guarded([&]() -> Result<MaskMap> {
        if (tile.queries < 1 || tile.keys < 1)
            return runtime::invalid(
                formatted("a tile of {} x {} is empty", tile.queries, tile.keys));
        auto options = api::complete(given);
        if (!options) return options.error();
        if (options->query_layout != Layout::dense || options->key_layout != Layout::dense)
            return Error{ErrorCode::unsupported,
                         "a mask map is of one dense batch: ask for each request's lengths"};
        const support::Watch watch(options->limits, options->cancel, nullptr);
        options->backward = false;
        auto mod = api::lower_text(text, *options);
        if (!mod) return mod.error();
        auto plan = runtime::bind_values(mod->program, options->head_dim, options->head_dim_v,
                                         sizes, buffers, plan_options);
        if (!plan) return plan.error();
        const std::vector<TensorView> views = views_of(mod->program, buffers);
        if (auto checked = check_reads(*mod, views, plan->size_values); !checked)
            return checked.error();

        const analysis::Dependence reads = mod->dependence[mod->mask];
        // A tile that is longer than its axis is the whole axis.
        const TiledAxis queries{sizes.q_len, plan->q_offset, std::min(tile.queries, sizes.q_len)};
        const TiledAxis keys{sizes.kv_len, plan->kv_offset, std::min(tile.keys, sizes.kv_len)};
        MaskMap map{.batches = reads.has(analysis::Dependence::b) ? sizes.batch : 1,
                    .heads = reads.has(analysis::Dependence::h) ? sizes.heads : 1,
                    .query_tiles = queries.tiles(),
                    .key_tiles = keys.tiles()};
        const std::int64_t rows = map.batches * map.heads * map.query_tiles;
        if (rows > kMostTiles / map.key_tiles)
            return Error{ErrorCode::limit,
                         formatted("{} x {} tiles in {} maps are too many: take larger tiles",
                                   map.query_tiles, map.key_tiles, map.batches * map.heads)};
        const runtime::MaskValues values(mod->program, plan->size_values, plan->param_words, views);
        for (std::int64_t b = 0; b < map.batches; ++b)
            for (std::int64_t h = 0; h < map.heads; ++h) {
                const analysis::TileClassifier classifier(
                    mod->program, mod->mask, values.of_head(b, h), queries, keys, watch);
                for (std::int64_t q = 0; q < map.query_tiles; ++q) {
                    for (std::int64_t kv = 0; kv < map.key_tiles; ++kv)
                        map.tiles += letter(classifier.classify(q, kv));
                    if (auto checked = check(watch, *options); !checked) return checked.error();
                }
            }
        return map;
    });
}

} // namespace flexc
