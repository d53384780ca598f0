#include "cuda/emit_mask.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <set>
#include <vector>

#include "cuda/arch/family_text.h"
#include "cuda/policy.h"
#include "passes/distance_value.h"
#include "plan/work.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using ir::Op;
using passes::Place;

namespace {

// What an expression depends on from one side of the scores (queries or keys): values that are kept
// for each row or column, and whether it also uses the position itself.
struct Taken {
    std::set<NodeId> values;
    bool position = false;
    friend bool operator==(const Taken&, const Taken&) = default;
};

struct Part {
    std::vector<NodeId> conjuncts;
    Taken rows, columns;
    int period = 0; // tiles that pass by until it is the same again; 0: it is never
};

constexpr std::size_t kMostParts = 4;
constexpr std::int64_t kLongestPeriod = 2;

// A forward loops over keys, a backward over queries.
bool keys_pass(const plan::KernelConfig& config) {
    return config.kind == plan::KernelKind::forward;
}

class MaskParts {
  public:
    MaskParts(const SymbolTable& symbols, const plan::KernelConfig& config)
        : symbols_(symbols), passing_(keys_pass(config) ? Op::kv_idx : Op::q_idx),
          tile_(keys_pass(config) ? config.block.key_tile : config.block.query_tile) {
        // Visits each conjunct once, however many terms share it. Whatever rows or columns decide
        // alone is a single value of theirs, however many conjuncts it has.
        visit(symbols.mod().mask, [&](NodeId id) {
            const std::vector<NodeId>& said = symbols_.mod().band.said;
            if (std::ranges::find(said, id) != said.end()) return false;
            const ir::Node& node = symbols_.node(id);
            if (node.op == Op::const_bool && node.integer != 0) return false;
            if (node.op == Op::band && symbols_.place(id) == Place::element) return true;
            add(id);
            return false;
        });
    }

    const std::vector<Part>& parts() const { return parts_; }

  private:
    // Like Part::period, for a remainder of the position that the loop moves along; 0 if too long.
    int period_of_remainder(NodeId id) const {
        const ir::Node& node = symbols_.node(id);
        if (node.op != Op::imod || symbols_.node(node.operands[0]).op != passing_) return 0;
        const ir::Node& divisor = symbols_.node(node.operands[1]);
        if (divisor.op != Op::const_int || divisor.integer < 1) return 0;
        const std::int64_t tiles = divisor.integer / std::gcd(divisor.integer, tile_);
        return tiles <= kLongestPeriod ? static_cast<int>(tiles) : 0;
    }

    void add(NodeId id) {
        Part part{.conjuncts = {id},
                  .rows = taken(id, Place::row, Op::q_idx),
                  .columns = taken(id, Place::column, Op::kv_idx),
                  .period = period(id)};
        for (Part& known : parts_)
            if (known.rows == part.rows && known.columns == part.columns &&
                known.period == part.period) {
                known.conjuncts.push_back(id);
                return;
            }
        if (parts_.size() < kMostParts) {
            parts_.push_back(std::move(part));
            return;
        }
        Part& last = parts_.back();
        last.conjuncts.push_back(id);
        last.rows.values.merge(part.rows.values);
        last.columns.values.merge(part.columns.values);
        last.rows.position |= part.rows.position;
        last.columns.position |= part.columns.position;
        last.period = common_period(last.period, part.period);
    }

    Taken taken(NodeId root, Place side, Op position) const {
        Taken result;
        visit(root, [&](NodeId id) {
            if (symbols_.node(id).op == position) result.position = true;
            const std::vector<NodeId>& kept = symbols_.kept(side);
            const bool is_kept = std::ranges::find(kept, id) != kept.end();
            if (is_kept) result.values.insert(id);
            return !is_kept;
        });
        return result;
    }

    static int common_period(int x, int y) { return x == 0 || y == 0 ? 0 : std::lcm(x, y); }

    int period(NodeId root) const {
        int all = 1;
        visit(root, [&](NodeId id) {
            const int own = period_of_remainder(id);
            if (symbols_.node(id).op == passing_) all = 0;
            if (own != 0) all = common_period(all, own);
            return own == 0;
        });
        return all;
    }

    // Visits each node once, from left to right; enter(node) says whether its operands are visited
    // too.
    template <typename Enter> void visit(NodeId root, Enter enter) const {
        std::vector<NodeId> pending = {root};
        std::set<NodeId> seen;
        while (!pending.empty()) {
            const NodeId id = pending.back();
            pending.pop_back();
            if (!seen.insert(id).second || !enter(id)) continue;
            const auto& operands = symbols_.node(id).operands;
            pending.insert(pending.end(), operands.rbegin(), operands.rend());
        }
    }

    const SymbolTable& symbols_;
    Op passing_;
    std::int64_t tile_;
    std::vector<Part> parts_;
};

// Compares floats by their bits, so that every value equals itself.
std::string alike(const SymbolTable& symbols, const Taken& taken) {
    std::string text;
    for (const NodeId id : taken.values) {
        const std::string_view bits = symbols.type(id) == CType::real ? "__float_as_uint" : "";
        const std::string field = value_name(symbols.mod().program, id);
        text += formatted("({0}(x.{1}) == {0}(y.{1})) & ", bits, field);
    }
    return text + (taken.position ? "(at_x == at_y)" : "true");
}

// The function that a part calls, if it is too long to be inlined, and the part's own function.
struct Visible {
    std::string called, own;
};
Visible visible(const SymbolTable& symbols, const Part& part, int index) {
    Body body(symbols, Place::element, "at.");
    body.compute(part.conjuncts);
    std::vector<std::string> all;
    all.reserve(part.conjuncts.size());
    for (const NodeId conjunct : part.conjuncts)
        all.push_back(body.text(conjunct));
    body.line("return " + (all.size() == 1 ? unbracketed(all.front()) : joined(all, " & ")) + ";");
    if (body.instructions() <= plan::kMostWrittenOut)
        return {"", device_function("static bool visible(const At& at)", body)};
    const std::string name = formatted("visible_by_part_{}", index);
    return {element_function("bool", name, "", body),
            formatted("__device__ static bool visible(const At& at) {{\n    return {}(at);\n}}\n",
                      name)};
}

struct MaskPartsText {
    int count = 0;
    std::string text;
};
MaskPartsText emit_mask_parts(const SymbolTable& symbols, const plan::KernelConfig& config) {
    const bool is_main =
        config.kind == plan::KernelKind::forward || config.kind == plan::KernelKind::backward_fused;
    if (!is_main || !family_text(config).has_mask_parts) return {};
    const MaskParts mask(symbols, config);
    if (mask.parts().empty()) return {};
    std::string text = "template <int kIndex> struct MaskPart;\n";
    for (int index = 0; const Part& part : mask.parts()) {
        const Visible functions = visible(symbols, part, index);
        text += functions.called +
                formatted("template <> struct MaskPart<{}> {{\n"
                          "static constexpr int kPeriod = {};\n"
                          "__device__ static bool alike(const Row& x, int at_x, const Row& y, int "
                          "at_y) {{\n    return {};\n}}\n"
                          "__device__ static bool alike(const Column& x, int at_x, const Column& "
                          "y, int at_y) {{\n    return {};\n}}\n",
                          index++, part.period, alike(symbols, part.rows),
                          alike(symbols, part.columns));
        text += functions.own + "};\n";
    }
    return {static_cast<int>(mask.parts().size()), text + "\n"};
}

// Returns the bounds of the band's ends, in the order of mod::Clamps; kNoNode where there is none.
std::array<NodeId, 6> clamp_nodes(const passes::Mod& mod, const KernelMask& mask) {
    const analysis::Clamps none;
    return mask.has_band && mod.band.clamps ? mod.band.clamps->nodes() : none.nodes();
}
int clamp_bits(const passes::Mod& mod, const KernelMask& mask) {
    int bits = 0;
    for (int i = 0; const NodeId bound : clamp_nodes(mod, mask))
        bits |= (bound != ir::kNoNode) << i++;
    return bits;
}

// A function of a head that returns these values in braces.
std::string head_function(std::string_view type, std::string_view name, const std::string& values,
                          Body body) {
    body.line("return {" + values + "};");
    return device_function(formatted("{} {}(const Arguments& arguments, const Launch& launch, "
                                     "const Head& head, int b, int h, int h_kv)",
                                     type, name),
                           body);
}

// Returns the text of the greatest lower bound, or the least upper one.
std::string combined(const Body& body, const std::vector<NodeId>& bounds, std::string_view function,
                     std::string_view none) {
    std::string result;
    for (const NodeId id : bounds) {
        const std::string text = body.text_as(id, CType::wide);
        result = result.empty() ? text : formatted("{}({}, {})", function, result, text);
    }
    return result.empty() ? std::string(none) : result;
}

} // namespace

KernelMask kernel_mask(const passes::Mod& mod, const plan::KernelConfig& config,
                       bool has_elements) {
    const ir::Node& root = mod.program.graph[mod.mask];
    KernelMask mask;
    mask.exists = has_elements && (root.op != Op::const_bool || root.integer == 0);
    mask.has_band = mask.exists && config.kind != plan::KernelKind::block_mask && mod.band.found();
    return mask;
}

std::vector<NodeId> band_roots(const passes::Mod& mod, const KernelMask& mask) {
    if (!mask.has_band) return {};
    std::vector<NodeId> roots = mod.band.low;
    roots.insert(roots.end(), mod.band.high.begin(), mod.band.high.end());
    for (const NodeId bound : clamp_nodes(mod, mask))
        if (bound != ir::kNoNode) roots.push_back(bound);
    return roots;
}

std::string emit_band(const SymbolTable& symbols, const KernelMask& mask) {
    if (!mask.has_band) return "";
    const passes::Mod& mod = symbols.mod();
    const Body body = Body::after_head(symbols);
    std::string text =
        head_function("Band", "band",
                      combined(body, mod.band.low, "flexc_max", "-(1ll << 62)") + ", " +
                          combined(body, mod.band.high, "flexc_min", "1ll << 62"),
                      body);
    if (clamp_bits(mod, mask) == 0) return text;
    std::vector<std::string> bounds;
    for (const NodeId bound : clamp_nodes(mod, mask))
        bounds.push_back(bound == ir::kNoNode ? "0" : body.text_as(bound, CType::wide));
    return text + head_function("Clamps", "clamps", joined(bounds, ", "), body);
}

std::string emit_mask(const SymbolTable& symbols, const plan::KernelConfig& config,
                      const KernelMask& mask) {
    const passes::Mod& mod = symbols.mod();
    const analysis::Band& band = mod.band;
    const MaskPartsText parts = emit_mask_parts(symbols, config);
    Policy policy("Mask");
    policy.constant("kExists", mask.exists);
    policy.constant("kHasBand", mask.has_band);
    policy.constant("kBandIsExact", mask.has_band && band.exact);
    policy.constant("kBandHasLow",
                    mask.has_band && (!band.low.empty() ||
                                      (band.clamps && band.clamps->first_least != ir::kNoNode)));
    policy.constant("kClamps", clamp_bits(mod, mask));
    policy.constant("kHasBlockMask", config.has_block_mask);
    policy.constant("kParts", parts.count);
    policy.constant("kReadsElements", has_backward_policies(config) && is_backward(config.kind) &&
                                          passes::reads_elements_beside(mod, {mod.mask}, {}));
    return policy.text() + parts.text;
}

} // namespace flexc::cuda
