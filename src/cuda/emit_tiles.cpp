#include "cuda/emit_tiles.h"

#include <algorithm>

#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using ir::Op;
using passes::Place;

namespace {

// Emits the mask as interval arithmetic: operators that use both q and kv become calls; what one of
// them alone gives comes from the facts of a tile, and everything else is a number.
class TileTest {
  public:
    explicit TileTest(const SymbolTable& symbols)
        : symbols_(symbols), body_(Body::after_head(symbols)) {}

    std::string statements() {
        const NodeId mask = symbols_.mod().mask;
        std::vector<bool> needed(mask + 1);
        needed[mask] = true;
        for (NodeId id = mask + 1; id-- > 0;)
            if (needed[id] && is_computed(id) && symbols_.node(id).op != Op::read)
                for (NodeId operand : symbols_.node(id).operands)
                    needed[operand] = true;
        for (NodeId id = 0; id <= mask; ++id)
            if (needed[id] && is_computed(id))
                body_.line("const interval::Fact " + name(id) + " = " + value(id) + ";");
        body_.line("return " + fact(mask) + ";");
        return body_.statements();
    }

  private:
    bool is_computed(NodeId id) const {
        return !symbols_.is_free(id) &&
               (symbols_.place(id) == Place::element || symbols_.is_repeated(id));
    }
    std::string name(NodeId id) const { return value_name(symbols_.mod().program, id); }

    std::string value(NodeId id) const {
        const ir::Node& node = symbols_.node(id);
        if (node.op == Op::read || (node.op == Op::sum && node.type == ir::Type::real) ||
            !analysis::has_tile_interval(node.op))
            return node.type == ir::Type::boolean ? "interval::any_truth()"
                                                  : "interval::anything()";
        std::vector<std::string> operands;
        operands.reserve(node.operands.size());
        for (NodeId operand : node.operands)
            operands.push_back(fact(operand));
        return formatted("interval::{}({})", ir::info(node.op).name, joined(operands, ", "));
    }

    std::string fact(NodeId id) const {
        const ir::Node& node = symbols_.node(id);
        if (node.op == Op::q_idx) return "q";
        if (node.op == Op::kv_idx) return "kv";
        if (is_computed(id)) return name(id);
        const auto kept = [&](Place place, const char* side) {
            const std::vector<NodeId>& nodes = symbols_.kept(place);
            return formatted("{}[{}]", side, std::ranges::find(nodes, id) - nodes.begin());
        };
        if (!symbols_.is_free(id) && symbols_.place(id) == Place::row)
            return kept(Place::row, "queries");
        if (!symbols_.is_free(id) && symbols_.place(id) == Place::column)
            return kept(Place::column, "keys");
        return "interval::of(" + unbracketed(body_.text(id)) + ")";
    }

    const SymbolTable& symbols_;
    Body body_;
};

std::string side_function(const SymbolTable& symbols, Place place, std::string_view function,
                          std::string_view type, std::string_view value) {
    std::string text =
        formatted("__device__ inline void {}(const {}& {}, interval::Fact* facts) {{\n", function,
                  type, value);
    for (int index = 0; const NodeId id : symbols.kept(place))
        text += formatted("    facts[{}] = interval::of({}.{});\n", index++, value,
                          value_name(symbols.mod().program, id));
    return text + "}\n\n";
}

} // namespace

TileFacts tile_facts(const passes::Mod& mod) {
    const SymbolTable symbols(mod, {mod.mask}, passes::Precision::exact);
    return {static_cast<int>(symbols.kept(Place::row).size()),
            static_cast<int>(symbols.kept(Place::column).size())};
}

std::string emit_tile_functions(const SymbolTable& symbols) {
    return formatted("constexpr int kQueryFacts = {}, kKeyFacts = {};\n\n",
                     symbols.kept(Place::row).size(), symbols.kept(Place::column).size()) +
           side_function(symbols, Place::row, "query_facts", "Row", "row") +
           side_function(symbols, Place::column, "key_facts", "Column", "column") +
           "__device__ inline interval::Fact tile_visible(\n"
           "    const Arguments& arguments, const Launch& launch, const Head& head, int b, int h,\n"
           "    int h_kv, interval::Fact q, interval::Fact kv, const interval::Fact* queries,\n"
           "    const interval::Fact* keys) {\n" +
           TileTest(symbols).statements() + "}\n\n";
}

} // namespace flexc::cuda
