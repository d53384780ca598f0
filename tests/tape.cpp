#include "tape.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace flexc::test {

namespace {

using ir::NodeId;
using ir::Op;

// An operator that is in ops.def and not here.
[[noreturn]] void unknown(Op op) {
    throw std::logic_error("tests/tape.cpp does not know " + std::string(ir::info(op).name));
}

struct Entry {
    Op op;
    NodeId node;
    std::vector<std::size_t> from;
    bool boolean = false;
    std::int64_t integer = 0;
    double real = 0;
    double adjoint = 0;
    double absolute = 0; // of all that the adjoint is the sum of
    bool is_reached = false;
    std::vector<std::int64_t> indices; // of a read inside its buffer
    bool is_outside = false;
    bool is_constant = false; // of the text, and so in f32
};

// Modulo 2^64.
std::uint64_t bits(std::int64_t value) { return static_cast<std::uint64_t>(value); }
std::int64_t wrapped(std::uint64_t value) { return static_cast<std::int64_t>(value); }

std::int64_t quotient_down(std::int64_t x, std::int64_t y) {
    if (y == 0) return 0;
    if (y == -1) return wrapped(0 - bits(x));
    const std::int64_t quotient = x / y;
    return quotient * y != x && (x < 0) != (y < 0) ? quotient - 1 : quotient;
}

std::int64_t power(std::int64_t x, std::int64_t y) {
    if (y < 0) return x == 1 ? 1 : x == -1 ? (y % 2 == 0 ? 1 : -1) : 0;
    std::uint64_t result = 1, base = static_cast<std::uint64_t>(x);
    for (; y > 0; y /= 2) {
        if (y % 2 == 1) result *= base;
        base *= base;
    }
    return static_cast<std::int64_t>(result);
}

std::int64_t to_integer(double x) {
    if (std::isnan(x)) return 0;
    if (x >= 0x1p63) return std::numeric_limits<std::int64_t>::max();
    if (x <= -0x1p63) return std::numeric_limits<std::int64_t>::min();
    return static_cast<std::int64_t>(x);
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double remainder_of(double x, double y) {
    const double rest = std::fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

class Tape {
  public:
    Tape(const ir::Program& program, const ir::Environment& environment, Rounding rounding)
        : program_(program), graph_(program.graph), environment_(environment),
          counters_(ir::counters_of(graph_)), rounding_(rounding) {}

    TapeResult run() {
        const std::size_t root = record(program_.score, 0);
        entries_[root].adjoint = entries_[root].absolute = 1;
        entries_[root].is_reached = true;
        for (std::size_t at = entries_.size(); at-- > 0;)
            if (entries_[at].is_reached) walk_back(at);
        TapeResult result;
        result.score = entries_[root].real;
        result.margin = margin_;
        result.has_tie = has_tie_;
        result.divides_by_zero = divides_by_zero_;
        for (const Entry& entry : entries_)
            result.largest = std::fmax(result.largest, std::fabs(entry.real));
        for (const Entry& entry : entries_) {
            if (entry.op == Op::score) {
                result.d_score = entry.adjoint;
                result.d_score_terms = entry.absolute;
            }
            if (entry.op == Op::read && graph_[entry.node].type == ir::Type::real &&
                !entry.is_outside && program_.buffers[graph_[entry.node].symbol].grad)
                result.reads.push_back({entry.node, entry.indices, entry.adjoint});
        }
        result.is_finite = std::isfinite(result.score) && std::isfinite(result.d_score) &&
                           std::ranges::all_of(result.reads, [](const ReadSlope& read) {
                               return std::isfinite(read.slope);
                           });
        return result;
    }

  private:
    bool is_constant_sum(const ir::Node& node) const {
        return node.op == Op::sum &&
               std::ranges::all_of(graph_[node.operands[0]].operands,
                                   [&](NodeId bound) { return graph_[bound].op == Op::const_int; });
    }

    // The entry of a node, for a value of the counter that it changes with.
    std::size_t record(NodeId id, std::int64_t counter) {
        const std::pair key{id, counters_[id] == ir::kNoNode ? 0 : counter};
        if (const auto known = known_.find(key); known != known_.end()) return known->second;
        const ir::Node& node = graph_[id];
        Entry entry{.op = node.op, .node = id};
        if (node.op == Op::counter) {
            entry.integer = counter;
        } else if (node.op == Op::sum) {
            const ir::Node& range = graph_[node.operands[0]];
            const std::int64_t first = entries_[record(range.operands[0], counter)].integer;
            const std::int64_t end = entries_[record(range.operands[1], counter)].integer;
            for (std::int64_t i = first; i < end; ++i)
                entry.from.push_back(record(node.operands[1], i));
        } else {
            for (NodeId operand : node.operands)
                entry.from.push_back(record(operand, counter));
        }
        compute(entry, node);
        entry.is_constant =
            ir::info(node.op).is_leaf() && !is_constant_sum(node)
                ? node.op == Op::const_bool || node.op == Op::const_int || node.op == Op::const_real
                : std::ranges::all_of(entry.from,
                                      [&](std::size_t i) { return entries_[i].is_constant; });
        if (entry.is_constant ? rounding_ != Rounding::nothing : rounding_ == Rounding::values)
            entry.real = static_cast<double>(static_cast<float>(entry.real));
        entries_.push_back(std::move(entry));
        return known_[key] = entries_.size() - 1;
    }

    void divide_by(double x) { divides_by_zero_ = divides_by_zero_ || x == 0; }
    void near(double distance) {
        if (distance == 0)
            has_tie_ = true;
        else
            margin_ = std::min(margin_, std::fabs(distance));
    }
    // What is equal here is not for passes, which round constants to f32, unless it has few bits.
    void near(double x, double y) {
        const bool is_exact = x * 4096 == std::floor(x * 4096);
        near(x == y && !is_exact ? 1e-12 : (x - y) / (1 + std::fabs(x)));
    }
    // At a pole, a small change meets any number of whole numbers.
    void near_whole(double x) {
        near(std::isfinite(x) ? (x - std::nearbyint(x)) / (1 + std::fabs(x)) : 1e-12);
    }

    void compute_leaf(Entry& entry, const ir::Node& node) {
        switch (node.op) {
        case Op::const_bool: entry.boolean = node.integer != 0; return;
        case Op::const_int: entry.integer = node.integer; return;
        case Op::const_real: entry.real = node.real; return;
        case Op::score: entry.real = environment_.score; return;
        case Op::b: entry.integer = environment_.b; return;
        case Op::h: entry.integer = environment_.h; return;
        case Op::h_kv: entry.integer = environment_.h_kv; return;
        case Op::q_idx: entry.integer = environment_.q_idx; return;
        case Op::kv_idx: entry.integer = environment_.kv_idx; return;
        case Op::q_row: entry.integer = environment_.q_row; return;
        case Op::kv_row: entry.integer = environment_.kv_row; return;
        case Op::q_len: entry.integer = environment_.q_len; return;
        case Op::kv_len: entry.integer = environment_.kv_len; return;
        case Op::size: entry.integer = environment_.sizes[node.symbol]; return;
        case Op::param: take(entry, environment_.params[node.symbol]); return;
        case Op::read: read(entry, node); return;
        case Op::sum:
            for (std::size_t term : entry.from) {
                entry.real += entries_[term].real;
                entry.integer = wrapped(bits(entry.integer) + bits(entries_[term].integer));
            }
            return;
        default: return;
        }
    }

    static void take(Entry& entry, const ir::Value<double>& value) {
        entry.boolean = value.boolean;
        entry.integer = value.integer;
        entry.real = value.real;
    }

    void read(Entry& entry, const ir::Node& node) {
        const ir::BufferData& data = *environment_.buffers[node.symbol];
        std::size_t position = 0;
        for (std::size_t dim = 0; dim < entry.from.size(); ++dim) {
            const std::int64_t index = entries_[entry.from[dim]].integer;
            entry.indices.push_back(index);
            if (index < 0 || index >= data.extents[dim]) entry.is_outside = true;
            position = position * static_cast<std::size_t>(data.extents[dim]) +
                       static_cast<std::size_t>(index);
        }
        if (entry.is_outside) return;
        if (data.at) {
            take(entry, data.at(entry.indices));
        } else if (node.type == ir::Type::real) {
            entry.real = data.reals[position];
        } else {
            entry.integer = data.integers[position];
            entry.boolean = entry.integer != 0;
        }
    }

    void compute(Entry& e, const ir::Node& node) {
        if (ir::info(node.op).is_leaf()) return compute_leaf(e, node);
        const Entry* in[3] = {};
        for (std::size_t i = 0; i < e.from.size(); ++i)
            in[i] = &entries_[e.from[i]];
        const double x = in[0]->real, y = in[1] != nullptr ? in[1]->real : 0,
                     z = in[2] != nullptr ? in[2]->real : 0;
        const std::int64_t i = in[0]->integer, j = in[1] != nullptr ? in[1]->integer : 0;
        const bool p = in[0]->boolean, q = in[1] != nullptr && in[1]->boolean;
        switch (node.op) {
        case Op::fadd: e.real = x + y; return;
        case Op::fsub: e.real = x - y; return;
        case Op::fmul: e.real = x * y; return;
        case Op::fdiv:
            divide_by(y);
            e.real = x / y;
            return;
        case Op::ffloordiv:
            near_whole(x / y);
            e.real = std::floor(x / y);
            return;
        case Op::fmod:
            near_whole(x / y);
            if (std::fabs(x / y) > 64) near(1e-12); // what is left magnifies errors of x
            e.real = remainder_of(x, y);
            return;
        case Op::fma: e.real = x * y + z; return;
        case Op::fneg: e.real = -x; return;
        case Op::fabs:
            near(x);
            e.real = std::fabs(x);
            return;
        case Op::fmin:
            near(x, y);
            e.real = std::isnan(x) || std::isnan(y) ? x + y : std::min(x, y);
            return;
        case Op::fmax:
            near(x, y);
            e.real = std::isnan(x) || std::isnan(y) ? x + y : std::max(x, y);
            return;
        case Op::fclamp:
            near(x, y), near(x, z), near(y, z);
            e.real = std::isnan(x) || std::isnan(y) || std::isnan(z) ? x + y + z
                                                                     : std::min(std::max(x, y), z);
            return;
        case Op::fsign:
            near(x);
            e.real = x > 0 ? 1 : x < 0 ? -1 : 0;
            return;
        case Op::ffloor:
            near_whole(x);
            e.real = std::floor(x);
            return;
        case Op::fceil:
            near_whole(x);
            e.real = std::ceil(x);
            return;
        case Op::fround:
            near_whole(x + 0.5);
            e.real = std::nearbyint(x);
            return;
        case Op::ftrunc:
            near_whole(x);
            e.real = x < 0 ? std::ceil(x) : std::floor(x);
            return;
        case Op::exp: e.real = std::exp(x); return;
        case Op::exp2: e.real = std::pow(2.0, x); return;
        case Op::expm1: e.real = std::expm1(x); return;
        case Op::log: e.real = std::log(x); return;
        case Op::log2: e.real = std::log(x) / std::log(2.0); return;
        case Op::log1p: e.real = std::log1p(x); return;
        case Op::sqrt: e.real = std::sqrt(x); return;
        case Op::rsqrt:
            divide_by(x);
            e.real = 1 / std::sqrt(x);
            return;
        case Op::pow:
            near(x);
            // Beside an integer that is computed, the power of a negative number is NaN.
            if (x < 0 && !entries_[e.from[1]].is_constant) near(y - std::round(y));
            if (y < 0) divide_by(x);
            // A constant 1/2 is a square root, as PyTorch's: NaN at -inf, where a power has
            // infinity.
            if (std::fabs(y) == 0.5 && std::isinf(x)) near(1e-12);
            e.real = std::pow(x, y);
            return;
        case Op::sin:
        case Op::cos:
        case Op::tan:
            if (std::fabs(x) > 64) near(1e-12); // the value magnifies errors of x
            e.real = node.op == Op::sin   ? std::sin(x)
                     : node.op == Op::cos ? std::cos(x)
                                          : std::tan(x);
            return;
        case Op::tanh: e.real = std::tanh(x); return;
        case Op::sigmoid: e.real = sigmoid(x); return;
        case Op::softplus: e.real = x > 40 ? x : std::log1p(std::exp(x)); return;
        case Op::erf: e.real = std::erf(x); return;
        case Op::iadd: e.integer = wrapped(bits(i) + bits(j)); return;
        case Op::isub: e.integer = wrapped(bits(i) - bits(j)); return;
        case Op::imul: e.integer = wrapped(bits(i) * bits(j)); return;
        case Op::ifloordiv: e.integer = quotient_down(i, j); return;
        case Op::imod:
            e.integer = j == 0 ? 0 : wrapped(bits(i) - bits(quotient_down(i, j)) * bits(j));
            return;
        case Op::ipow: e.integer = power(i, j); return;
        case Op::ineg: e.integer = wrapped(0 - bits(i)); return;
        case Op::iabs: e.integer = i < 0 ? wrapped(0 - bits(i)) : i; return;
        case Op::isign: e.integer = i > 0 ? 1 : i < 0 ? -1 : 0; return;
        case Op::imin: e.integer = std::min(i, j); return;
        case Op::imax: e.integer = std::max(i, j); return;
        case Op::iand: e.integer = i & j; return;
        case Op::ior: e.integer = i | j; return;
        case Op::ixor: e.integer = i ^ j; return;
        case Op::inot: e.integer = -1 - i; return;
        case Op::ishl: e.integer = j < 0 || j > 63 ? 0 : wrapped(bits(i) << j); return;
        case Op::ishr: e.integer = i >> (j < 0 || j > 63 ? 63 : j); return;
        case Op::flt:
            near(x, y);
            e.boolean = x < y;
            return;
        case Op::fle:
            near(x, y);
            e.boolean = x <= y;
            return;
        case Op::feq:
            near(x, y);
            e.boolean = x == y;
            return;
        case Op::fne:
            near(x, y);
            e.boolean = x != y;
            return;
        case Op::ilt: e.boolean = i < j; return;
        case Op::ile: e.boolean = i <= j; return;
        case Op::ieq: e.boolean = i == j; return;
        case Op::ine: e.boolean = i != j; return;
        case Op::band: e.boolean = p && q; return;
        case Op::bor: e.boolean = p || q; return;
        case Op::bxor: e.boolean = p != q; return;
        case Op::bnot: e.boolean = !p; return;
        case Op::bselect: e.boolean = p ? q : in[2]->boolean; return;
        case Op::iselect: e.integer = p ? j : in[2]->integer; return;
        case Op::fselect: e.real = p ? y : z; return;
        case Op::bool_to_int: e.integer = p ? 1 : 0; return;
        case Op::bool_to_real: e.real = p ? 1 : 0; return;
        case Op::int_to_real: e.real = static_cast<double>(i); return;
        case Op::real_to_int:
            near_whole(x);
            e.integer = to_integer(x);
            return;
        default: unknown(node.op);
        }
    }

    // An operand gets the slope by it times the adjoint; nothing at all where a rule passes nothing
    // on.
    void give(const Entry& e, std::size_t operand, double slope) {
        Entry& to = entries_[operand];
        to.adjoint += e.adjoint * slope;
        to.absolute += e.absolute * std::fabs(slope);
        to.is_reached = true;
    }

    void walk_back(std::size_t at) {
        const Entry& e = entries_[at];
        const double r = e.real;
        const auto value = [&](std::size_t i) {
            return i < e.from.size() ? entries_[e.from[i]].real : 0;
        };
        const double x = value(0), y = value(1), z = value(2);
        const auto to = [&](std::size_t i, double slope) { give(e, e.from[i], slope); };
        switch (e.op) {
        case Op::sum:
            for (std::size_t term : e.from)
                give(e, term, 1);
            return;
        case Op::fadd: to(0, 1), to(1, 1); return;
        case Op::fsub: to(0, 1), to(1, -1); return;
        case Op::fmul: to(0, y), to(1, x); return;
        case Op::fdiv: to(0, 1 / y), to(1, -x / (y * y)); return;
        case Op::fmod: to(0, 1), to(1, -std::floor(x / y)); return;
        case Op::fma: to(0, y), to(1, x), to(2, 1); return;
        case Op::fneg: to(0, -1); return;
        case Op::fabs:
            if (x > 0) to(0, 1);
            if (x < 0) to(0, -1);
            if (std::isnan(x)) to(0, x);
            return;
        case Op::fmin:
        case Op::fmax: {
            const bool first = e.op == Op::fmin ? x < y : x > y;
            if (x == y)
                to(0, 0.5), to(1, 0.5);
            else if (std::isnan(x) || std::isnan(y))
                to(0, 1), to(1, 1);
            else
                to(first ? 0 : 1, 1);
            return;
        }
        case Op::fclamp:
            if (y <= x && x <= z)
                to(0, 1);
            else if (x < y && y <= z)
                to(1, 1);
            else if (z < x || z < y)
                to(2, 1);
            return;
        case Op::exp: to(0, std::exp(x)); return;
        case Op::exp2: to(0, std::log(2.0) * std::exp2(x)); return;
        case Op::expm1: to(0, std::exp(x)); return;
        case Op::log: to(0, 1 / x); return;
        case Op::log2: to(0, 1 / (x * std::log(2.0))); return;
        case Op::log1p: to(0, 1 / (1 + x)); return;
        case Op::sqrt: to(0, 1 / (2 * r)); return;
        case Op::rsqrt: to(0, -1 / (2 * x * std::sqrt(x))); return;
        case Op::pow:
            if (y != 0) to(0, y * std::pow(x, y - 1));
            if (x != 0 || y < 0) to(1, std::pow(x, y) * std::log(x));
            return;
        case Op::sin: to(0, std::cos(x)); return;
        case Op::cos: to(0, -std::sin(x)); return;
        case Op::tan: to(0, 1 / (std::cos(x) * std::cos(x))); return;
        case Op::tanh:
            to(0, rounding_ == Rounding::values ? 1 - r * r : 1 / (std::cosh(x) * std::cosh(x)));
            return;
        case Op::sigmoid:
            to(0, rounding_ == Rounding::values ? r * (1 - r) : sigmoid(x) * sigmoid(-x));
            return;
        case Op::softplus: to(0, sigmoid(x)); return;
        case Op::erf: to(0, 2 / std::sqrt(std::acos(-1.0)) * std::exp(-x * x)); return;
        case Op::fselect: to(entries_[e.from[0]].boolean ? 1 : 2, 1); return;
        default: // integers, bools, steps and what makes reals of them
            if (ir::info(e.op).differentiable) unknown(e.op);
        }
    }

    const ir::Program& program_;
    const ir::Graph& graph_;
    const ir::Environment& environment_;
    std::vector<NodeId> counters_;
    Rounding rounding_;
    std::vector<Entry> entries_;
    std::map<std::pair<NodeId, std::int64_t>, std::size_t> known_;
    bool divides_by_zero_ = false, has_tie_ = false;
    double margin_ = std::numeric_limits<double>::infinity();
};

} // namespace

TapeResult differentiate(const ir::Program& program, const ir::Environment& environment,
                         Rounding rounding) {
    return Tape(program, environment, rounding).run();
}

} // namespace flexc::test
