#include "tape.h"

#include <algorithm>
#include <cmath>
#include <limits>
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

// Functions whose last bits depend on who computes them; all are exact at 0 or 1 or never.
bool is_rounded_function(Op op) {
    switch (op) {
    case Op::exp:
    case Op::exp2:
    case Op::expm1:
    case Op::log:
    case Op::log2:
    case Op::log1p:
    case Op::rsqrt:
    case Op::pow:
    case Op::sin:
    case Op::cos:
    case Op::tan:
    case Op::tanh:
    case Op::sigmoid:
    case Op::softplus:
    case Op::erf: return true;
    default: return false;
    }
}

double remainder_of(double x, double y) {
    const double rest = std::fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}

} // namespace

Tape::Varies Tape::of_leaf(Op op) {
    switch (op) {
    case Op::score:
    case Op::kv_idx:
    case Op::kv_row: return Varies::by_element;
    case Op::q_idx:
    case Op::q_row: return Varies::by_row;
    case Op::b:
    case Op::h:
    case Op::h_kv: return Varies::by_head;
    default: return Varies::never;
    }
}

std::array<std::int64_t, 3> Tape::head_of(const ir::Environment& e) { return {e.b, e.h, e.h_kv}; }
std::array<std::int64_t, 2> Tape::row_of(const ir::Environment& e) { return {e.q_idx, e.q_row}; }

Tape::Tape(const ir::Program& program, NodeId root, const ir::Environment& environment,
           Rounding rounding)
    : program_(&program), environment_(&environment), head_(head_of(environment)),
      row_(row_of(environment)), rounding_(rounding) {
    Layout layout{.counters = ir::counters_of(program.graph)};
    root_ = record(layout, root, 0);
    for (std::size_t at = 0; at < entries_.size(); ++at) {
        const Entry& entry = entries_[at];
        order_[static_cast<std::size_t>(entry.varies)].push_back(at);
        if (entry.has_slope) sloped_.push_back(at);
        if (entry.op == Op::read && entry.is_sought) reads_.push_back(at);
        if (entry.op == Op::score) score_ = at;
    }
}

// The entry of a node, for a value of the counter that it changes with.
std::size_t Tape::record(Layout& layout, NodeId id, std::int64_t counter) {
    const std::pair key{id, layout.counters[id] == ir::kNoNode ? 0 : counter};
    if (const auto known = layout.known.find(key); known != layout.known.end())
        return known->second;
    const ir::Graph& graph = program_->graph;
    const ir::Node& node = graph[id];
    std::vector<std::size_t> from;
    if (node.op == Op::sum) {
        const ir::Node& range = graph[node.operands[0]];
        const std::size_t first = record(layout, range.operands[0], counter);
        const std::size_t end = record(layout, range.operands[1], counter);
        if (entries_[first].varies != Varies::never || entries_[end].varies != Varies::never)
            throw std::logic_error("a sum's range differs between elements");
        for (std::int64_t i = entries_[first].integer; i < entries_[end].integer; ++i)
            from.push_back(record(layout, node.operands[1], i));
    } else if (node.op != Op::counter) {
        for (NodeId operand : node.operands)
            from.push_back(record(layout, operand, counter));
    }
    Entry entry{.op = node.op, .node = id, .first = operands_.size(), .count = from.size()};
    operands_.insert(operands_.end(), from.begin(), from.end());
    if (node.op == Op::counter) entry.integer = counter;
    const auto all_constant = [&] {
        return std::ranges::all_of(from, [&](std::size_t i) { return entries_[i].is_constant; });
    };
    const bool is_constant_sum =
        node.op == Op::sum && std::ranges::all_of(graph[node.operands[0]].operands, [&](NodeId i) {
            return graph[i].op == Op::const_int;
        });
    entry.is_constant =
        ir::info(node.op).is_leaf() && !is_constant_sum
            ? node.op == Op::const_bool || node.op == Op::const_int || node.op == Op::const_real
            : all_constant();
    entry.is_sought = node.op == Op::score || (node.op == Op::read && node.type == ir::Type::real &&
                                               program_->buffers[node.symbol].grad);
    entry.has_slope = entry.is_sought;
    entry.varies = of_leaf(node.op);
    for (const std::size_t i : from) {
        entry.varies = std::max(entry.varies, entries_[i].varies);
        entry.has_slope = entry.has_slope || entries_[i].has_slope;
    }
    evaluate(entry);
    entries_.push_back(entry);
    return layout.known[key] = entries_.size() - 1;
}

void Tape::evaluate(const ir::Environment& environment) {
    const auto head = head_of(environment);
    const auto row = row_of(environment);
    const Varies from = head != head_ ? Varies::by_head
                        : row != row_ ? Varies::by_row
                                      : Varies::by_element;
    environment_ = &environment;
    head_ = head;
    row_ = row;
    for (auto varies = static_cast<std::size_t>(from); varies < order_.size(); ++varies) {
        found_[varies] = {};
        for (const std::size_t at : order_[varies])
            evaluate(entries_[at]);
    }
}

void Tape::evaluate(Entry& entry) {
    compute(entry);
    if (entry.is_constant ? rounding_ != Rounding::nothing : rounding_ == Rounding::values)
        entry.real = static_cast<double>(static_cast<float>(entry.real));
}

void Tape::walk_back() {
    for (const std::size_t at : sloped_) {
        entries_[at].adjoint = entries_[at].absolute = 0;
        entries_[at].is_reached = false;
    }
    entries_[root_].adjoint = entries_[root_].absolute = 1;
    entries_[root_].is_reached = true;
    for (std::size_t i = sloped_.size(); i-- > 0;)
        if (entries_[sloped_[i]].is_reached) walk_back(entries_[sloped_[i]]);
}

double Tape::margin() const {
    double margin = std::numeric_limits<double>::infinity();
    for (const Found& found : found_)
        margin = std::min(margin, found.margin);
    return margin;
}

Tape::Read Tape::read(std::size_t n) const {
    const Entry& entry = entries_[reads_[n]];
    return {program_->graph[entry.node].symbol, entry.position, entry.adjoint, entry.is_outside};
}

TapeResult Tape::result() const {
    TapeResult result;
    result.score = real();
    result.margin = margin();
    for (const Found& found : found_) {
        result.has_tie = result.has_tie || found.has_tie;
        result.divides_by_zero = result.divides_by_zero || found.divides_by_zero;
    }
    for (const Entry& entry : entries_)
        result.largest = std::fmax(result.largest, std::fabs(entry.real));
    result.d_score = d_score();
    if (score_) result.d_score_terms = entries_[*score_].absolute;
    for (const std::size_t at : reads_) {
        const Entry& entry = entries_[at];
        if (entry.is_outside) continue;
        ReadSlope read{.read = entry.node, .slope = entry.adjoint};
        for (std::size_t i = 0; i < entry.count; ++i)
            read.indices.push_back(operand(entry, i).integer);
        result.reads.push_back(std::move(read));
    }
    result.is_finite = std::isfinite(result.score) && std::isfinite(result.d_score) &&
                       std::ranges::all_of(result.reads, [](const ReadSlope& read) {
                           return std::isfinite(read.slope);
                       });
    return result;
}

void Tape::Found::divide_by(double x) { divides_by_zero = divides_by_zero || x == 0; }
// What a rounded value is equal to is beside it elsewhere: softplus(log(expm1(7))) and 7.
void Tape::Found::near(double distance) {
    if (distance == 0 && !is_rounded)
        has_tie = true;
    else
        margin = std::min(margin, std::fabs(distance));
}
// What is equal here is not for passes, which round constants to f32, unless it has few bits.
void Tape::Found::near(double x, double y) {
    const bool is_exact = x * 4096 == std::floor(x * 4096);
    near(x == y && !is_exact ? 1e-12 : (x - y) / (1 + std::fabs(x)));
}
// At a pole, a small change meets any number of whole numbers.
void Tape::Found::near_whole(double x) {
    near(std::isfinite(x) ? (x - std::nearbyint(x)) / (1 + std::fabs(x)) : 1e-12);
}

bool Tape::any_is_rounded(const Entry& entry) const {
    for (std::size_t i = 0; i < entry.count; ++i)
        if (operand(entry, i).is_rounded) return true;
    return false;
}

void Tape::compute_leaf(Entry& entry, const ir::Node& node) {
    switch (node.op) {
    case Op::const_bool: entry.boolean = node.integer != 0; return;
    case Op::const_int: entry.integer = node.integer; return;
    case Op::const_real: entry.real = node.real; return;
    case Op::score: entry.real = environment_->score; return;
    case Op::b: entry.integer = environment_->b; return;
    case Op::h: entry.integer = environment_->h; return;
    case Op::h_kv: entry.integer = environment_->h_kv; return;
    case Op::q_idx: entry.integer = environment_->q_idx; return;
    case Op::kv_idx: entry.integer = environment_->kv_idx; return;
    case Op::q_row: entry.integer = environment_->q_row; return;
    case Op::kv_row: entry.integer = environment_->kv_row; return;
    case Op::q_len: entry.integer = environment_->q_len; return;
    case Op::kv_len: entry.integer = environment_->kv_len; return;
    case Op::size: entry.integer = environment_->sizes[node.symbol]; return;
    case Op::param: take(entry, environment_->params[node.symbol]); return;
    case Op::read: read(entry, node); return;
    case Op::sum:
        entry.real = 0;
        entry.integer = 0;
        for (std::size_t i = 0; i < entry.count; ++i) {
            entry.real += operand(entry, i).real;
            entry.integer = wrapped(bits(entry.integer) + bits(operand(entry, i).integer));
        }
        entry.is_rounded = any_is_rounded(entry);
        return;
    default: return;
    }
}

void Tape::take(Entry& entry, const ir::Value<double>& value) {
    entry.boolean = value.boolean;
    entry.integer = value.integer;
    entry.real = value.real;
}

void Tape::read(Entry& entry, const ir::Node& node) {
    const ir::BufferData& data = *environment_->buffers[node.symbol];
    entry.position = 0;
    entry.is_outside = false;
    for (std::size_t dim = 0; dim < entry.count; ++dim) {
        const std::int64_t index = operand(entry, dim).integer;
        if (index < 0 || index >= data.extents[dim]) entry.is_outside = true;
        entry.position = entry.position * static_cast<std::size_t>(data.extents[dim]) +
                         static_cast<std::size_t>(index);
    }
    if (entry.is_outside) return take(entry, {});
    if (data.at) {
        std::vector<std::int64_t> indices;
        for (std::size_t dim = 0; dim < entry.count; ++dim)
            indices.push_back(operand(entry, dim).integer);
        take(entry, data.at(indices));
    } else if (node.type == ir::Type::real) {
        entry.real = data.reals[entry.position];
    } else {
        entry.integer = data.integers[entry.position];
        entry.boolean = entry.integer != 0;
    }
}

void Tape::compute(Entry& e) {
    const ir::Node& node = program_->graph[e.node];
    if (ir::info(node.op).is_leaf()) return compute_leaf(e, node);
    Found& found = found_[static_cast<std::size_t>(e.varies)];
    const Entry* in[3] = {};
    for (std::size_t i = 0; i < e.count; ++i)
        in[i] = &operand(e, i);
    const double x = in[0]->real, y = in[1] != nullptr ? in[1]->real : 0,
                 z = in[2] != nullptr ? in[2]->real : 0;
    found.is_rounded = any_is_rounded(e);
    e.is_rounded = node.type == ir::Type::real &&
                   (found.is_rounded || (is_rounded_function(node.op) && x != 0 && x != 1));
    const std::int64_t i = in[0]->integer, j = in[1] != nullptr ? in[1]->integer : 0;
    const bool p = in[0]->boolean, q = in[1] != nullptr && in[1]->boolean;
    switch (node.op) {
    case Op::fadd: e.real = x + y; return;
    case Op::fsub: e.real = x - y; return;
    case Op::fmul: e.real = x * y; return;
    case Op::fdiv:
        found.divide_by(y);
        e.real = x / y;
        return;
    case Op::ffloordiv:
        found.near_whole(x / y);
        e.real = std::floor(x / y);
        return;
    case Op::fmod:
        found.near_whole(x / y);
        if (std::fabs(x / y) > 64) found.near(1e-12); // what is left magnifies errors of x
        e.real = remainder_of(x, y);
        return;
    case Op::fma: e.real = x * y + z; return;
    case Op::fneg: e.real = -x; return;
    case Op::fabs:
        found.near(x);
        e.real = std::fabs(x);
        return;
    case Op::fmin:
        found.near(x, y);
        e.real = std::isnan(x) || std::isnan(y) ? x + y : std::min(x, y);
        return;
    case Op::fmax:
        found.near(x, y);
        e.real = std::isnan(x) || std::isnan(y) ? x + y : std::max(x, y);
        return;
    case Op::fclamp:
        found.near(x, y), found.near(x, z), found.near(y, z);
        e.real = std::isnan(x) || std::isnan(y) || std::isnan(z) ? x + y + z
                                                                 : std::min(std::max(x, y), z);
        return;
    case Op::fsign:
        found.near(x);
        e.real = x > 0 ? 1 : x < 0 ? -1 : 0;
        return;
    case Op::ffloor:
        found.near_whole(x);
        e.real = std::floor(x);
        return;
    case Op::fceil:
        found.near_whole(x);
        e.real = std::ceil(x);
        return;
    case Op::fround:
        found.near_whole(x + 0.5);
        e.real = std::nearbyint(x);
        return;
    case Op::ftrunc:
        found.near_whole(x);
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
        found.divide_by(x);
        e.real = 1 / std::sqrt(x);
        return;
    case Op::pow:
        found.near(x);
        // Beside an integer that is computed, the power of a negative number is NaN.
        if (x < 0 && !in[1]->is_constant) found.near(y - std::round(y));
        if (y < 0) found.divide_by(x);
        // A constant 1/2 is a square root, as PyTorch's: NaN at -inf, where a power has
        // infinity.
        if (std::fabs(y) == 0.5 && std::isinf(x)) found.near(1e-12);
        e.real = std::pow(x, y);
        return;
    case Op::sin:
    case Op::cos:
    case Op::tan:
        if (std::fabs(x) > 64) found.near(1e-12); // the value magnifies errors of x
        e.real = node.op == Op::sin ? std::sin(x) : node.op == Op::cos ? std::cos(x) : std::tan(x);
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
        found.near(x, y);
        e.boolean = x < y;
        return;
    case Op::fle:
        found.near(x, y);
        e.boolean = x <= y;
        return;
    case Op::feq:
        found.near(x, y);
        e.boolean = x == y;
        return;
    case Op::fne:
        found.near(x, y);
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
        found.near_whole(x);
        e.integer = to_integer(x);
        return;
    default: unknown(node.op);
    }
}

// An operand gets the slope by it times the adjoint; nothing at all where a rule passes nothing
// on.
void Tape::give(const Entry& e, std::size_t i, double slope) {
    Entry& to = entries_[operands_[e.first + i]];
    if (!to.has_slope) return;
    to.adjoint += e.adjoint * slope;
    to.absolute += e.absolute * std::fabs(slope);
    to.is_reached = true;
}

void Tape::walk_back(const Entry& e) {
    const double r = e.real;
    const auto value = [&](std::size_t i) { return i < e.count ? operand(e, i).real : 0; };
    const double x = value(0), y = value(1), z = value(2);
    const auto to = [&](std::size_t i, double slope) { give(e, i, slope); };
    switch (e.op) {
    case Op::sum:
        for (std::size_t i = 0; i < e.count; ++i)
            give(e, i, 1);
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
        if ((x != 0 || y < 0) && operand(e, 1).has_slope) to(1, std::pow(x, y) * std::log(x));
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
    case Op::fselect: to(operand(e, 0).boolean ? 1 : 2, 1); return;
    default: // integers, bools, steps and what makes reals of them
        if (ir::info(e.op).differentiable) unknown(e.op);
    }
}

TapeResult differentiate(const ir::Program& program, const ir::Environment& environment,
                         Rounding rounding) {
    Tape tape(program, program.score, environment, rounding);
    tape.walk_back();
    return tape.result();
}

} // namespace flexc::test
