#include "cuda/arch/sm90/emit_forward_constants.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "cuda/policy.h"
#include "plan/arch/sm90/sm90.h"
#include "sm90/score_form.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::kNoNode;
using ir::NodeId;

namespace {

// Whether the mask or the score reads memory by the key; known: apart from these values, which were
// computed before.
bool reads_keys(const passes::Mod& mod, const std::vector<NodeId>& known = {}) {
    const auto reads = [&](NodeId root, const std::vector<NodeId>& leaves) {
        bool found = false;
        ir::visit_from(mod.program.graph, {root}, [&](NodeId id) {
            const bool is_leaf = std::ranges::count(leaves, id) != 0;
            found = found || (!is_leaf && mod.program.graph[id].op == ir::Op::read &&
                              mod.dependence[id].has(analysis::Dependence::kv));
            return !is_leaf && !found;
        });
        return found;
    };
    return reads(mod.score, known) || reads(mod.mask, {});
}

std::vector<NodeId> values_before(const passes::ScoreParts& parts) {
    std::vector<NodeId> values = parts.key_values;
    values.insert(values.end(), parts.distance_values.begin(), parts.distance_values.end());
    return values;
}

// Returns a bound on the absolute value of every logit times log2(e); 0 if no useful bound is
// known.
int exponent_bound(const passes::Mod& mod) {
    constexpr double kUseless = 1e6;
    const double bound = std::ceil(mod.ranges.magnitude[mod.score] * std::numbers::log2e);
    return bound < kUseless ? std::max(1, static_cast<int>(bound)) : 0;
}

// Returns the sizes without those that this decomposition of the program does not need.
::sm90::ForwardSizes sizes_of(const plan::sm90::Forward& forward, const passes::ScoreParts& parts) {
    ::sm90::ForwardSizes sizes = forward.sizes;
    if (parts.bias_read == kNoNode) sizes.bias_bytes = 0;
    if (parts.quotient_addend == kNoNode) sizes.index_2d_rows = 0;
    return sizes;
}

::sm90::ScoreForm form_of(const passes::Mod& mod, const passes::ScoreParts& parts,
                          const plan::sm90::Forward& forward) {
    const bool multiplies_key_addend = forward.sizes.multiplies_key_addend;
    const auto has = [](NodeId part) { return part != kNoNode; };
    const bool adds_keys_alone =
        passes::adds_keys_alone(mod, parts) && (multiplies_key_addend || !has(parts.key_addend));
    const bool has_factor =
        adds_keys_alone && !passes::can_divide_by_multiplier(mod.program.graph, parts);
    return {.is_affine = parts.found(),
            .is_product = adds_keys_alone || forward.sizes.starts_with_distances ||
                          (forward.sizes.multiplies_slope && !has(parts.element_addend)) ||
                          passes::are_products(mod.program.graph, parts),
            .is_capped = has(parts.cap),
            .multiplier_is_one = passes::multiplies_by_one(mod.program.graph, parts),
            .has_factor = has_factor,
            .factor_is_of_head = has_factor && mod.place[parts.multiplier] <= passes::Place::head,
            .has_row_addend = has(parts.row_addend),
            .has_remainder_addend = has(parts.remainder_addend),
            .has_element_addend = has(parts.element_addend),
            .has_key_addend = has(parts.key_addend) && !multiplies_key_addend,
            .has_distance_addend = has(parts.distance_addend),
            .has_slope = has(parts.slope),
            .slope_is_of_head = has(parts.slope) && mod.place[parts.slope] <= passes::Place::head,
            .are_exponents = parts.are_exponents(),
            .uses_reads_of_keys = reads_keys(mod),
            .reads_keys = reads_keys(mod, values_before(parts)),
            .exponent_bound = exponent_bound(mod)};
}

// Emits a constant of a type that host and device share. Members that are zero are omitted.
class SharedConstant {
  public:
    SharedConstant(std::string_view type, std::string_view made_by)
        : text_(formatted("constexpr sm90::{0} {1}() {{\n    sm90::{0} made;\n", type, made_by)) {}

    template <typename Value> void member(std::string_view called, Value value) {
        if (value != Value{}) text_ += formatted("    made.{} = {};\n", called, value);
    }
    std::string text() const { return text_ + "    return made;\n}\n"; }

  private:
    std::string text_;
};

std::string emit_sizes(const ::sm90::ForwardSizes& sizes) {
    SharedConstant constant("ForwardSizes", "sizes");
#define FLEXC_MEMBER(type, name) constant.member(#name, sizes.name);
#include "sm90/forward_sizes.def"
    return constant.text() + "constexpr sm90::ForwardSizes kSizes = sizes();\n";
}

std::string emit_form(const ::sm90::ScoreForm& form) {
    SharedConstant constant("ScoreForm", "score_form");
#define FLEXC_MEMBER(type, name) constant.member(#name, form.name);
#include "sm90/score_form.def"
    return constant.text() + "constexpr sm90::ScoreForm kScoreForm = score_form();\n";
}

// Emits macros of the features that the kernel has: headers leave out what others need, which the
// compiler would parse for nothing. A class that is left out and needed is an error, as it is only
// declared.
std::string emit_features(const plan::sm90::Forward& forward, const ::sm90::ForwardSizes& sizes,
                          const ::sm90::ScoreForm& form, bool has_score_mod) {
    const bool has_key_kinds =
        sizes.kind_columns != 0 || sizes.kind_copies != 0 || sizes.pair_kinds != 0;
    const bool has_operands = sizes.index_2d_rows != 0 || sizes.multiplies_key_addend ||
                              sizes.multiplies_slope || sizes.row_key_products != 0;
    const std::pair<std::string_view, bool> features[] = {
        {"COPIES_KEYS", sizes.copies_keys},
        {"HAS_DENSE_BIAS", sizes.bias_bytes != 0},
        {"HAS_KEY_KINDS", has_key_kinds},
        {"HAS_OPERANDS", has_operands},
        {"HAS_SHIFTED_READS", sizes.shifted_bytes != 0},
        {"HAS_TABLES", sizes.table_words != 0 || sizes.pair_kinds != 0},
        {"IS_AFFINE", has_score_mod && form.is_affine && !form.is_product},
        {"TABULATES", forward.tabulates()}}; // the template has another entry point
    std::string text;
    for (const auto& [name, is_there] : features)
        if (is_there) text += formatted("#define FLEXC_{}\n", name);
    return text;
}

std::string emit_schedule(const plan::KernelConfig& config, const plan::sm90::Forward& forward) {
    const plan::ForwardSchedule& schedule = *config.schedule;
    Policy policy("ForwardSchedule");
    policy.constant("kOverlaps", schedule.overlaps, true);
    if (schedule.ping_pong != plan::PingPong::none)
        policy.member(formatted("    static constexpr PingPong kPingPong = PingPong::{};\n",
                                name(schedule.ping_pong)));
    policy.constant("kRescalesAfter", schedule.rescales_after);
    policy.constant("kPolynomials", schedule.polynomials);
    policy.constant("kStartsAtHighest", forward.starts_at_highest);
    policy.constant("kGoesByHeads", forward.goes_by_heads);
    policy.constant("kComputesInParts", forward.computes_in_parts);
    policy.constant("kVisitsFirstInLoop", config.form.writes_scores_once);
    policy.constant("kHasRegistersForColumns", forward.has_registers_for_columns, true);
    return policy.text();
}

} // namespace

std::string emit_forward_constants(const plan::KernelConfig& config, const passes::Mod& mod,
                                   const passes::ScoreParts& parts) {
    const plan::sm90::Forward& forward = *plan::sm90::forward_of(config);
    const ::sm90::ForwardSizes sizes = sizes_of(forward, parts);
    const ::sm90::ScoreForm form = form_of(mod, parts, forward);
    return emit_sizes(sizes) + emit_form(form) +
           formatted("constexpr int kKeyStep = {};\n", forward.key_step) +
           emit_schedule(config, forward) +
           emit_features(forward, sizes, form, mod.program.graph[mod.score].op != ir::Op::score);
}

} // namespace flexc::cuda
