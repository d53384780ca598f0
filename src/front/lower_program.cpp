#include <algorithm>

#include "dsl/parser.h"
#include "front/lower.h"
#include "front/names.h"
#include "front/operators.h"

namespace flexc::front {

using dsl::Item;
using dsl::ItemKind;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;
using ir::Type;

namespace {

// Names that other items call.
std::unordered_set<std::string> called_names(const dsl::Ast& ast) {
    std::unordered_set<std::string> names;
    for (const dsl::Expr& expr : ast.exprs)
        if (expr.kind == dsl::ExprKind::call) names.insert(ast[expr.operands[0]].name);
    return names;
}

} // namespace

std::size_t required_parameters(const Item& item) {
    return static_cast<std::size_t>(std::count_if(
        item.parameters.begin(), item.parameters.end(),
        [](const dsl::Parameter& parameter) { return parameter.default_value == dsl::kNoExpr; }));
}

Lowering::Lowering(const Input& input, Reporter& reporter)
    : input_(input), report_(reporter), program_builder_(program_.graph, reporter),
      build_(&program_builder_) {}

std::optional<ir::Program> Lowering::run(dsl::Ast ast) {
    main_.source = &input_.source;
    main_.ast = std::move(ast);
    Scope scope{.module = &main_, .body = nullptr, .locals = {}};
    scope_ = &scope;
    declare_all();
    find_mods();
    if (report_.failed()) {
        // Names are still worth checking: each error that is shown now is one run less.
        check_uncalled_functions();
        return std::nullopt;
    }
    lower_mods();
    check_uncalled_functions();
    if (!report_.failed()) check_gradients();
    if (report_.failed()) return std::nullopt;
    return std::move(program_);
}

// Explicit mods, else the def of five or four parameters that nothing calls, else the expression.
void Lowering::find_mods() {
    const auto choose = [&](const Item*& slot, const Item& item, const std::string& what) {
        if (slot == nullptr) {
            slot = &item;
            return;
        }
        const dsl::Span first = slot->name_span.end > 0 ? slot->name_span : slot->span;
        report_.error(item.name_span.end > 0 ? item.name_span : item.span,
                      "the program has a second " + what, "", {{first, "the first one is here"}});
    };
    for (const Item& item : main_.ast.items) {
        if (item.kind == ItemKind::score_mod) choose(score_item_, item, "score_mod");
        if (item.kind == ItemKind::mask_mod) choose(mask_item_, item, "mask_mod");
        if (item.kind == ItemKind::expression) choose(expression_item_, item, "bare expression");
    }
    const std::unordered_set<std::string> called = called_names(main_.ast);
    const bool explicit_score = score_item_ != nullptr, explicit_mask = mask_item_ != nullptr;
    const Item* other_def = nullptr;
    for (const Item& item : main_.ast.items) {
        if (item.kind != ItemKind::function || !item.python || called.contains(item.name)) continue;
        const std::size_t required = required_parameters(item);
        if (required == kScoreParameters && !explicit_score)
            choose(score_item_, item, "score_mod");
        else if (required == kMaskParameters && !explicit_mask)
            choose(mask_item_, item, "mask_mod");
        else if (required != kScoreParameters && required != kMaskParameters)
            other_def = &item;
    }
    const bool has_mod = score_item_ != nullptr || mask_item_ != nullptr;
    if (expression_item_ != nullptr && has_mod) {
        const Item& mod = score_item_ != nullptr ? *score_item_ : *mask_item_;
        const std::string_view text = input_.source.slice(expression_item_->span);
        const bool continues = text.starts_with('+') || text.starts_with('-');
        report_.error(expression_item_->span, "this expression is not part of a mod",
                      continues
                          ? "to go on from the line before, end that line with the operator or "
                            "use parentheses"
                          : "write score_mod = ... or mask_mod = ... in front of it",
                      {{mod.name_span, "the program has a mod here"}});
    }
    if (!has_mod && expression_item_ == nullptr && other_def != nullptr)
        report_.error(
            other_def->name_span,
            "'" + other_def->name + "' has " + std::to_string(required_parameters(*other_def)) +
                " parameters, and is neither a score_mod nor a mask_mod",
            "a score_mod has five (score, b, h, q_idx, kv_idx), a mask_mod the last four");
}

void Lowering::lower_mods() {
    if (expression_item_ != nullptr) lower_expression_program(*expression_item_);
    if (score_item_ != nullptr) set_score(lower_mod_item(*score_item_, false));
    const bool has_mask = mask_item_ != nullptr || program_.mask != kNoNode;
    if (mask_item_ != nullptr) set_mask(lower_mod_item(*mask_item_, true));
    if (!input_.mask_mod.empty()) {
        if (has_mask)
            report_.warning({}, "the mask_mod option is not used: the text has a mask_mod");
        else
            set_mask(lower_option_mask());
    }
    if (program_.score == kNoNode) program_.score = program_.graph.ambient(Op::score);
    if (program_.mask == kNoNode) program_.mask = program_.graph.boolean(true);
}

Operand Lowering::lower_mod_item(const Item& item, bool is_mask) {
    Scope scope{.module = &main_, .body = &item.body, .locals = {}};
    Scope* const outer = scope_;
    scope_ = &scope;
    in_mask_ = is_mask;
    Value value;
    if (item.kind == ItemKind::function) {
        constexpr Op kAmbient[] = {Op::score, Op::b, Op::h, Op::q_idx, Op::kv_idx};
        std::vector<Argument> arguments(item.parameters.size());
        std::size_t next = is_mask ? 1 : 0;
        for (std::size_t i = 0; i < arguments.size() && next < std::size(kAmbient); ++i) {
            const dsl::Parameter& parameter = item.parameters[i];
            if (parameter.default_value != dsl::kNoExpr) continue;
            arguments[i] = {.value = value_of(build().ambient(kAmbient[next++], parameter.span)),
                            .span = parameter.span,
                            .given = true};
        }
        called_.insert(&item);
        value = inline_function(main_, item, std::move(arguments), {});
    } else {
        value = lower_body(item.body);
    }
    const Operand result = number_of(value, item.body.back().span);
    in_mask_ = false;
    scope_ = outer;
    return {.node = result.node, .span = main_.ast[item.body.back().value].span};
}

// The type of a bare expression says which mod it is.
void Lowering::lower_expression_program(const Item& item) {
    const Operand value = number(item.value);
    if (value.node == kNoNode) return;
    if (build().type(value.node) != Type::boolean) {
        set_score(value);
        return;
    }
    const NodeId roots[] = {value.node};
    for (const NodeId node : ir::reachable(program_.graph, roots)) {
        if (program_.graph[node].op != Op::score) continue;
        report_.error(program_.graph[node].span, "mask_mod cannot use score",
                      "this program is a mask_mod because its value is bool; for a score_mod write "
                      "where(..., score, -inf)");
        return;
    }
    set_mask(value);
}

Operand Lowering::lower_option_mask() {
    option_.own_source = dsl::Source("mask_mod", input_.mask_mod);
    option_.source = &option_.own_source;
    const Reporter::Place place = report_.place();
    report_.set_place({.source = option_.source});
    dsl::Parsed parsed = dsl::parse(*option_.source);
    report_.add(parsed.diagnostics);
    option_.ast = std::move(parsed.ast);
    Operand value;
    if (!dsl::has_errors(parsed.diagnostics)) {
        const std::vector<Item>& items = option_.ast.items;
        const bool expression = items.size() == 1 && items[0].kind == ItemKind::expression;
        const bool mod = items.size() == 1 && items[0].kind == ItemKind::mask_mod;
        if (expression || mod) {
            Scope scope{.module = &option_, .body = mod ? &items[0].body : nullptr, .locals = {}};
            scope_ = &scope;
            in_mask_ = true;
            if (expression)
                value = number(items[0].value);
            else
                value = number_of(lower_body(items[0].body), items[0].body.back().span);
            set_mask(value);
            in_mask_ = false;
        } else {
            report_.error({}, "the mask_mod option is not an expression",
                          "declarations stand in the text, or in the options");
        }
    }
    report_.set_place(place);
    return value;
}

void Lowering::set_score(Operand value) {
    if (value.node == kNoNode) return;
    if (build().type(value.node) == Type::boolean)
        report_.error(value.span, "score_mod must be a number, but this is bool",
                      "write where(..., score, -inf), or make it the mask_mod");
    else
        program_.score = build().to_real(value.node, value.span);
}

void Lowering::set_mask(Operand value) {
    if (value.node == kNoNode) return;
    const Type type = build().type(value.node);
    if (type != Type::boolean)
        report_.error(value.span, "mask_mod must be bool, but this is " + a_type(type),
                      "compare it, such as ... != 0");
    else
        program_.mask = value.node;
}

void Lowering::check_gradients() {
    std::vector<bool> read_by_score(program_.buffers.size(), false);
    const NodeId score_roots[] = {program_.score};
    for (const NodeId node : ir::reachable(program_.graph, score_roots))
        if (program_.graph[node].op == Op::read) read_by_score[program_.graph[node].symbol] = true;

    std::vector<bool> refused(program_.buffers.size(), false);
    const NodeId mask_roots[] = {program_.mask};
    for (const NodeId id : ir::reachable(program_.graph, mask_roots)) {
        const ir::Node& node = program_.graph[id];
        if (node.op != Op::read || !program_.buffers[node.symbol].grad || refused[node.symbol])
            continue;
        refused[node.symbol] = true;
        const ir::Buffer& buffer = program_.buffers[node.symbol];
        std::vector<dsl::Note> notes;
        if (buffer.span.end > 0) notes.push_back({buffer.span, "declared here"});
        report_.error(
            node.span, "mask_mod reads '" + buffer.name + "', which wants a gradient",
            "a mask has no derivative: pass the values for the mask in a buffer without grad",
            std::move(notes));
    }
    for (std::size_t i = 0; i < program_.buffers.size(); ++i)
        if (program_.buffers[i].grad && !read_by_score[i] && !refused[i])
            report_.warning(program_.buffers[i].span, "score_mod does not read '" +
                                                          program_.buffers[i].name +
                                                          "': its gradient is zero");
}

} // namespace flexc::front
