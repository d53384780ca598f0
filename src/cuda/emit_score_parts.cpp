#include "cuda/emit_score_parts.h"

#include "cuda/emit_shifted_reads.h"
#include "cuda/emit_staged_tables.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::kNoNode;
using ir::NodeId;

std::string from_float(const SymbolTable& symbols, NodeId id, const std::string& text) {
    switch (symbols.type(id)) {
    case CType::boolean: return "(" + text + " != 0)";
    case CType::narrow: return "__float_as_int(" + text + ")";
    case CType::wide:
    case CType::real: break;
    }
    return text;
}

void provide_parts(Body& body, const SymbolTable& symbols, const passes::ScoreParts& parts) {
    const auto provide = [&](const std::vector<NodeId>& values, std::string_view from) {
        for (std::size_t i = 0; i < values.size(); ++i)
            body.provide(values[i],
                         from_float(symbols, values[i], formatted("at.{}[{}]", from, i)));
    };
    provide(parts.key_values, "key_values");
    provide(parts.distance_values, "distance_values");
    for (std::size_t i = 0; const passes::ShiftedRead& shifted : parts.shifted)
        body.provide(shifted.read, formatted("at.shifted[{}]", i++));
}

std::vector<NodeId> logit_roots(const passes::ScoreParts& parts) {
    std::vector<NodeId> roots = parts.key_values;
    for (const passes::RowKeyProduct& product : parts.products)
        roots.push_back(product.row);
    roots.insert(roots.end(), parts.distance_values.begin(), parts.distance_values.end());
    for (const NodeId id : {parts.bias_read, parts.multiplier, parts.row_addend, parts.slope,
                            parts.quotient_addend, parts.remainder_addend, parts.element_addend,
                            parts.cap, parts.kinds.kind, parts.kinds.addend_of_kind})
        if (id != kNoNode) roots.push_back(id);
    for (const std::vector<NodeId>& bounds : {parts.bias_band.low, parts.bias_band.high})
        roots.insert(roots.end(), bounds.begin(), bounds.end());
    const std::vector<NodeId> of_tables = staged_roots(parts.staged);
    roots.insert(roots.end(), of_tables.begin(), of_tables.end());
    const std::vector<NodeId> of_shifts = shifted_roots(parts.shifted);
    roots.insert(roots.end(), of_shifts.begin(), of_shifts.end());
    return roots;
}

} // namespace flexc::cuda
