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

// Names of functions that something else in the text calls, or names as a value.
class References {
  public:
    explicit References(const dsl::Ast& ast) : ast_(ast) {
        for (const Item& item : ast.items) {
            of_expression(item.value, {});
            of_function(item, nullptr);
        }
    }
    bool contain(const std::string& name) const { return names_.contains(name); }

  private:
    struct Locals {
        std::unordered_set<std::string> names;
        const Locals* outer = nullptr;

        bool contain(const std::string& name) const {
            return names.contains(name) || (outer != nullptr && outer->contain(name));
        }
    };

    // NOLINTNEXTLINE(misc-no-recursion): as deep as functions in functions
    void of_function(const Item& item, const Locals* outer) {
        Locals locals{.names = {}, .outer = outer};
        for (const dsl::Parameter& parameter : item.parameters)
            locals.names.insert(parameter.name);
        for (const dsl::Statement& statement : item.body)
            if (statement.kind != dsl::StatementKind::result) locals.names.insert(statement.name);
        for (const dsl::Parameter& parameter : item.parameters)
            of_expression(parameter.default_value, locals);
        for (const dsl::Statement& statement : item.body) {
            of_expression(statement.value, locals);
            if (statement.kind == dsl::StatementKind::function)
                of_function(ast_.functions[statement.function], &locals);
        }
    }

    void of_expression(dsl::ExprId id, const Locals& locals) {
        std::vector<dsl::ExprId> open;
        if (id != dsl::kNoExpr) open.push_back(id);
        while (!open.empty()) {
            const dsl::Expr& expr = ast_[open.back()];
            open.pop_back();
            if (expr.kind == dsl::ExprKind::name && !expr.qualified && !locals.contain(expr.name))
                names_.insert(expr.name);
            open.insert(open.end(), expr.operands.begin(), expr.operands.end());
        }
    }

    const dsl::Ast& ast_;
    std::unordered_set<std::string> names_;
};

// Whether a def returns a function, so that it is no mod itself.
bool is_generator(const dsl::Ast& ast, const Item& item) {
    if (item.body.empty() || item.body.back().kind != dsl::StatementKind::result) return false;
    const dsl::Expr& result = ast[item.body.back().value];
    if (result.kind == dsl::ExprKind::call)
        return combination_of(ast[result.operands[0]].name).has_value();
    return result.kind == dsl::ExprKind::name &&
           std::ranges::any_of(item.body, [&](const dsl::Statement& statement) {
               if (statement.name != result.name) return false;
               if (statement.kind == dsl::StatementKind::function) return true;
               const dsl::Expr& value = ast[statement.value];
               return value.kind == dsl::ExprKind::call &&
                      combination_of(ast[value.operands[0]].name).has_value();
           });
}

} // namespace

std::size_t required_parameters(const Item& item) {
    return static_cast<std::size_t>(std::count_if(
        item.parameters.begin(), item.parameters.end(),
        [](const dsl::Parameter& parameter) { return parameter.default_value == dsl::kNoExpr; }));
}

Lowering::Lowering(const Input& input, Reporter& reporter)
    : input_(input), report_(reporter), program_builder_(program_.graph, reporter),
      build_(&program_builder_) {
    program_.query_layout = input.query_layout;
    program_.key_layout = input.key_layout;
}

std::optional<ir::Program> Lowering::run(dsl::Ast ast) {
    main_.source = &input_.source;
    main_.ast = std::move(ast);
    Scope scope{.module = &main_, .body = nullptr, .locals = {}};
    scope_ = &scope;
    find_sink();
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

// A program that reads the name `sink`, and declares nothing else of that name, has a constant.
void Lowering::find_sink() {
    const Item* first = nullptr;
    bool is_declared = false;
    for (const Item& item : main_.ast.items) {
        if (item.kind == ItemKind::sink && first == nullptr)
            first = &item;
        else if (item.kind == ItemKind::sink)
            report_.error(item.name_span, "the program has a second sink", "",
                          {{first->name_span, "the first one is here"}});
        else
            is_declared = is_declared || item.name == "sink";
    }
    for (const BufferDeclaration& buffer : input_.buffers)
        is_declared = is_declared || buffer.name == "sink";
    for (const ParamDeclaration& param : input_.params)
        is_declared = is_declared || param.name == "sink";
    if (first == nullptr) return;
    const bool is_constant = first->bare && !is_declared && References(main_.ast).contain("sink");
    (is_constant ? sink_constant_ : sink_item_) = first;
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
    const References references(main_.ast);
    const bool explicit_score = score_item_ != nullptr, explicit_mask = mask_item_ != nullptr;
    const Item* other_def = nullptr;
    for (const Item& item : main_.ast.items) {
        if (item.kind != ItemKind::function || !item.python || references.contain(item.name))
            continue;
        const std::size_t required = required_parameters(item);
        if (is_generator(main_.ast, item))
            other_def = &item;
        else if (required == kMaskParameters && item.parameters[0].name == "score" &&
                 item.name != "score_mod") // which was refused as a name
            report_.error(item.name_span,
                          "'" + item.name +
                              "' takes score and has four parameters: it is neither "
                              "a score_mod nor a mask_mod",
                          "a score_mod has five (score, b, h, q_idx, kv_idx), a mask_mod the last "
                          "four");
        else if (required == kScoreParameters && !explicit_score)
            choose(score_item_, item, "score_mod");
        else if (required == kMaskParameters && !explicit_mask)
            choose(mask_item_, item, "mask_mod");
        else if (required != kScoreParameters && required != kMaskParameters &&
                 !is_reserved(item.name))
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
    if (has_mod || expression_item_ != nullptr || other_def == nullptr) return;
    const std::size_t required = required_parameters(*other_def);
    if (is_generator(main_.ast, *other_def))
        report_.error(other_def->name_span,
                      "'" + other_def->name + "' makes a function, and nothing calls it",
                      "write score_mod = " + other_def->name + "(...), or mask_mod = ...");
    else
        report_.error(
            other_def->name_span,
            "'" + other_def->name + "' has " + std::to_string(required) +
                (required == 1 ? " parameter" : " parameters") +
                ", and is neither a score_mod nor a mask_mod",
            "a score_mod has five (score, b, h, q_idx, kv_idx), a mask_mod the last four");
}

void Lowering::lower_mods() {
    if (expression_item_ != nullptr) lower_expression_program(*expression_item_);
    if (score_item_ != nullptr) set_score(lower_mod_item(*score_item_, false));
    const bool has_mask = mask_item_ != nullptr || program_.mask != kNoNode;
    if (mask_item_ != nullptr) set_mask(lower_mod_item(*mask_item_, true));
    if (!input_.mask_mod.empty()) {
        if (has_mask) {
            report_.warning({}, "the mask_mod option is not used: the text has a mask_mod");
        } else {
            in_mask_ = true;
            lower_option(option_, input_.mask_mod, ItemKind::mask_mod);
            in_mask_ = false;
        }
    }
    if (sink_item_ != nullptr) set_sink(lower_sink_item(*sink_item_));
    if (!input_.sink.empty()) {
        if (sink_item_ != nullptr) {
            report_.warning({}, "the sink option is not used: the text has a sink");
        } else {
            in_sink_ = true;
            lower_option(option_sink_, input_.sink, ItemKind::sink);
            in_sink_ = false;
        }
    }
    if (program_.score == kNoNode) program_.score = program_.graph.ambient(Op::score);
    if (program_.mask == kNoNode) program_.mask = program_.graph.boolean(true);
}

Operand Lowering::lower_mod_item(const Item& item, bool is_mask) {
    Scope scope{.module = &main_, .body = &item.body, .locals = {}};
    Scope* const outer = scope_;
    scope_ = &scope;
    in_mask_ = is_mask;
    const dsl::Span result_span = main_.ast[item.body.back().value].span;
    const Value value = item.kind == ItemKind::function
                            ? apply_to_ambient(callable_of(main_, item), is_mask, {})
                            : lower_body(item.body);
    const Operand result = item.kind == ItemKind::function ? number_of(value, result_span)
                                                           : as_mod(value, is_mask, result_span);
    in_mask_ = false;
    scope_ = outer;
    return {.node = result.node, .span = result_span};
}

Operand Lowering::lower_sink_item(const Item& item) {
    Scope scope{.module = &main_, .body = &item.body, .locals = {}};
    Scope* const outer = scope_;
    scope_ = &scope;
    in_sink_ = true;
    const dsl::Span span = main_.ast[item.body.back().value].span;
    const Operand result = number_of(lower_body(item.body), span);
    in_sink_ = false;
    scope_ = outer;
    return {.node = result.node, .span = span};
}

// The type of a bare expression says which mod it is.
void Lowering::lower_expression_program(const Item& item) {
    const Value whole = lower(item.value);
    const dsl::Span span = expr_of(item.value).span;
    const bool is_score = whole.function != nullptr && whole.function->item != nullptr &&
                          required_parameters(*whole.function->item) == kScoreParameters;
    const Operand value = as_mod(whole, !is_score, span);
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

void Lowering::lower_option(Module& option, const std::string& text, ItemKind kind) {
    const bool is_mask = kind == ItemKind::mask_mod;
    const std::string name = is_mask ? "mask_mod" : "sink";
    option.own_source = dsl::Source(name, text);
    option.source = &option.own_source;
    const Reporter::Place place = report_.place();
    report_.set_place({.source = option.source});
    dsl::Parsed parsed = dsl::parse(*option.source);
    report_.add(parsed.diagnostics);
    option.ast = std::move(parsed.ast);
    if (!dsl::has_errors(parsed.diagnostics)) {
        const std::vector<Item>& items = option.ast.items;
        const bool expression = items.size() == 1 && items[0].kind == ItemKind::expression;
        const bool mod = items.size() == 1 && items[0].kind == kind;
        if (expression || mod) {
            Scope scope{.module = &option, .body = mod ? &items[0].body : nullptr, .locals = {}};
            scope_ = &scope;
            const dsl::ExprId value = expression ? items[0].value : items[0].body.back().value;
            const dsl::Span span = option.ast[value].span;
            const Value whole = expression ? lower(value) : lower_body(items[0].body);
            if (is_mask)
                set_mask(as_mod(whole, true, span));
            else
                set_sink({.node = number_of(whole, span).node, .span = span});
        } else {
            report_.error({}, "the " + name + " option is not an expression",
                          "declarations stand in the text, or in the options");
        }
    }
    report_.set_place(place);
}

void Lowering::set_sink(Operand value) {
    if (value.node == kNoNode) return;
    if (build().type(value.node) == Type::boolean)
        report_.error(value.span, "sink must be a number, but this is bool",
                      "write where(..., sinks[h], -inf)");
    else
        program_.sink = build().to_real(value.node, value.span);
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
    std::vector<bool> is_learned(program_.buffers.size(), false);
    const NodeId learning_roots[] = {program_.score, program_.sink};
    for (const NodeId node : ir::reachable(program_.graph, learning_roots))
        if (program_.graph[node].op == Op::read) is_learned[program_.graph[node].symbol] = true;

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
        // If the score_mod has the same read, the node belongs to that one.
        const auto own = mask_reads_.find(node.symbol);
        const Reporter::Place place = report_.place();
        if (own != mask_reads_.end()) report_.set_place(own->second.place);
        if (own != mask_reads_.end() && own->second.place.source != place.source) notes.clear();
        report_.error(
            own != mask_reads_.end() ? own->second.span : node.span,
            "mask_mod reads '" + buffer.name + "', which wants a gradient",
            "a mask has no derivative: pass the values for the mask in a buffer without grad",
            std::move(notes));
        report_.set_place(place);
    }
    for (std::size_t i = 0; i < program_.buffers.size(); ++i)
        if (program_.buffers[i].grad && !is_learned[i] && !refused[i])
            report_.warning(program_.buffers[i].span,
                            (program_.sink == kNoNode ? "score_mod does not read '"
                                                      : "neither score_mod nor sink reads '") +
                                program_.buffers[i].name + "': its gradient is zero");
}

} // namespace flexc::front
