// Functions that nothing calls are never typed; their names are checked all the same.
#include <algorithm>

#include "front/library.h"
#include "front/lower.h"
#include "front/names.h"

namespace flexc::front {

using dsl::Expr;
using dsl::Item;

void Lowering::check_uncalled_functions() {
    for (const Item& item : main_.ast.items)
        if (item.kind == dsl::ItemKind::function && !called_.contains(&item))
            check_names(main_, item, nullptr);
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as functions in functions
void Lowering::check_names(const Module& module, const Item& item, const Scope* enclosing) {
    Scope scope{.module = &module, .body = &item.body, .locals = {}, .enclosing = enclosing};
    Scope* const outer = scope_;
    scope_ = &scope;
    for (const dsl::Parameter& parameter : item.parameters)
        scope.locals[parameter.name] = {};
    for (const dsl::Statement& statement : item.body) {
        if (statement.kind == dsl::StatementKind::function) {
            scope.locals[statement.name] = {};
            check_names(module, module.ast.functions[statement.function], &scope);
            continue;
        }
        std::vector<dsl::ExprId> open = {statement.value};
        while (!open.empty()) {
            const Expr& expr = module.ast[open.back()];
            open.pop_back();
            const bool is_call = expr.kind == dsl::ExprKind::call;
            if (is_call) {
                const Expr& callee = module.ast[expr.operands[0]];
                const bool known =
                    symbols_.contains(callee.name) || find_local(callee.name) != nullptr ||
                    combination_of(callee.name) || find_builtin(callee.name) != nullptr ||
                    find_library_mod(callee.name) != nullptr || is_reserved(callee.name);
                if (callee.name == item.name)
                    report_.error(
                        expr.span, "'" + item.name + "' calls itself",
                        "functions are copied into their calls, so recursion is not possible");
                else if (!known)
                    unknown_function(callee);
            } else if (expr.kind == dsl::ExprKind::name) {
                const bool known = find_local(expr.name) != nullptr ||
                                   find_library_mod(expr.name) != nullptr ||
                                   symbols_.contains(expr.name) || is_reserved(expr.name) ||
                                   number_named(expr.name, expr.qualified);
                if (!known && !names_function(expr)) unknown_name(expr, false);
            }
            if (expr.kind == dsl::ExprKind::sum) scope.locals.try_emplace(expr.name);
            for (std::size_t i = is_call ? 1 : 0; i < expr.operands.size(); ++i)
                open.push_back(expr.operands[i]);
        }
        if (statement.kind != dsl::StatementKind::result) scope.locals[statement.name] = {};
    }
    scope_ = outer;
}

} // namespace flexc::front
