// Functions as values, as FlexAttention's programs have them: what and_masks and or_masks put
// together, functions that a generator returns, and mods that are one of these.
#include "front/library.h"
#include "front/lower.h"
#include "front/names.h"
#include "front/operators.h"

namespace flexc::front {

using dsl::Expr;
using dsl::Item;
using ir::kNoNode;
using ir::NodeId;
using ir::Op;
using ir::Type;

const Value* Lowering::find_local(const std::string& name) const {
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->enclosing)
        if (const auto found = scope->locals.find(name); found != scope->locals.end())
            return &found->second;
    return nullptr;
}

const Callable& Lowering::callable_of(const Module& module, const Item& item) {
    const Callable*& known = callable_of_[&item];
    if (known == nullptr) {
        callables_.push_back({.module = &module, .item = &item, .name = item.name, .parts = {}});
        known = &callables_.back();
    }
    return *known;
}

// The function of the program or the library that a name stands for, where it is no value.
const Callable* Lowering::find_function(const Expr& expr) {
    if (expr.qualified) return nullptr;
    const auto in = [&](const Module& module) -> const Callable* {
        const auto own = module.functions.find(expr.name);
        return own == module.functions.end() ? nullptr : &callable_of(module, *own->second);
    };
    if (const Callable* own = in(*scope_->module)) return own;
    if (scope_->module == &option_)
        if (const Callable* outer = in(main_)) return outer;
    if (find_builtin(expr.name) != nullptr) return nullptr;
    // A name that the body assigns further down hides the library's.
    if (scope_->body != nullptr)
        for (const dsl::Statement& statement : *scope_->body)
            if (statement.name == expr.name) return nullptr;
    const Module* module = library_module(expr.name);
    return module != nullptr ? in(*module) : nullptr;
}

// Parts are functions, or bools such as the library's causal(), which are about the element itself:
// with one of these the whole is.
Value Lowering::lower_combination(const Expr& expr, Op combine) {
    const std::string name = combine == Op::band ? "and_masks" : "or_masks";
    std::vector<Argument> arguments;
    if (!bind_arguments(expr, name, {"mask"}, 1, true, arguments)) return {};
    std::vector<const Callable*> parts;
    for (const Argument& argument : arguments)
        if (argument.value.function != nullptr) parts.push_back(argument.value.function);
    if (parts.size() == arguments.size()) {
        callables_.push_back({.name = name, .combine = combine, .parts = std::move(parts)});
        return {.function = &callables_.back()};
    }
    NodeId all = kNoNode;
    bool is_complete = true;
    for (const Argument& argument : arguments) {
        const Operand part = as_mod(argument.value, true, argument.span);
        if (part.node != kNoNode && build().type(part.node) != Type::boolean)
            report_.error(part.span, "'" + name + "' takes masks, but this is " +
                                         a_type(build().type(part.node)));
        is_complete =
            is_complete && part.node != kNoNode && build().type(part.node) == Type::boolean;
        if (is_complete)
            all = all == kNoNode ? part.node : build().apply(combine, {all, part.node}, expr.span);
    }
    return is_complete ? value_of(all) : Value{};
}

// Applies a function to a mod's arguments. is_ambient: they are the names that every body sees.
Value Lowering::apply(const Callable& function, std::span<const Argument> arguments,
                      bool is_ambient, dsl::Span span) {
    if (function.item == nullptr) {
        if (arguments.size() != kMaskParameters) {
            report_.error(span, "'" + function.name + "' makes a mask, not a score_mod",
                          "write mask_mod = " + function.name + "(...)");
            return {};
        }
        NodeId all = kNoNode;
        bool is_complete = true;
        for (const Callable* part : function.parts) {
            const Operand value = number_of(apply(*part, arguments, is_ambient, span), span);
            const bool is_mask = value.node != kNoNode && build().type(value.node) == Type::boolean;
            if (value.node != kNoNode && !is_mask)
                report_.error(span, "'" + part->name + "' is no mask: its value is " +
                                        a_type(build().type(value.node)));
            is_complete = is_complete && is_mask;
            if (is_complete)
                all = all == kNoNode ? value.node
                                     : build().apply(function.combine, {all, value.node}, span);
        }
        return is_complete ? value_of(all) : Value{};
    }
    const Item& item = *function.item;
    const std::size_t required = required_parameters(item);
    std::vector<Argument> bound(item.parameters.size());
    called_.insert(&item);
    if (required == 0 && is_ambient) return inline_function(function, std::move(bound), span);
    if (required != arguments.size()) {
        const bool is_mask = arguments.size() == kMaskParameters;
        report_.error(span,
                      "'" + item.name + "' has " + std::to_string(required) +
                          (required == 1 ? " parameter" : " parameters") + ", and is no " +
                          (is_mask ? "mask_mod" : "score_mod"),
                      std::string(is_mask ? "a mask_mod has four (b, h, q_idx, kv_idx)"
                                          : "a score_mod has five (score, b, h, q_idx, kv_idx)") +
                          "; to call it, write " + item.name + "(...)");
        return {};
    }
    std::size_t next = 0;
    for (std::size_t i = 0; i < bound.size(); ++i)
        if (item.parameters[i].default_value == dsl::kNoExpr) bound[i] = arguments[next++];
    return inline_function(function, std::move(bound), span);
}

Value Lowering::apply_to_ambient(const Callable& function, bool is_mask, dsl::Span span) {
    constexpr Op kAmbient[] = {Op::score, Op::b, Op::h, Op::q_idx, Op::kv_idx};
    std::vector<Argument> arguments;
    for (const Op op : std::span(kAmbient).subspan(is_mask ? 1 : 0))
        arguments.push_back(
            {.value = value_of(build().ambient(op, span)), .span = span, .given = true});
    return apply(function, arguments, true, span);
}

// The value of a mod that is one, or is a function of what every mod is a function of.
Operand Lowering::as_mod(const Value& value, bool is_mask, dsl::Span span) {
    if (value.function == nullptr) return number_of(value, span);
    return number_of(apply_to_ambient(*value.function, is_mask, span), span);
}

// Lowered where it is used: what it captures are nodes of the graph that is being made.
Value Lowering::function_constant(std::uint32_t index) {
    NamedConstant& constant = constants_[index];
    if (constant.function != nullptr && build_ == &program_builder_)
        return {.function = constant.function};
    Scope scope{.module = &main_, .body = nullptr, .locals = {}};
    Scope* const outer = scope_;
    scope_ = &scope;
    const Value value = lower(constant.item->value);
    scope_ = outer;
    if (build_ == &program_builder_) constant.function = value.function;
    return value;
}

} // namespace flexc::front
