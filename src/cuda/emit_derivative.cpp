#include "cuda/emit_derivative.h"

#include <algorithm>

#include "cuda/emit_dense_bias.h"
#include "cuda/emit_gradients.h"
#include "passes/dense_bias.h"
#include "passes/distance_value.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using ir::Op;

namespace {

// By what is not the mask. Values by distance are looked up, staged ones and a copied
// dense bias in shared memory.
bool scores_read_elements(const passes::Mod& mod, const plan::KernelConfig& config,
                          std::vector<NodeId> roots) {
    std::erase(roots, mod.mask);
    std::vector<NodeId> elsewhere = passes::distance_values(mod);
    const std::vector<NodeId> staged = staged_reads(mod, config);
    elsewhere.insert(elsewhere.end(), staged.begin(), staged.end());
    elsewhere.push_back(copied_bias(mod, config));
    return passes::reads_elements_beside(mod, roots, elsewhere);
}

// The places by which sums over diagonals are told apart.
std::string borrows(const passes::Mod& mod, const plan::KernelConfig& config) {
    std::string text = formatted("constexpr int kBorrows = {};\n", config.borrows);
    const std::vector<passes::BorrowPlace> none(1);
    const auto member = [&](std::string_view name, std::int64_t passes::BorrowPlace::* of) {
        std::string values;
        for (const passes::BorrowPlace& place : config.borrows > 0 ? mod.borrow_places : none)
            values += formatted("{}{}", values.empty() ? "" : ", ", place.*of);
        text += formatted("__device__ constexpr int {}[] = {{{}}};\n", name, values);
    };
    member("kBorrowWidths", &passes::BorrowPlace::width);
    member("kBorrowQueryOffsets", &passes::BorrowPlace::q_offset);
    member("kBorrowKeyOffsets", &passes::BorrowPlace::kv_offset);
    return text;
}

} // namespace

passes::TileSums tile_sums(const plan::KernelConfig& config) {
    if (!config.is_warp_specialized)
        return {.sums_few_entries = config.table_words > 0, .sums_batches = config.is_short};
    return {.key_width = config.key_width,
            .adds_bias_gradients = config.adds_bias_gradients,
            .sums_tables = config.table_words > 0 && config.borrows == 0,
            .sums_grids = config.borrows > 0,
            .sums_shifts = config.sums_shifts};
}

bool is_of_d_scores(const passes::Mod& mod, const plan::KernelConfig& config,
                    const passes::ReadGradient& gradient) {
    using enum passes::GradientSum;
    const passes::GradientSum sum = passes::gradient_sum(mod, gradient, tile_sums(config));
    return sum == distance || sum == quotient || sum == remainder || sum == table ||
           sum == shifted || (sum == dense_bias && passes::are_biases_of_scores(mod));
}

std::string emit_derivative_constants(const passes::Mod& mod, const plan::KernelConfig& config,
                                      const std::vector<passes::ReadGradient>& gradients,
                                      const std::vector<NodeId>& roots) {
    std::string text;
    const auto constant = [&](std::string_view name, bool value) {
        text += formatted("constexpr bool {} = {};\n", name, value);
    };
    const auto uses_score = [&](NodeId id) {
        return mod.dependence[id].has(analysis::Dependence::score);
    };
    const auto any = [&](auto is) { return std::ranges::any_of(gradients, is); };
    const auto sums_by = [&](passes::GradientSum sum) {
        return any([&](const passes::ReadGradient& gradient) {
            return passes::gradient_sum(mod, gradient, tile_sums(config)) == sum;
        });
    };
    const ir::Node& derivative = mod.program.graph[mod.d_score];
    constant("kDerivativeIsOne", derivative.op == Op::const_real && derivative.real == 1);
    constant("kDerivativeUsesScore", uses_score(mod.d_score));
    constant("kPartialsUseScore", any([&](const passes::ReadGradient& gradient) {
                 return !is_of_d_scores(mod, config, gradient) && uses_score(gradient.partial);
             }));
    constant("kWritesScoresOnce", config.writes_scores_once);
    constant("kHidesByMaskAlone",
             mod.is_line_of_row && !config.writes_scores_once &&
                 std::ranges::all_of(gradients, [&](const passes::ReadGradient& gradient) {
                     return gradient.is_line_of_row || mod.ranges.finite[gradient.partial];
                 }));
    constant("kSumsDistances", sums_by(passes::GradientSum::distance));
    constant("kSumsQuotients", sums_by(passes::GradientSum::quotient));
    constant("kSumsRemainders", sums_by(passes::GradientSum::remainder));
    constant("kSumsTables", sums_by(passes::GradientSum::table));
    constant("kSumsShifts", sums_by(passes::GradientSum::shifted));
    constant("kStagesSums", config.stages_sums);
    constant("kColumnsAreLinear",
             config.key_width == 0 || passes::are_columns_linear(mod, config.key_width));
    constant("kReadsAreLinear",
             config.key_width != 0 && passes::are_reads_linear(mod, config.key_width));
    constant("kReadsElements", scores_read_elements(mod, config, roots));
    constant("kMaskReadsElements", passes::reads_elements_beside(mod, {mod.mask}, {}));
    return text +
           formatted("constexpr int kKeyWidth = {}, kDistanceValues = {}, kDistanceCopies = 1, "
                     "kTileOverhang = 0, kQuerySums = {}, kTableWords = {};\n"
                     "constexpr bool kVectorsUseBatch = true, kVectorsUseHead = true;\n",
                     config.key_width == 0 ? config.key_tile : config.key_width,
                     passes::distance_values(mod).size(), config.query_sums, config.table_words) +
           borrows(mod, config) + emit_dense_bias_constants(mod, config, gradients);
}

} // namespace flexc::cuda
