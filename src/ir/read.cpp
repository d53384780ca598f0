#include "ir/read.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "ir/verify.h"

namespace flexc::ir {

namespace {

// Words and single marks of one line.
std::vector<std::string_view> tokens_of(std::string_view line) {
    constexpr std::string_view kMarks = "=:,[]";
    std::vector<std::string_view> tokens;
    std::size_t at = 0;
    while (at < line.size()) {
        if (line[at] == ' ') {
            ++at;
            continue;
        }
        std::size_t end = at + 1;
        if (kMarks.find(line[at]) == std::string_view::npos)
            while (end < line.size() && line[end] != ' ' &&
                   kMarks.find(line[end]) == std::string_view::npos)
                ++end;
        tokens.push_back(line.substr(at, end - at));
        at = end;
    }
    return tokens;
}

template <typename Number> std::optional<Number> number_of(std::string_view text) {
    Number value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return {};
    return value;
}

std::optional<double> real_of(std::string_view text) {
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    return number_of<double>(text);
}

std::optional<Type> type_named(std::string_view text) {
    for (Type type : {Type::boolean, Type::integer, Type::real})
        if (name(type) == text) return type;
    return {};
}

template <typename Declarations>
std::optional<std::uint32_t> find(const Declarations& declarations, std::string_view wanted) {
    for (std::uint32_t i = 0; i < declarations.size(); ++i) {
        if constexpr (std::is_same_v<Declarations, std::vector<std::string>>) {
            if (declarations[i] == wanted) return i;
        } else {
            if (declarations[i].name == wanted) return i;
        }
    }
    return {};
}

// One line at a time; each member returns what is wrong, or nothing.
class Reader {
  public:
    std::string line(std::string_view text) {
        words_ = tokens_of(text);
        at_ = 0;
        if (words_.empty() || words_[0].front() == '#') return "";
        if (peek() == "size") return size();
        if (peek() == "buffer") return buffer();
        if (peek() == "param") return param();
        return peek().front() == '%' ? node() : root();
    }

    ReadProgram result;

  private:
    std::string_view peek(std::size_t ahead = 0) const {
        return at_ + ahead < words_.size() ? words_[at_ + ahead] : std::string_view("");
    }
    std::string_view next() {
        const std::string_view word = peek();
        ++at_;
        return word;
    }
    bool accept(std::string_view mark) {
        if (peek() != mark) return false;
        ++at_;
        return true;
    }
    std::string end() const { return at_ >= words_.size() ? "" : "more than was expected"; }

    std::string size() {
        next();
        result.program.sizes.emplace_back(next());
        return end();
    }

    std::string buffer() {
        next();
        Buffer declared;
        declared.name = next();
        if (!accept(":") || !parse_dtype(next(), declared.dtype) || !may_be_buffer(declared.dtype))
            return "no such buffer type";
        if (!accept("[")) return "dims are missing";
        while (at_ < words_.size() && !accept("]")) {
            const std::string_view word = next();
            const auto symbol = find(result.program.sizes, word);
            const auto constant = number_of<std::int64_t>(word);
            if (symbol)
                declared.dims.push_back({.size = *symbol});
            else if (constant)
                declared.dims.push_back({.constant = *constant});
            else if (word != ",")
                return "no such dim";
        }
        declared.grad = accept("grad");
        result.program.buffers.push_back(std::move(declared));
        return end();
    }

    std::string param() {
        next();
        Param declared;
        declared.name = next();
        const auto type = accept(":") ? type_named(next()) : std::nullopt;
        if (!type) return "no such parameter type";
        declared.type = *type;
        declared.has_default = accept("=");
        if (declared.has_default) {
            const auto value = real_of(next());
            if (!value) return "the default is not a number";
            declared.default_value = *value;
        }
        result.program.params.push_back(std::move(declared));
        return end();
    }

    std::optional<NodeId> reference(std::string_view word) const {
        const auto found = nodes_.find(std::string(word));
        if (found == nodes_.end()) return {};
        return found->second;
    }

    std::string root() {
        const std::string label(next());
        const auto target = accept("=") ? reference(next()) : std::nullopt;
        if (!target) return "a root names no node";
        result.roots.push_back({label, *target});
        if (label == "score") result.program.score = *target;
        if (label == "mask") result.program.mask = *target;
        if (label == "sink") result.program.sink = *target;
        return end();
    }

    std::string node() {
        const std::string label(next());
        if (!accept("=")) return "'=' is missing";
        const std::string_view operation = next();
        const auto operators = all_operators();
        std::size_t row = 0;
        while (row < operators.size() && operators[row].name != operation)
            ++row;
        if (row == operators.size()) return "no such operator";
        const Op op = static_cast<Op>(row);

        const bool has_payload = op == Op::const_bool || op == Op::const_int ||
                                 op == Op::const_real || op == Op::size || op == Op::param ||
                                 op == Op::read;
        const std::string_view payload = has_payload ? next() : "";
        std::vector<NodeId> operands;
        while (at_ < words_.size() && !accept(":")) {
            if (accept(",")) continue;
            const auto operand = reference(next());
            if (!operand) return "an operand names no node above";
            operands.push_back(*operand);
        }
        const auto type = type_named(next());
        if (!type) return "no such type";
        const auto made = make(op, payload, std::move(operands), *type);
        if (!made) return "'" + std::string(payload) + "' is not declared or no such value";
        if (result.program.graph[*made].type != *type) return "the type is not the operator's";
        nodes_[label] = *made;
        return end();
    }

    std::optional<NodeId> make(Op op, std::string_view payload, std::vector<NodeId> operands,
                               Type type) {
        Program& program = result.program;
        Graph& graph = program.graph;
        switch (op) {
        case Op::const_bool:
            if (payload != "true" && payload != "false") return {};
            return graph.boolean(payload == "true");
        case Op::const_int: {
            const auto value = number_of<std::int64_t>(payload);
            return value ? std::optional(graph.integer(*value)) : std::nullopt;
        }
        case Op::const_real: {
            const auto value = real_of(payload);
            return value ? std::optional(graph.real(*value)) : std::nullopt;
        }
        case Op::size: {
            const auto symbol = find(program.sizes, payload);
            return symbol ? std::optional(graph.size_of(*symbol)) : std::nullopt;
        }
        case Op::param: {
            const auto symbol = find(program.params, payload);
            return symbol ? std::optional(graph.param(*symbol, type)) : std::nullopt;
        }
        case Op::read: {
            const auto symbol = find(program.buffers, payload);
            return symbol ? std::optional(graph.read(*symbol, type, std::move(operands)))
                          : std::nullopt;
        }
        case Op::counter:
            if (operands.size() != 2) return {};
            return graph.counter(operands[0], operands[1]);
        case Op::sum:
            if (operands.size() != 2) return {};
            return graph.sum(operands[0], operands[1]);
        default: break;
        }
        return info(op).is_leaf() ? graph.ambient(op) : graph.apply(op, std::move(operands));
    }

    std::vector<std::string_view> words_;
    std::size_t at_ = 0;
    std::map<std::string, NodeId> nodes_;
};

} // namespace

Result<ReadProgram> read(std::string_view text) {
    Reader reader;
    std::size_t number = 0;
    while (!text.empty()) {
        const std::size_t end = text.find('\n');
        ++number;
        if (std::string message = reader.line(text.substr(0, end)); !message.empty())
            return Error{ErrorCode::syntax, "line " + std::to_string(number) + ": " + message};
        text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    std::vector<NodeId> roots;
    roots.reserve(reader.result.roots.size());
    for (const NamedRoot& root : reader.result.roots)
        roots.push_back(root.node);
    if (std::string message = verify(reader.result.program, roots); !message.empty())
        return Error{ErrorCode::syntax, message};
    return std::move(reader.result);
}

} // namespace flexc::ir
