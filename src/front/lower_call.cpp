#include <algorithm>

#include "dsl/parser.h"
#include "front/library.h"
#include "front/lower.h"
#include "front/names.h"

namespace flexc::front {

using dsl::Expr;
using dsl::Item;
using ir::kNoNode;
using ir::NodeId;

namespace {

std::vector<std::string> words(std::string_view text) {
    std::vector<std::string> out;
    while (!text.empty()) {
        const std::size_t space = std::min(text.find(' '), text.size());
        out.emplace_back(text.substr(0, space));
        text.remove_prefix(std::min(space + 1, text.size()));
    }
    return out;
}

std::string signature(const std::string& name, const std::vector<std::string>& parameters,
                      bool open_ended) {
    std::string text = name + "(";
    for (std::size_t i = 0; i < parameters.size(); ++i)
        text += (i > 0 ? ", " : "") + parameters[i];
    return text + (open_ended ? ", ...)" : ")");
}

bool has_functions(const dsl::Body& body) {
    return std::ranges::any_of(body, [](const dsl::Statement& statement) {
        return statement.kind == dsl::StatementKind::function;
    });
}

std::string count_of(std::size_t count) { return count == 0 ? "none" : std::to_string(count); }

} // namespace

// The program's functions hide the built-in ones, which hide the library's.
Value Lowering::lower_call(const Expr& expr) {
    const Expr& callee = expr_of(expr.operands[0]);
    if (!callee.qualified) {
        if (const Value* local = find_local(callee.name)) {
            if (local->function != nullptr) return call_function(*local->function, expr);
            refuse_call(callee, "a value here",
                        "a product needs '*', a read of a buffer needs '[ ]'");
            return {};
        }
        const auto own = scope_->module->functions.find(callee.name);
        if (own != scope_->module->functions.end())
            return call_function(callable_of(*scope_->module, *own->second), expr);
        // Options see the program's functions.
        if (scope_->module == &option_ || scope_->module == &option_sink_) {
            const auto outer = main_.functions.find(callee.name);
            if (outer != main_.functions.end())
                return call_function(callable_of(main_, *outer->second), expr);
        }
        const auto symbol = symbols_.find(callee.name);
        const bool declared = symbol != symbols_.end() && !scope_->module->in_library;
        if (declared && symbol->second.kind == SymbolKind::constant &&
            named_constant(symbol->second.index).state == NamedConstant::State::function) {
            const Value value = function_constant(symbol->second.index);
            return value.function != nullptr ? call_function(*value.function, expr) : Value{};
        }
        if (declared || ambient_of(callee.name) || standard_size_of(callee.name) ||
            number_named(callee.name, false)) {
            if (declared && symbol->second.kind == SymbolKind::buffer)
                refuse_call_of_buffer(callee, symbol->second.index);
            else
                refuse_call(callee, "a value", "a product needs '*'");
            return {};
        }
    }
    if (const auto combine = combination_of(callee.name)) return lower_combination(expr, *combine);
    if (const Builtin* builtin = find_builtin(callee.name))
        return value_of(call_builtin(*builtin, expr));
    if (!callee.qualified)
        if (const Module* module = library_module(callee.name))
            return call_function(callable_of(*module, *module->functions.at(callee.name)), expr);
    unknown_function(callee);
    return {};
}

// Errors are apart from what calls itself for nested calls: its frames are the stack that a deep
// program needs.
void Lowering::refuse_call(const Expr& callee, std::string_view what, std::string hint) {
    report_.error(callee.span, "'" + callee.name + "' is " + std::string(what) + ", not a function",
                  std::move(hint));
}

void Lowering::refuse_call_of_buffer(const Expr& callee, std::uint32_t buffer) {
    refuse_call(callee, "a buffer",
                "read it with brackets: " + index_example(Value{.buffer = buffer}));
}

void Lowering::refuse_count(const Expr& expr, const std::string& name,
                            const std::vector<std::string>& parameters, std::size_t required,
                            bool open_ended) {
    const std::size_t given = expr.operands.size() - 1;
    report_.error(expr.span,
                  "'" + name + "' takes " + (open_ended ? "at least " : "") +
                      count_of(open_ended ? required : parameters.size()) +
                      (parameters.size() == 1 ? " argument, but " : " arguments, but ") +
                      std::to_string(given) + (given == 1 ? " is given" : " are given"),
                  "its form is " + signature(name, parameters, open_ended));
}

NodeId Lowering::call_builtin(const Builtin& builtin, const Expr& expr) {
    const bool open_ended = builtin.max_arguments == kAnyNumber;
    std::vector<Argument> bound;
    Expr renamed = expr;
    if (builtin.name == "clamp")
        for (std::string& keyword : renamed.keywords)
            keyword = keyword == "lo" ? "min" : keyword == "hi" ? "max" : keyword;
    if (!bind_arguments(renamed, std::string(builtin.name), words(builtin.parameters),
                        builtin.min_arguments, open_ended, bound))
        return kNoNode;
    std::vector<Operand> operands;
    bool complete = true;
    for (std::size_t i = 0; i < bound.size(); ++i) {
        Operand operand{.node = kNoNode, .span = bound[i].span, .given = bound[i].given};
        if (operand.given) {
            operand = number_of(bound[i].value, bound[i].span);
            complete = complete && operand.node != kNoNode;
        }
        operands.push_back(operand);
    }
    return complete ? builtin.lower(build(), operands, expr.span) : kNoNode;
}

Value Lowering::call_function(const Callable& function, const Expr& expr) {
    if (function.item == nullptr) {
        std::vector<Argument> arguments;
        if (!bind_arguments(expr, function.name, {"b", "h", "q_idx", "kv_idx"}, kMaskParameters,
                            false, arguments))
            return {};
        return apply(function, arguments, false, expr.span);
    }
    const Item& item = *function.item;
    std::vector<std::string> parameters;
    std::size_t required = 0;
    for (const dsl::Parameter& parameter : item.parameters) {
        parameters.push_back(parameter.name);
        if (parameter.default_value == dsl::kNoExpr) required = parameters.size();
    }
    std::vector<Argument> arguments;
    called_.insert(&item);
    if (!bind_arguments(expr, item.name, parameters, required, false, arguments)) return {};
    return inline_function(function, std::move(arguments), expr.span);
}

// Puts each argument of the call at its parameter. Unless open-ended, bound has one entry a
// parameter.
bool Lowering::bind_arguments(const Expr& expr, const std::string& name,
                              const std::vector<std::string>& parameters, std::size_t required,
                              bool open_ended, std::vector<Argument>& bound) {
    const std::size_t given = expr.operands.size() - 1;
    if (open_ended ? given < required : given > parameters.size()) {
        refuse_count(expr, name, parameters, required, open_ended);
        return false;
    }
    bound.resize(open_ended ? given : parameters.size());
    for (std::size_t i = 0; i < given; ++i) {
        const std::string& keyword = expr.keywords[i];
        const dsl::Span span = expr.argument_spans[i];
        std::size_t at = i;
        if (!keyword.empty()) {
            at = static_cast<std::size_t>(std::find(parameters.begin(), parameters.end(), keyword) -
                                          parameters.begin());
            if (at == parameters.size() || open_ended) {
                std::string message = "'" + name;
                message.append("' has no argument '").append(keyword).append("'");
                report_.error(span, std::move(message),
                              "its form is " + signature(name, parameters, open_ended));
                return false;
            }
        } else if (i > 0 && !expr.keywords[i - 1].empty()) {
            report_.error(span, "an argument without a name follows one with a name");
            return false;
        }
        if (bound[at].given) {
            report_.error(span, "argument '" + keyword + "' is given twice");
            return false;
        }
        bound[at] = {.value = lower(expr.operands[i + 1]),
                     .span = expr_of(expr.operands[i + 1]).span,
                     .given = true};
    }
    for (std::size_t i = 0; i < std::min(required, parameters.size()); ++i) {
        if (bound[i].given) continue;
        report_.error(expr.span, "'" + name + "' needs an argument for '" + parameters[i] + "'",
                      "its form is " + signature(name, parameters, open_ended));
        return false;
    }
    return true;
}

// The body is lowered again for each call, with the arguments' values as its names.
Value Lowering::inline_function(const Callable& function, std::vector<Argument> arguments,
                                dsl::Span call) {
    const Module& module = *function.module;
    const Item& item = *function.item;
    if (std::find(active_.begin(), active_.end(), &item) != active_.end()) {
        report_.error(call, "'" + item.name + "' calls itself",
                      "functions are copied into their calls, so recursion is not possible");
        return {};
    }
    if (active_.size() >= static_cast<std::size_t>(dsl::kMaxNesting)) {
        build().exhaust(call, "calls are nested more than 256 levels deep",
                        "merge some of the functions");
        return {};
    }
    const Reporter::Place place = report_.place();
    const bool enters_library = module.in_library && !place.in_library;
    report_.push_call(call, item.name);
    if (enters_library)
        report_.set_place(
            {.source = place.source, .in_library = true, .call = call, .function = item.name});
    else if (!place.in_library)
        report_.set_place({.source = module.source});

    Scope own{.module = &module,
              .body = &item.body,
              .locals = {},
              .enclosing = function.enclosing,
              .is_python = item.python};
    const bool is_kept = has_functions(item.body);
    if (is_kept) kept_scopes_.push_back(own);
    Scope& scope = is_kept ? kept_scopes_.back() : own;
    Scope* const outer = scope_;
    scope_ = &scope;
    active_.push_back(&item);
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        const dsl::Parameter& parameter = item.parameters[i];
        if (!arguments[i].given) arguments[i].value = lower(parameter.default_value);
    }
    for (std::size_t i = 0; i < arguments.size(); ++i)
        scope.locals[item.parameters[i].name] = std::move(arguments[i].value);
    Value result = lower_body(item.body);
    active_.pop_back();
    scope_ = outer;
    report_.set_place(place);
    report_.pop_call();
    return result;
}

const Module* Lowering::library_module(const std::string& name) {
    if (const auto found = library_.find(name); found != library_.end()) return found->second.get();
    const LibraryMod* mod = find_library_mod(name);
    if (mod == nullptr) return nullptr;
    auto module = std::make_unique<Module>();
    module->own_source = dsl::Source(name + ".flex", std::string(mod->text));
    module->source = &module->own_source;
    module->ast = dsl::parse(module->own_source).ast;
    module->in_library = true;
    for (const Item& item : module->ast.items)
        if (item.kind == dsl::ItemKind::function) module->functions.emplace(item.name, &item);
    if (!module->functions.contains(name)) return nullptr;
    return library_.emplace(name, std::move(module)).first->second.get();
}

} // namespace flexc::front
