// Chooses the tiles of the generic backward kernels.
#include <algorithm>
#include <array>

#include "plan/arch/sm80/sm80.h"
#include "plan/gradients.h"
#include "plan/work.h"
#include "support/text.h"

namespace flexc::plan::sm80 {
namespace {

// Best first. The last ones fit the widest rows into the smallest shared memory.
constexpr std::array kKeyShapes = {
    BlockShape{128, 128, 8, 2}, BlockShape{64, 128, 8, 2}, BlockShape{64, 128, 8, 1},
    BlockShape{64, 64, 8, 2},   BlockShape{64, 64, 8, 1},  BlockShape{64, 64, 4, 1},
    BlockShape{32, 64, 8, 1},   BlockShape{32, 32, 4, 1},  BlockShape{16, 16, 2, 1},
};
constexpr std::array kQueryShapes = {
    BlockShape{128, 64, 8, 2}, BlockShape{128, 32, 8, 2}, BlockShape{64, 64, 4, 2},
    BlockShape{64, 32, 4, 2},  BlockShape{64, 32, 4, 1},  BlockShape{32, 32, 2, 1},
    BlockShape{32, 16, 2, 1},  BlockShape{16, 16, 1, 1},
};

int key_kernel_bytes(const KernelRequest& request, const BlockShape& shape, int table_words = 0,
                     int term_words = 0) {
    ::sm80::TileSizes tile = sizes(request, shape);
    tile.warps = shape.warps;
    tile.term_words = term_words;
    if (table_words > 0)
        tile.table_sums = {request.gradients.few_entries, table_words, shape.warps,
                           request.gradients.weighs_entries};
    return ::sm80::backward_key_layout(tile).bytes;
}
int query_kernel_bytes(const KernelRequest& request, const BlockShape& shape) {
    return ::sm80::backward_query_layout(sizes(request, shape)).bytes;
}

// Bytes that may spill in kernels that sum tables: of values that are used once or twice per tile.
constexpr int kSpillsOfTables = 32;
// Bytes that may spill where an element reads much, which takes far longer.
constexpr int kSpillsOfReads = 8;

// Returns the words of shared memory for the sums of each gradient of few entries; 0 if there is
// none, or if they do not fit.
int table_words_of(const KernelRequest& request, const BlockShape& shape) {
    // Each warp needs whole panels of this many keys.
    constexpr int kPanelKeys = 64;
    if (request.gradients.few_entries == 0 || shape.key_tile % kPanelKeys != 0) return 0;
    for (const int words : {4096, 2048, 1024, 512, 256})
        if (key_kernel_bytes(request, shape, words) <= shared_memory_limit(request.arch))
            return words;
    return 0;
}

// Returns the words in which each warp keeps sums of terms until the queries of a head have passed;
// 0 if there is no room.
int term_words_of(const KernelRequest& request, const BlockShape& shape, int table_words) {
    const int words = request.gradients.generic_term_reads.words(::sm80::kTermKeys);
    return key_kernel_bytes(request, shape, table_words, words) <= shared_memory_limit(request.arch)
               ? words
               : 0;
}

// Returns the accumulators of a thread where most are live: the results and two tiles of scores.
int accumulators(const BlockShape& shape, int result_rows, int result_columns) {
    return (result_rows * result_columns + 2 * shape.query_tile * shape.key_tile) /
           (32 * shape.warps);
}

// Returns how many of a thread's 255 registers may be accumulators. Floats need more other
// registers, because each operand is split in two; a score_mod needs some, most of all in the dq
// kernel, where rows of queries stay.
int accumulator_limit(const KernelRequest& request) {
    if (request.dtype == DType::f32) return 150;
    if (!request.has_score_mod) return 200;
    return request.kind == KernelKind::backward_dq ? 150 : 192;
}

// Returns the configuration of the kernel for a tile of keys. saves_registers: 0 to 3; with higher
// values, the template works on fewer rows at a time, and finally on single elements.
KernelConfig key_kernel(const KernelRequest& request, const BlockShape& shape,
                        int saves_registers) {
    KernelConfig config;
    config.kind = request.kind;
    config.family = kName;
    config.template_path = "backward_key.cu";
    config.entry = "flexc_backward_key";
    const int table_words = table_words_of(request, shape);
    config.block = shape;
    const int term_words = term_words_of(request, shape, table_words);
    config.block.shared_bytes = key_kernel_bytes(request, shape, table_words, term_words);
    config.form = {saves_registers, request.work.reads_much(), request.work.reads_much()};
    config.has_block_mask = request.mask.has_block_mask;
    config.sums.sums_few_entries = table_words > 0;
    config.storage.table_words = table_words;
    config.storage.term_words = term_words;
    config.storage.term_keys = ::sm80::kTermKeys;
    config.spills.tolerated = request.work.is_long        ? kSpillsOfLong
                              : table_words > 0           ? kSpillsOfTables
                              : request.work.reads_much() ? kSpillsOfReads
                                                          : 0;
    config.reason = request.kind == KernelKind::backward_fused
                        ? "dk and dv of a tile of keys, dq by atomic additions"
                        : "dk and dv of a tile of keys, in a fixed order";
    if (table_words > 0)
        config.reason +=
            formatted("; sums of up to {} entries on chip for {}", table_words,
                      request.gradients.few_entries == 1
                          ? std::string("a gradient")
                          : formatted("each of {} gradients", request.gradients.few_entries));
    return config;
}

// Returns candidates for short sequences, each with fewer resident blocks than the one before. The
// first one that does not spill is used. None if such sequences do not fit in shared memory.
std::vector<KernelConfig> short_key_candidates(const KernelRequest& request) {
    constexpr int kRowsOfWarp = 16;
    const int rows = request.sequences.most_rows;
    const BlockShape shape{rows, rows, rows / kRowsOfWarp, 1};
    KernelConfig config = key_kernel(request, shape, 0);
    config.template_path = "backward_short.cu";
    config.entry = "flexc_backward_short";
    config.form.writes_scores_once = config.form.has_long_scores = false;
    config.sums = kNoTileSums;
    config.sums.sums_batches = true;
    config.storage = {};
    config.sequences.is_short = true;
    if (rows <= kMostRowsWithValues) config.sequences.shared_value = request.shared_value;
    const int floats = (config.sequences.shared_value != ir::kNoNode) + request.gradients.by_batch;
    config.block.shared_bytes = ::sm80::backward_short_layout(sizes(request, shape)).bytes +
                                floats * ::sm80::tile_float_bytes(rows, rows);
    if (config.block.shared_bytes > shared_memory_limit(request.arch)) return {};
    config.spills.tolerated = kSpillsOfSequence;
    config.reason = "dq, dk and dv of one sequence after another";
    if (request.gradients.by_batch) config.reason += ", gradients of buffers summed over them";
    std::vector<KernelConfig> candidates;
    for (const int registers : {96, 128, 168, 255}) {
        config.block.blocks_at_once = blocks_at_once(request, registers, config.block);
        if (candidates.empty() ||
            config.block.blocks_at_once < candidates.back().block.blocks_at_once)
            candidates.push_back(config);
    }
    return candidates;
}

} // namespace

std::vector<KernelConfig> backward_candidates(const KernelRequest& request) {
    if (request.sequences.most_rows != 0) return short_key_candidates(request);
    const int columns = padded_columns(request.head_dim) + padded_columns(request.head_dim_v);
    const auto first_that = [&](auto fits) {
        return std::ranges::find_if(kKeyShapes, [&](const BlockShape& shape) {
            return accumulators(shape, shape.key_tile, columns) <= accumulator_limit(request) &&
                   fits(shape);
        });
    };
    // A smaller tile with sums on chip costs less than adding to memory.
    auto found =
        first_that([&](const BlockShape& shape) { return table_words_of(request, shape) > 0; });
    if (found == kKeyShapes.end())
        found = first_that([&](const BlockShape& shape) {
            return key_kernel_bytes(request, shape) <= shared_memory_limit(request.arch);
        });
    const BlockShape chosen = found == kKeyShapes.end() ? kKeyShapes.back() : *found;
    // Saving registers helps if results take half of them, or what elements weigh takes more. If
    // gradients or values of keys need many
    // registers, the template itself starts with the first step. Programs with long code for each
    // element start with few rows at a time: unrolling all rows takes several times as long to
    // compile.
    constexpr int kFewRows = 2, kMostSavings = 3;
    const bool crowded =
        request.gradients.weighs_entries ||
        chosen.key_tile * (request.head_dim + request.head_dim_v) >= 128 * 32 * chosen.warps;
    const bool adds_elements = table_words_of(request, chosen) > 0
                                   ? request.gradients.adds_many_entries
                                   : request.gradients.vary;
    const bool begins_with_first = adds_elements || request.derivative.computes_columns;
    std::vector<KernelConfig> candidates;
    for (int savings = request.work.is_long ? kFewRows : 0; savings <= kMostSavings; ++savings) {
        const bool is_same = savings == 1 && begins_with_first;
        if (!is_same && (crowded || candidates.empty()))
            candidates.push_back(key_kernel(request, chosen, savings));
    }
    return candidates;
}

KernelConfig query_kernel(const KernelRequest& request) {
    BlockShape chosen = kQueryShapes.back();
    for (const BlockShape& shape : kQueryShapes)
        if (accumulators(shape, shape.query_tile, padded_columns(request.head_dim)) <=
                accumulator_limit(request) &&
            query_kernel_bytes(request, shape) <= shared_memory_limit(request.arch)) {
            chosen = shape;
            break;
        }
    KernelConfig config;
    config.kind = KernelKind::backward_dq;
    config.family = kName;
    config.template_path = "backward_query.cu";
    config.entry = "flexc_backward_query";
    config.block = chosen;
    config.block.shared_bytes = query_kernel_bytes(request, chosen);
    config.form.writes_scores_once = config.form.has_long_scores = request.work.reads_much();
    config.has_block_mask = request.mask.has_block_mask;
    config.reason = "dq of a tile of queries, in a fixed order";
    return config;
}

KernelConfig delta_kernel() {
    return {.kind = KernelKind::delta,
            .family = kName,
            .template_path = "backward_delta.cu",
            .entry = "flexc_backward_delta",
            .block = kStreamingBlock,
            .reason = "row sums of d_out * o"};
}

KernelConfig convert_kernel() {
    return {.kind = KernelKind::convert,
            .family = kName,
            .template_path = "backward_convert.cu",
            .entry = "flexc_backward_convert",
            .block = kStreamingBlock,
            .reason = "dq from its accumulator"};
}

} // namespace flexc::plan::sm80
