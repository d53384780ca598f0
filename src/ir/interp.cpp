#include "ir/interp.h"

#include <cstddef>

namespace flexc::ir {

namespace reference {

constexpr char letter(std::string_view signature, std::size_t position) {
    return position < signature.find('>') ? signature[position] : '-';
}

template <char kLetter, typename T>
auto operand(std::span<const Value<T>> operands, std::size_t position) {
    if constexpr (kLetter == 'b')
        return operands[position].boolean;
    else if constexpr (kLetter == 'i')
        return Integer(operands[position].integer);
    else if constexpr (kLetter == 'f')
        return operands[position].real;
    else
        return 0;
}

template <char kLetter, typename T, typename Result> Value<T> result(Result computed) {
    Value<T> value;
    if constexpr (kLetter == 'b')
        value.boolean = computed;
    else if constexpr (kLetter == 'i')
        value.integer = Integer(computed).value;
    else
        value.real = computed;
    return value;
}

// Inside this namespace, so that the column's names mean the functions of reference.h.
template <typename T> Value<T> compute(Op op, std::span<const Value<T>> operands) {
    switch (op) {
#define FLEXC_OP(name, signature, derivative, reference, cuda, llvm)                               \
    case Op::name: {                                                                               \
        [[maybe_unused]] const auto x = operand<letter(signature, 0)>(operands, 0);                \
        [[maybe_unused]] const auto y = operand<letter(signature, 1)>(operands, 1);                \
        [[maybe_unused]] const auto z = operand<letter(signature, 2)>(operands, 2);                \
        return result<std::string_view(signature).back(), T>(reference);                           \
    }
#include "ir/ops.def"
    default: return {};
    }
}

} // namespace reference

namespace {

bool is_inside(const BufferData& data, std::span<const std::int64_t> indices) {
    for (std::size_t dim = 0; dim < indices.size(); ++dim)
        if (indices[dim] < 0 || indices[dim] >= data.extents[dim]) return false;
    return true;
}

Value<double> read(const BufferData& data, Type type, std::span<const std::int64_t> indices) {
    if (!is_inside(data, indices)) return {};
    if (data.at) return data.at(indices); // of buffers that no memory could hold, too
    std::size_t position = 0;             // row-major
    for (std::size_t dim = 0; dim < indices.size(); ++dim)
        position = position * static_cast<std::size_t>(data.extents[dim]) +
                   static_cast<std::size_t>(indices[dim]);
    if (type == Type::real) return {.real = data.reals[position]};
    const std::int64_t element = data.integers[position];
    return {.boolean = element != 0, .integer = element};
}

template <typename T> Value<T> widen(const Value<double>& value) {
    return {value.boolean, value.integer, T(value.real)};
}

template <typename T>
Value<T> leaf(const Program& program, const Node& node, const Environment& environment,
              const std::vector<Value<T>>& values) {
    switch (node.op) {
    case Op::const_bool: return {.boolean = node.integer != 0};
    case Op::const_int: return {.integer = node.integer};
    case Op::const_real: return {.real = T(node.real)};
    case Op::score: return {.real = T(environment.score)};
    case Op::b: return {.integer = environment.b};
    case Op::h: return {.integer = environment.h};
    case Op::h_kv: return {.integer = environment.h_kv};
    case Op::q_idx: return {.integer = environment.q_idx};
    case Op::kv_idx: return {.integer = environment.kv_idx};
    case Op::q_row: return {.integer = environment.q_row};
    case Op::kv_row: return {.integer = environment.kv_row};
    case Op::q_len: return {.integer = environment.q_len};
    case Op::kv_len: return {.integer = environment.kv_len};
    case Op::counter: return {.integer = environment.counter};
    case Op::size: return {.integer = environment.sizes[node.symbol]};
    case Op::param: return widen<T>(environment.params[node.symbol]);
    default: break;
    }
    std::vector<std::int64_t> indices;
    indices.reserve(node.operands.size());
    for (NodeId index : node.operands)
        indices.push_back(values[index].integer);
    const Type type = type_of(program.buffers[node.symbol].dtype);
    return widen<T>(read(*environment.buffers[node.symbol], type, indices));
}

} // namespace

template <typename T> Value<T> apply(Op op, std::span<const Value<T>> operands) {
    return reference::compute<T>(op, operands);
}

namespace {

template <typename T> class Evaluation {
  public:
    Evaluation(const Program& program, const Environment& environment, NodeId seed,
               std::vector<Value<T>>& values)
        : program_(program), environment_(environment), seed_(seed), values_(values) {}

    // Nodes inside a sum also get a value outside of it, from Environment::counter.
    void run(std::span<const NodeId> order) {
        for (NodeId id : order) {
            if (program_.graph[id].op == Op::sum)
                values_[id] = sum(id);
            else
                evaluate(id);
        }
    }

  private:
    void evaluate(NodeId id) {
        const Node& node = program_.graph[id];
        if (info(node.op).is_leaf()) {
            values_[id] = leaf<T>(program_, node, environment_, values_);
        } else {
            operands_.clear();
            for (NodeId operand : node.operands)
                operands_.push_back(values_[operand]);
            values_[id] = apply<T>(node.op, operands_);
        }
        if constexpr (std::is_same_v<T, Dual>)
            if (id == seed_ && is_at_counter(id)) values_[id].real.slope = 1;
    }

    // A leaf in the term of a sum is the one of Environment::counter.
    bool is_at_counter(NodeId id) {
        const NodeId counter = counters()[id];
        return counter == kNoNode || values_[counter].integer == environment_.counter;
    }

    const std::vector<NodeId>& counters() {
        if (counters_.empty()) counters_ = counters_of(program_.graph);
        return counters_;
    }

    Value<T> sum(NodeId id) {
        const Node& node = program_.graph[id];
        const NodeId counter = node.operands[0], term = node.operands[1];
        const Node& range = program_.graph[counter];
        const std::vector<NodeId> bound = bound_nodes(program_.graph, id, counters());
        const std::int64_t end = values_[range.operands[1]].integer;
        Value<T> total;
        const auto evaluate_at = [&](std::int64_t value) {
            values_[counter].integer = value;
            for (NodeId inside : bound)
                evaluate(inside);
        };
        for (std::int64_t i = values_[range.operands[0]].integer; i < end; ++i) {
            evaluate_at(i);
            total.real = total.real + values_[term].real;
            total.integer =
                (reference::Integer(total.integer) + reference::Integer(values_[term].integer))
                    .value;
        }
        evaluate_at(environment_.counter);
        return total;
    }

    const Program& program_;
    const Environment& environment_;
    NodeId seed_;
    std::vector<Value<T>>& values_;
    std::vector<Value<T>> operands_;
    std::vector<NodeId> counters_;
};

} // namespace

template <typename T>
std::vector<Value<T>> evaluate(const Program& program, std::span<const NodeId> roots,
                               const Environment& environment, NodeId seed) {
    std::vector<Value<T>> values(program.graph.size());
    Evaluation<T>(program, environment, seed, values).run(reachable(program.graph, roots));
    return values;
}

void evaluate_nodes(const Program& program, std::span<const NodeId> order,
                    const Environment& environment, std::vector<Value<double>>& values) {
    Evaluation<double>(program, environment, kNoNode, values).run(order);
}

template Value<double> apply(Op, std::span<const Value<double>>);
template Value<Dual> apply(Op, std::span<const Value<Dual>>);
template std::vector<Value<double>> evaluate(const Program&, std::span<const NodeId>,
                                             const Environment&, NodeId);
template std::vector<Value<Dual>> evaluate(const Program&, std::span<const NodeId>,
                                           const Environment&, NodeId);

double evaluate_real(const Program& program, NodeId root, const Environment& environment) {
    return evaluate<double>(program, std::span(&root, 1), environment)[root].real;
}

std::int64_t evaluate_integer(const Program& program, NodeId root, const Environment& environment) {
    return evaluate<double>(program, std::span(&root, 1), environment)[root].integer;
}

bool evaluate_boolean(const Program& program, NodeId root, const Environment& environment) {
    return evaluate<double>(program, std::span(&root, 1), environment)[root].boolean;
}

double evaluate_slope(const Program& program, NodeId root, const Environment& environment,
                      NodeId seed) {
    return evaluate<Dual>(program, std::span(&root, 1), environment, seed)[root].real.slope;
}

} // namespace flexc::ir
