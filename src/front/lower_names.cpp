// What a name stands for: the body's own names, the program's, the ambient ones.
#include <algorithm>

#include "front/library.h"
#include "front/lower.h"
#include "front/names.h"

namespace flexc::front {

using dsl::Expr;

Value Lowering::lower_name(const Expr& expr) {
    if (std::optional<Value> value = find_value(expr)) return std::move(*value);
    if (const Callable* function = find_function(expr)) return {.function = function};
    const bool is_told = report_.full() || report_.has_error_at(expr.span);
    if (!is_told && !names_function(expr)) unknown_name(expr, false);
    return {};
}

std::optional<Value> Lowering::find_value(const Expr& expr) {
    if (!expr.qualified) {
        if (const Value* local = find_local(expr.name)) return *local;
        const auto symbol = symbols_.find(expr.name);
        if (symbol != symbols_.end() && !scope_->module->in_library) {
            const std::uint32_t index = symbol->second.index;
            switch (symbol->second.kind) {
            case SymbolKind::buffer: return Value{.buffer = index};
            case SymbolKind::param:
                return value_of(build().param(index, program_.params[index].type, expr.span));
            case SymbolKind::size: return value_of(build().size_of(index, expr.span));
            case SymbolKind::constant: {
                const NamedConstant& constant = named_constant(index);
                if (constant.state == NamedConstant::State::function)
                    return function_constant(index);
                if (constant.state != NamedConstant::State::known) return Value{};
                return value_of(build().literal(constant.type, constant.value, expr.span));
            }
            case SymbolKind::function: break;
            }
        }
        if (const auto op = ambient_of(expr.name)) {
            if (*op == ir::Op::score && in_mask_) {
                report_.error(
                    expr.span, "mask_mod cannot use score",
                    "to hide scores by their value, use where(..., score, -inf) in score_mod");
                return Value{};
            }
            if (in_sink_ &&
                (*op == ir::Op::score || *op == ir::Op::kv_idx || *op == ir::Op::kv_row)) {
                report_.error(expr.span, "sink cannot use " + expr.name,
                              "a sink is one number for all keys of a row: an expression of b, h, "
                              "q_idx, buffers and params");
                return Value{};
            }
            return value_of(build().ambient(in_layout(*op), expr.span));
        }
        if (const auto size = standard_size_of(expr.name); size && !program_.is_dense()) {
            // The length of request b.
            if (*size == ir::kQLen) return value_of(build().ambient(ir::Op::q_len, expr.span));
            if (*size == ir::kKvLen) return value_of(build().ambient(ir::Op::kv_len, expr.span));
        }
        if (const auto size = standard_size_of(expr.name))
            return value_of(build().size_of(*size, expr.span));
    }
    if (const auto value = number_named(expr.name, expr.qualified))
        return value_of(build().real(*value, expr.span));
    return std::nullopt;
}

// In dense layouts, a row's index is its position.
ir::Op Lowering::in_layout(ir::Op op) const {
    if (op == ir::Op::q_row && program_.is_dense()) return ir::Op::q_idx;
    if (op == ir::Op::kv_row && program_.is_dense()) return ir::Op::kv_idx;
    return op;
}

// True and an error when the name is a function's.
bool Lowering::names_function(const Expr& expr) {
    const bool own = !expr.qualified && scope_->module->functions.contains(expr.name);
    const bool known = own || find_builtin(expr.name) != nullptr ||
                       (!expr.qualified && find_library_mod(expr.name) != nullptr);
    if (!known) return false;
    // A name that the body assigns further down hides the function.
    if (!own && !expr.qualified && scope_->body != nullptr &&
        std::any_of(scope_->body->begin(), scope_->body->end(),
                    [&](const dsl::Statement& statement) { return statement.name == expr.name; }))
        return false;
    report_.error(expr.span, "'" + expr.name + "' is a function, not a value",
                  "call it: " + expr.name + "(...)");
    return true;
}

void Lowering::unknown_name(const Expr& expr, bool indexed) {
    if (report_.has_error_at(expr.span)) return;
    const std::string quoted = "'" + expr.name + "'";
    if (report_.full()) return report_.error(expr.span, "unknown name " + quoted);
    if (!expr.qualified && scope_->body != nullptr) {
        for (const dsl::Statement& statement : *scope_->body) {
            if (statement.name != expr.name) continue;
            report_.error(expr.span, quoted + " is used before it is assigned", "",
                          {{statement.name_span, "it is assigned here"}});
            return;
        }
    }
    if (!expr.qualified) {
        for (const dsl::Item& item : main_.ast.items) {
            if (&item.body == scope_->body || scope_->module->in_library) continue;
            for (const dsl::Statement& statement : item.body) {
                if (statement.name != expr.name) continue;
                std::vector<dsl::Note> notes;
                if (scope_->module == &main_)
                    notes.push_back({statement.name_span, "assigned here, in '" + item.name + "'"});
                report_.error(expr.span, "unknown name " + quoted,
                              "a body does not see the names of another; write a function: fn " +
                                  expr.name + "() = ...",
                              std::move(notes));
                return;
            }
        }
    }
    std::string hint;
    const std::string_view usual = usual_name(expr.name);
    const std::string nearest = nearest_name(expr.name, visible_values());
    if (!nearest.empty())
        hint = "did you mean '" + nearest + "'?";
    else if (!usual.empty())
        hint = "did you mean '" + std::string(usual) + "'?";
    else if (indexed)
        hint = "declare the buffer: buffer " + expr.name + ": f32[...]";
    else
        hint = "declare it: const " + expr.name + " = ..., or param " + expr.name + ": f32";
    report_.error(expr.span, "unknown name " + quoted, hint);
}

void Lowering::unknown_function(const Expr& expr) {
    if (report_.has_error_at(expr.span)) return;
    if (report_.full()) return report_.error(expr.span, "unknown function '" + expr.name + "'");
    std::string hint(builtin_advice(expr.name));
    if (hint.empty()) {
        const std::vector<std::string> names = visible_functions();
        const std::string nearest = nearest_name(expr.name, names);
        if (std::ranges::count(names, expr.name) > 0) // torch. and methods name the built-in ones
            hint = "write " + expr.name + "(...)";
        else
            hint = nearest.empty() ? "define it: fn " + expr.name + "(...) = ..."
                                   : "did you mean '" + nearest + "'?";
    }
    report_.error(expr.span, "unknown function '" + expr.name + "'", hint);
}

std::vector<std::string> Lowering::visible_values() const {
    std::vector<std::string> names;
    names.reserve(scope_->locals.size() + symbols_.size());
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->enclosing)
        for (const auto& [name, value] : scope->locals)
            names.push_back(name);
    if (!scope_->module->in_library)
        for (const auto& [name, symbol] : symbols_)
            if (symbol.kind != SymbolKind::function) names.push_back(name);
    for (const std::string_view name : reserved_names())
        if (!name.ends_with("_mod") && !((in_mask_ || in_sink_) && name == "score") &&
            !(in_sink_ && name == "kv_idx"))
            names.emplace_back(name);
    std::sort(names.begin(), names.end());
    return names;
}

std::vector<std::string> Lowering::visible_functions() const {
    std::vector<std::string> names;
    names.reserve(scope_->module->functions.size() + builtins().size() + library().size());
    for (const auto& [name, item] : scope_->module->functions)
        names.push_back(name);
    for (const Builtin& builtin : builtins())
        names.emplace_back(builtin.name);
    for (const LibraryMod& mod : library())
        names.emplace_back(mod.name);
    for (const std::string_view name : {"and_masks", "or_masks"})
        names.emplace_back(name);
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->enclosing)
        for (const auto& [name, value] : scope->locals)
            if (value.function != nullptr) names.push_back(name);
    std::sort(names.begin(), names.end());
    return names;
}

} // namespace flexc::front
