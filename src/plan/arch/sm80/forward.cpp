// Chooses the tiles of the generic forward kernels.
#include "plan/arch/sm80/sm80.h"

#include "sm90/few_layout.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string>

namespace flexc::plan::sm80 {
namespace {

// Returns how many of a thread's 255 registers may be accumulators. More would spill, or leave no
// room for the values that a program keeps for its rows. For f32, operands that are split in two
// need registers too.
int accumulator_limit(DType dtype) { return dtype == DType::f32 ? 140 : 176; }

constexpr int kStages = 2;

// Warps with 32 rows read each key and value half as often from shared memory as warps with 16; the
// output of 32 rows fits in registers up to 144 columns. Best first, as measured on an H200; the
// last ones fit the widest rows into the smallest shared memory.
constexpr BlockShape kShapes[] = {
    {128, 96, 4, kStages}, {128, 64, 4, kStages}, {128, 48, 4, kStages}, {128, 32, 4, kStages},
    {128, 64, 8, kStages}, {128, 32, 8, kStages}, {64, 64, 4, kStages},  {64, 32, 4, kStages},
    {64, 16, 4, kStages},  {32, 16, 2, kStages},  {16, 16, 1, kStages},
};
constexpr BlockShape kFloatShapes[] = {
    {128, 32, 4, kStages}, {64, 32, 4, kStages}, {64, 16, 4, kStages},
    {32, 16, 2, kStages},  {16, 16, 1, kStages},
};
constexpr std::string_view kFewByWarpgroups = "forward_few_sm90.cu";
int shared_bytes(const KernelRequest& request, const BlockShape& shape) {
    return ::sm80::forward_layout(sizes(request, shape)).bytes;
}

int accumulators(const KernelRequest& request, const BlockShape& shape) {
    const int rows = shape.query_tile / shape.warps;
    return rows * (padded_columns(request.head_dim_v) + shape.key_tile) / 32;
}

bool suits(const KernelRequest& request, const BlockShape& shape) {
    // Wide tiles pay off only if little else is done for each element. A score mod is unrolled over
    // the scores of a thread, so that they would cost compile time and gain nothing.
    if (shape.key_tile > 64 && (request.has_score_mod || padded_columns(request.head_dim_v) > 64))
        return false;
    return accumulators(request, shape) <= accumulator_limit(request.dtype) &&
           shared_bytes(request, shape) <= shared_memory_limit(request.arch);
}

constexpr std::size_t kMostCandidates = 3; // compiles are not free

KernelConfig configured(const KernelRequest& request, const BlockShape& shape) {
    KernelConfig config;
    config.kind = KernelKind::forward;
    config.family = kName;
    config.template_path = "forward.cu";
    config.entry = "flexc_forward";
    config.block = shape;
    config.block.shared_bytes = shared_bytes(request, shape);
    config.has_block_mask = request.mask.has_block_mask;
    config.reason =
        request.dtype == DType::f32 ? "mma.sync on floats split into TF32 pairs, " : "mma.sync, ";
    config.reason += std::to_string(shape.query_tile / shape.warps) + " rows a warp";
    return config;
}

// For short sequences: a block has all keys of a sequence in shared memory, in as many stages.
// Warps have 32 rows, because each of them computes where its tiles are, whatever it has to do.
constexpr BlockShape kShortShapes[] = {
    {16, 16, 1, 1}, {32, 32, 1, 1}, {64, 64, 2, 1}, {96, 48, 3, 2}};

// Returns the kernel for short sequences, then the same kernel with half as many resident blocks,
// which is compiled if the first one spills. None if there is none for so many rows.
std::vector<KernelConfig> short_candidates(const KernelRequest& request) {
    const auto* const found =
        std::ranges::find(kShortShapes, request.sequences.most_rows, &BlockShape::query_tile);
    if (found == std::end(kShortShapes)) return {};
    const BlockShape& shape = *found;
    KernelConfig config = configured(request, shape);
    config.template_path = "forward_short.cu";
    config.entry = "flexc_forward_short";
    config.sequences.is_short = true;
    if (shape.query_tile <= kMostRowsWithValues)
        config.sequences.shared_value = request.shared_value;
    if (config.sequences.shared_value != ir::kNoNode)
        config.block.shared_bytes += ::sm80::tile_float_bytes(shape.query_tile, shape.key_tile);
    config.spills.tolerated = kSpillsOfSequence;
    constexpr int kBeside = 32; // registers of a thread, beside accumulators
    config.block.blocks_at_once =
        blocks_at_once(request, accumulators(request, shape) + kBeside, config.block);
    KernelConfig fewer = config;
    fewer.block.blocks_at_once = (config.block.blocks_at_once + 1) / 2;
    return {config, fewer};
}

} // namespace

int blocks_at_once(const KernelRequest& request, int registers, const BlockShape& block) {
    constexpr int kQuarters = 4, kRegisters = 65536 / kQuarters; // each with warps of its own
    constexpr int kMostBlocks = 32, kReserved = 1024;            // bytes of the driver, per block
    const int by_registers = kQuarters * (kRegisters / (32 * registers)) / block.warps;
    const int by_memory =
        (shared_memory_limit(request.arch) + kReserved) / (block.shared_bytes + kReserved);
    return std::clamp(std::min(by_registers, by_memory), 1, kMostBlocks);
}

std::vector<KernelConfig> forward_candidates(const KernelRequest& request, bool is_last_resort) {
    if (request.sequences.most_rows != 0) return short_candidates(request);
    if (request.sequences.has_few_queries) return {few_queries_kernel(request)};
    const std::span<const BlockShape> shapes =
        request.dtype == DType::f32 ? std::span<const BlockShape>(kFloatShapes) : kShapes;
    const std::size_t most = is_last_resort ? 1 : kMostCandidates;
    std::vector<KernelConfig> candidates;
    for (const BlockShape& shape : shapes)
        if (candidates.size() < most && suits(request, shape))
            candidates.push_back(configured(request, shape));
    if (candidates.empty()) candidates.push_back(configured(request, shapes.back()));
    return candidates;
}

namespace {

::sm90::FewSizes warpgroup_sizes(const KernelRequest& request, int key_tile) {
    return {key_tile, request.head_dim, request.head_dim_v,
            static_cast<int>(size_of(request.dtype))};
}

} // namespace

bool is_of_warpgroups(const KernelConfig& config) {
    return config.template_path == kFewByWarpgroups;
}

KernelConfig few_queries_kernel(const KernelRequest& request) {
    // Use the large tile if it costs at most one warp.
    constexpr BlockShape kWide{16, 32, 1, kStages}, kNarrow{16, 16, 1, kStages};
    constexpr int kWideWarps = ::sm80::kMostFewWarps - 1;
    const bool is_wide = ::sm80::few_warps(sizes(request, kWide)) >= kWideWarps;
    const BlockShape& shape = is_wide ? kWide : kNarrow;
    const ::sm80::TileSizes tile = sizes(request, shape);
    KernelConfig config = configured(request, shape);
    config.entry = "flexc_forward_few";
    config.sequences.has_few_queries = true;
    config.reason = "few queries: heads that share keys in one tile, keys in parts";
    const ::sm90::FewSizes of_warpgroup = warpgroup_sizes(request, shape.key_tile);
    if (request.arch == 90 && request.has_own_instructions && of_warpgroup.suits() &&
        !request.kv_dtype && !request.mask.has_block_mask) {
        config.template_path = kFewByWarpgroups;
        config.block.shared_bytes =
            std::max(::sm80::few_bytes(tile, 1), ::sm90::few_layout(of_warpgroup).bytes);
        config.reason += "; more than 16 rows by a warpgroup";
    } else {
        config.template_path = "forward_few.cu";
        config.block.shared_bytes = ::sm80::few_bytes(tile, ::sm80::most_few_tiles(tile));
    }
    return config;
}

} // namespace flexc::plan::sm80
