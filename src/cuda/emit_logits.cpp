#include "cuda/emit_logits.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "common/expanded.h"
#include "cuda/emit_matrix.h"
#include "cuda/names.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::kNoNode;
using ir::NodeId;

namespace {

bool reads_keys(const passes::Mod& mod) {
    const std::vector<NodeId> roots = {mod.score, mod.mask};
    for (const NodeId id : ir::reachable(mod.program.graph, roots))
        if (mod.program.graph[id].op == ir::Op::read &&
            mod.dependence[id].has(analysis::Dependence::kv))
            return true;
    return false;
}

// What no logit times log2(e) exceeds in either direction; 0 where nothing useful is known.
int exponent_bound(const passes::Mod& mod) {
    constexpr double kUseless = 1e6;
    const double bound = std::ceil(mod.ranges.magnitude[mod.score] * std::numbers::log2e);
    return bound < kUseless ? std::max(1, static_cast<int>(bound)) : 0;
}

// What is computed before the kernel is kept as floats; integers as their bits.
std::string as_float(const Layout& layout, NodeId id, const std::string& text) {
    switch (layout.type(id)) {
    case CType::boolean: return text + " ? 1.0f : 0.0f";
    case CType::narrow: return "__int_as_float(" + unbracketed(text) + ")";
    case CType::wide:
    case CType::real: break;
    }
    return text;
}
std::string from_float(const Layout& layout, NodeId id, const std::string& text) {
    switch (layout.type(id)) {
    case CType::boolean: return "(" + text + " != 0)";
    case CType::narrow: return "__float_as_int(" + text + ")";
    case CType::wide:
    case CType::real: break;
    }
    return text;
}

// Addends as the kernel adds them.
std::string value_function(const Layout& layout, const ScoreParts& parts,
                           const std::vector<NodeId>& values, std::string_view called) {
    Body body(layout, passes::Place::element, "at.");
    body.compute(values);
    for (std::size_t i = 0; i < values.size(); ++i) {
        const bool is_addend = values[i] == parts.key_addend || values[i] == parts.distance_addend;
        body.line(formatted("if (value == {}) return {}{};", i,
                            as_float(layout, values[i], body.text(values[i])),
                            i == 0 && is_addend && parts.are_exponents() ? " * 1.44269504f" : ""));
    }
    body.line("return 0;");
    return device_function(formatted("float {}(const At& at, int value)", called), body);
}

} // namespace

void provide_expanded(Body& body, const Layout& layout, const ScoreParts& parts) {
    const auto provide = [&](const std::vector<NodeId>& values, std::string_view from) {
        for (std::size_t i = 0; i < values.size(); ++i)
            body.provide(values[i], from_float(layout, values[i], formatted("at.{}[{}]", from, i)));
    };
    provide(parts.key_values, "key_values");
    provide(parts.distance_values, "distance_values");
}

std::vector<NodeId> logit_roots(const ScoreParts& parts) {
    std::vector<NodeId> roots = parts.key_values;
    roots.insert(roots.end(), parts.distance_values.begin(), parts.distance_values.end());
    for (const NodeId id :
         {parts.bias_read, parts.multiplier, parts.row_addend, parts.slope, parts.quotient_addend,
          parts.remainder_addend, parts.element_addend, parts.cap})
        if (id != kNoNode) roots.push_back(id);
    return roots;
}

std::string emit_logit_constants(const KernelConfig& config, const FoldedMod& folded) {
    const HopperForward& hopper = *config.hopper;
    const ScoreParts& parts = folded.parts;
    std::string text = formatted(
        "constexpr int kQueryStages = {};\nconstexpr int kSettlesAfter = {};\n"
        "enum class Turns {{ none, products, softmax }};\n"
        "constexpr Turns kTurns = Turns::{};\n",
        hopper.schedule.query_stages, hopper.schedule.settles_after, name(hopper.schedule.turns));
    const auto constant = [&](std::string_view called, bool value) {
        text += formatted("constexpr bool {} = {};\n", called, value);
    };
    constant("kOverlaps", hopper.schedule.overlaps);
    constant("kHasRegistersForColumns", hopper.has_registers_for_columns);
    const analysis::Band& band = folded.mod.band;
    constant("kBandHasLow",
             !band.low.empty() || (band.clamps && band.clamps->first_least != ir::kNoNode));
    constant("kReadsKeys", reads_keys(folded.mod));
    constant("kScoreIsAffine", parts.found());
    constant("kScoreIsCapped", parts.cap != kNoNode);
    constant("kMultiplierIsOne", multiplies_by_one(folded.mod.program.graph, parts));
    text += formatted("constexpr int kExponentBound = {};\n", exponent_bound(folded.mod));
    constant("kHasRowAddend", parts.row_addend != kNoNode);
    constant("kHasSlope", parts.slope != kNoNode);
    constant("kSlopeIsOfHead",
             parts.slope != kNoNode && folded.mod.place[parts.slope] <= passes::Place::head);
    constant("kHasElementAddend", parts.element_addend != kNoNode);
    constant("kHasKeyAddend", parts.key_addend != kNoNode);
    constant("kHasDistanceAddend", parts.distance_addend != kNoNode);
    constant("kLogitsAreExponents", parts.are_exponents());
    constant("kHasQuotientAddend", parts.quotient_addend != kNoNode);
    constant("kHasRemainderAddend", parts.remainder_addend != kNoNode);
    constant("kKeysAreGrid", config.key_width != 0);
    constant("kMultipliesGridRows", hopper.multiplies_grid_rows);
    text += formatted("constexpr int kKeyWidth = {};\n",
                      config.key_width == 0 ? config.key_tile : config.key_width);
    constant("kReadsBias", parts.bias_read != kNoNode);
    text += formatted("constexpr int kTileOverhang = {};\n"
                      "constexpr int kKeyValues = {}, kDistanceValues = {}, kDistanceCopies = 2;\n",
                      kForwardOverhang, hopper.expanded.keys, hopper.expanded.distances);
    constant("kVectorsUseBatch", hopper.expanded.by_batch);
    constant("kVectorsUseHead", hopper.expanded.by_head);
    // A macro: an entry of a template is there or not.
    if (hopper.expanded.any()) text += "#define FLEXC_EXPANDS\n";
    return text;
}

std::string emit_logit_functions(const Layout& layout, const ScoreParts& parts) {
    std::string text;
    const auto function = [&](std::string_view called, NodeId value, std::string_view more = "") {
        Body body(layout, passes::Place::element, "at.");
        if (parts.bias_read != kNoNode && !more.empty()) body.provide(parts.bias_read, "bias");
        if (!more.empty()) provide_expanded(body, layout, parts);
        if (value != kNoNode && (value == parts.quotient_addend || value == parts.remainder_addend))
            body.read_without_branches();
        if (value != kNoNode) body.compute({value});
        body.line(
            formatted("return {};", value == kNoNode ? "0.0f" : unbracketed(body.text(value))));
        text += device_function(formatted("float {}(const At& at{})", called, more), body);
    };
    function("multiplier", parts.multiplier);
    function("row_addend", parts.row_addend);
    function("slope", parts.slope);
    function("quotient_addend", parts.quotient_addend);
    function("remainder_addend", parts.remainder_addend);
    function("element_addend", parts.element_addend, ", float bias");
    function("cap", parts.cap);
    text += emit_bias_functions(layout, parts.bias_read);
    text += value_function(layout, parts, parts.key_values, "key_value") +
            value_function(layout, parts, parts.distance_values, "distance_value");
    return text;
}

} // namespace flexc::cuda
