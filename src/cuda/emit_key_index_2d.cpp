#include "cuda/emit_key_index_2d.h"

#include <algorithm>

#include "cuda/arch/family_text.h"
#include "cuda/kernel_gradients.h"
#include "cuda/names.h"
#include "cuda/policy.h"
#include "passes/gradient_sum.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;

namespace {

std::vector<NodeId> staged_columns(const passes::Mod& mod, const plan::KernelConfig& config) {
    return config.storage.stages_columns ? passes::column_reads(mod, config.sums.key_width)
                                         : std::vector<NodeId>{};
}

} // namespace

std::vector<NodeId> staged_reads(const passes::Mod& mod, const plan::KernelConfig& config) {
    if (!has_backward_policies(config) || config.sums.key_width == 0) return {};
    std::vector<NodeId> reads = passes::row_reads(mod, config.sums.key_width);
    const std::vector<NodeId> columns = staged_columns(mod, config);
    reads.insert(reads.end(), columns.begin(), columns.end());
    return reads;
}

std::string emit_key_index_2d(const SymbolTable& symbols, const plan::KernelConfig& config,
                              const std::vector<passes::ReadGradient>& gradients) {
    if (config.sums.key_width == 0) return "";
    const passes::Mod& mod = symbols.mod();
    const std::vector<NodeId> columns = staged_columns(mod, config);
    std::vector<NodeId> rows = staged_reads(mod, config);
    rows.resize(rows.size() - columns.size());
    std::size_t bytes = 0;
    for (const NodeId read : columns)
        bytes = std::max(bytes, size_of(mod.program.buffer_of(read).dtype));
    Policy policy("KeyIndex2d");
    policy.constant("kWidth", config.sums.key_width);
    policy.constant("kRowReads", static_cast<int>(rows.size()));
    policy.constant("kColumnReads", static_cast<int>(columns.size()));
    policy.constant("kColumnBytes", static_cast<int>(bytes));
    policy.constant("kColumnsAreLinear", passes::are_columns_linear(mod, config.sums.key_width),
                    true);
    policy.constant("kReadsAreLinear", passes::are_reads_linear(mod, config.sums.key_width));
    policy.constant("kSumsQuotients",
                    has_sum(mod, config, gradients, passes::GradientSum::quotient));
    policy.constant("kSumsRemainders",
                    has_sum(mod, config, gradients, passes::GradientSum::remainder));
    policy.constant("kStagesSums", config.storage.stages_sums);
    std::string text = policy.text();
    const auto emit = [&](std::string_view form, const std::vector<NodeId>& reads) {
        if (!reads.empty()) text += formatted("template <int kRead> struct {};\n", form);
        for (std::size_t i = 0; i < reads.size(); ++i) {
            Body body(symbols, Place::element, "at.");
            body.compute(symbols.node(reads[i]).operands);
            body.line("return " + body.element_address(reads[i]) + ";");
            text += formatted("template <> struct {}<{}> {{\n    using Element = {};\n{}}};\n\n",
                              form, i, element_type(mod.program.buffer_of(reads[i]).dtype),
                              member_function("const Element* address(const At& at)", body));
        }
    };
    emit("RowRead", rows);
    emit("ColumnRead", columns);
    return text;
}

} // namespace flexc::cuda
