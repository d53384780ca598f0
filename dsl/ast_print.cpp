// Canonical text of a tree: every inner operation in parentheses, one statement a line.
#include <algorithm>
#include <array>
#include <charconv>

#include "dsl/ast.h"

namespace flexc::dsl {

namespace {

constexpr auto kOperators = std::to_array<std::string_view>(
    {"",    "+",  "-", "*",  "/", "//", "%",  "**", "&", "|", "^", "<<",  ">>",
     "and", "or", "<", "<=", ">", ">=", "==", "!=", "-", "+", "~", "not "});

class Printer {
  public:
    explicit Printer(const Ast& ast) : ast_(ast) {}
    std::string out;

    void item(const Item& item) {
        switch (item.kind) {
        case ItemKind::buffer:
            out += "buffer " + item.name + ": " + item.type + "[";
            list(item.dims, 0);
            out += item.grad ? "] grad\n" : "]\n";
            break;
        case ItemKind::param:
            out += "param " + item.name + ": " + item.type;
            if (item.value != kNoExpr) {
                out += " = ";
                expression(item.value);
            }
            out += '\n';
            break;
        case ItemKind::constant:
            out += (item.bare ? "" : "const ") + item.name + " = ";
            expression(item.value);
            out += '\n';
            break;
        case ItemKind::function:
            out += (item.python ? "def " : "fn ") + item.name + "(";
            parameters(item.parameters);
            out += ")";
            if (item.python)
                indented(item.body, "  ");
            else
                body(item.body);
            break;
        case ItemKind::score_mod:
        case ItemKind::mask_mod:
        case ItemKind::sink:
            out += item.kind == ItemKind::score_mod  ? "score_mod"
                   : item.kind == ItemKind::mask_mod ? "mask_mod"
                                                     : "sink";
            body(item.body);
            break;
        case ItemKind::expression: bare(item.value); break;
        }
    }

    void expression(ExprId id, bool inner = false) {
        const Expr& expr = ast_[id];
        switch (expr.kind) {
        case ExprKind::boolean: out += expr.integer != 0 ? "true" : "false"; return;
        case ExprKind::integer: out += std::to_string(expr.integer); return;
        case ExprKind::real: real(expr.real); return;
        case ExprKind::name: out += (expr.qualified ? "torch." : "") + expr.name; return;
        case ExprKind::call:
            expression(expr.operands[0], true);
            out += '(';
            for (std::size_t i = 1; i < expr.operands.size(); ++i) {
                if (i > 1) out += ", ";
                if (!expr.keywords[i - 1].empty()) out += expr.keywords[i - 1] + "=";
                expression(expr.operands[i]);
            }
            out += ')';
            return;
        case ExprKind::sum:
            out += "sum(" + expr.name + " in ";
            expression(expr.operands[0]);
            out += "..";
            expression(expr.operands[1]);
            out += ": ";
            expression(expr.operands[2]);
            out += ')';
            return;
        case ExprKind::index:
            expression(expr.operands[0], true);
            out += '[';
            list(expr.operands, 1);
            out += ']';
            return;
        default: break;
        }
        if (inner) out += '(';
        if (expr.kind == ExprKind::binary) {
            binary(id);
        } else if (expr.kind == ExprKind::unary) {
            out += spelling(expr.op);
            expression(expr.operands[0], true);
        } else if (expr.kind == ExprKind::compare) {
            expression(expr.operands[0], true);
            for (std::size_t i = 0; i < expr.comparisons.size(); ++i) {
                out += " " + std::string(spelling(expr.comparisons[i])) + " ";
                expression(expr.operands[i + 1], true);
            }
        } else {
            expression(expr.operands[1], true);
            out += " if ";
            expression(expr.operands[0], true);
            out += " else ";
            expression(expr.operands[2], true);
        }
        if (inner) out += ')';
    }

  private:
    // The left side may be thousands of operators deep: walk it, do not recurse into it.
    void binary(ExprId id) {
        std::vector<ExprId> spine;
        while (ast_[id].kind == ExprKind::binary) {
            spine.push_back(id);
            id = ast_[id].operands[0];
        }
        out.append(spine.size() - 1, '(');
        expression(id, true);
        for (std::size_t i = spine.size(); i-- > 0;) {
            out += " " + std::string(spelling(ast_[spine[i]].op)) + " ";
            expression(ast_[spine[i]].operands[1], true);
            if (i > 0) out += ')';
        }
    }

    void list(const std::vector<ExprId>& ids, std::size_t first) {
        for (std::size_t i = first; i < ids.size(); ++i) {
            if (i > first) out += ", ";
            expression(ids[i]);
        }
    }

    // Where a line starts, the word of a mod declares one: there a name of that kind stands in
    // parentheses.
    void bare(ExprId id) {
        const std::size_t start = out.size();
        expression(id);
        const std::string_view text = std::string_view(out).substr(start);
        if (text.starts_with("score_mod") || text.starts_with("mask_mod")) {
            out.insert(start, 1, '(');
            out += ')';
        }
        out += '\n';
    }

    void parameters(const std::vector<Parameter>& all) {
        for (std::size_t i = 0; i < all.size(); ++i) {
            out += (i > 0 ? ", " : "") + all[i].name;
            if (all[i].default_value == kNoExpr) continue;
            out += " = ";
            expression(all[i].default_value);
        }
    }

    void statement(const Statement& statement, const std::string& indent) {
        if (statement.kind == StatementKind::function) {
            const Item& inner = ast_.functions[statement.function];
            out += "def " + inner.name + "(";
            parameters(inner.parameters);
            out += ")";
            indented(inner.body, indent + "  ");
            return;
        }
        if (statement.kind == StatementKind::assign)
            out += statement.name + " = ";
        else if (statement.kind == StatementKind::augment)
            out += statement.name + " " + std::string(spelling(statement.op)) + "= ";
        expression(statement.value);
        out += '\n';
    }

    void body(const Body& body) {
        if (body.size() == 1) {
            out += " = ";
            statement(body[0], "");
            return;
        }
        out += " {\n";
        for (const Statement& entry : body) {
            out += "  ";
            statement(entry, "  ");
        }
        out += "}\n";
    }

    void indented(const Body& body, const std::string& indent) {
        out += ":\n";
        for (const Statement& entry : body) {
            out += indent;
            if (entry.kind == StatementKind::result) out += "return ";
            statement(entry, indent);
        }
    }

    void real(double value) {
        char digits[40];
        const auto [end, code] = std::to_chars(digits, digits + sizeof digits, value);
        const std::string text(digits, code == std::errc{} ? end : digits);
        out += text;
        if (text.find_first_of(".e") == text.npos) out += ".0";
    }

    const Ast& ast_;
};

} // namespace

std::string_view spelling(Operator op) { return kOperators[static_cast<std::size_t>(op)]; }

std::string print_ast(const Ast& ast) {
    Printer printer(ast);
    for (const Item& item : ast.items)
        printer.item(item);
    return std::move(printer.out);
}

std::string print_expression(const Ast& ast, ExprId id) {
    Printer printer(ast);
    printer.expression(id);
    return std::move(printer.out);
}

} // namespace flexc::dsl
