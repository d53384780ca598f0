#include "analysis/range.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "analysis/interval.h"

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;
using ir::Type;

namespace {

// A parameter is handed over as a double, which must hold it exactly.
constexpr std::int64_t kMaxParam = std::int64_t{1} << 53;
// Extents of captured buffers; far from the ends of int64, so that N + 1 is not "any".
constexpr std::int64_t kMaxExtent = std::int64_t{1} << 61;
constexpr std::size_t kMaxBounds = 8;

// value <= size + offset, or value >= size + offset.
struct Bound {
    std::uint32_t size;
    std::int64_t offset;
};
using Bounds = std::vector<Bound>;

const Bound* find(const Bounds& bounds, std::uint32_t size) {
    for (const Bound& bound : bounds)
        if (bound.size == size) return &bound;
    return nullptr;
}

// What is known of an integer node, in addition to its interval.
struct Fact {
    Interval range;
    Bounds upper, lower;
};

// Keeps the tighter of two bounds by the same size. Offsets stay small, so that their sums do not
// overflow; a dropped bound only means one proof fewer.
void insert(Bounds& bounds, std::uint32_t size, std::int64_t offset, bool upper) {
    if (offset > kMaxExtent || offset < -kMaxExtent) return;
    for (Bound& bound : bounds)
        if (bound.size == size) {
            bound.offset = upper ? std::min(bound.offset, offset) : std::max(bound.offset, offset);
            return;
        }
    if (bounds.size() < kMaxBounds) bounds.push_back({size, offset});
}

bool is_small(std::int64_t value) { return value >= -kMaxExtent && value <= kMaxExtent; }

void insert_shifted(Bounds& bounds, const Bounds& from, std::int64_t by, bool upper) {
    if (!is_small(by)) return;
    for (const Bound& bound : from)
        insert(bounds, bound.size, bound.offset + by, upper);
}

// Every size is at least 1: a value that is at most c is also at most size + c - 1.
Bounds hull_upper(const Fact& x, const Fact& y) {
    Bounds result;
    auto include = [&](const Fact& one, const Fact& other) {
        for (const Bound& bound : one.upper) {
            const Bound* match = find(other.upper, bound.size);
            if (match == nullptr && !is_small(other.range.high)) continue;
            std::int64_t offset = match != nullptr ? match->offset : other.range.high - 1;
            if (match != nullptr && is_small(other.range.high))
                offset = std::min(offset, other.range.high - 1);
            insert(result, bound.size, std::max(bound.offset, offset), true);
        }
    };
    include(x, y);
    include(y, x);
    return result;
}

Bounds hull_lower(const Fact& x, const Fact& y) {
    Bounds result;
    for (const Bound& bound : x.lower)
        if (const Bound* match = find(y.lower, bound.size))
            insert(result, bound.size, std::min(bound.offset, match->offset), false);
    return result;
}

// Which bounds of reals are trusted: all, or only those that come neither from numbers that callers
// choose nor from the range of a function.
enum class Trust : std::uint8_t { all_reals, reals_of_positions };

class Analysis {
  public:
    Analysis(const ir::Program& program, Trust trust)
        : program_(program), graph_(program.graph), trust_(trust), facts_(graph_.size()),
          reals_(graph_.size()), is_data_(graph_.size()) {}

    Ranges run() {
        Ranges ranges;
        const NodeId count = graph_.size();
        ranges.of_node.resize(count);
        ranges.narrow.resize(count);
        ranges.in_range.resize(count);
        ranges.difference.resize(count);
        ranges.magnitude.resize(count);
        ranges.finite.resize(count);
        for (NodeId id = 0; id < count; ++id) {
            const ir::Node& node = graph_[id];
            if (node.type == Type::integer) {
                facts_[id] = integer(node);
                ranges.of_node[id] = facts_[id].range;
            } else if (node.type == Type::real) {
                is_data_[id] = is_data(node);
                if (!is_data_[id]) reals_[id] = real(node);
                ranges.magnitude[id] =
                    std::max(std::fabs(reals_[id].low), std::fabs(reals_[id].high));
                ranges.finite[id] = std::isfinite(ranges.magnitude[id]) && !reals_[id].nan;
            }
            ranges.narrow[id] = is_narrow(node, id);
            if (node.op == Op::read) ranges.in_range[id] = proven_inside(node);
            ranges.difference[id] = difference(node);
        }
        return ranges;
    }

  private:
    Interval difference(const ir::Node& node) const {
        switch (node.op) {
        case Op::ilt:
        case Op::ile:
        case Op::ieq:
        case Op::ine:
        case Op::imin:
        case Op::imax: break;
        default: return kAny;
        }
        const Fact &x = facts_[node.operands[0]], &y = facts_[node.operands[1]];
        const std::array intervals = {x.range, y.range};
        Fact result{transfer(Op::isub, intervals), {}, {}};
        subtract(result, x, y);
        return result.range;
    }

    // The width of a read says nothing about its indices: addresses are always 64-bit.
    bool is_narrow(const ir::Node& node, NodeId id) const {
        if (node.type == Type::integer && !facts_[id].range.fits_32_bits()) return false;
        return node.op == Op::read || std::ranges::all_of(node.operands, [&](NodeId operand) {
                   return graph_[operand].type != Type::integer ||
                          facts_[operand].range.fits_32_bits();
               });
    }

    std::vector<bool> proven_inside(const ir::Node& node) const {
        const ir::Buffer& buffer = program_.buffers[node.symbol];
        std::vector<bool> proven;
        for (std::size_t i = 0; i < node.operands.size(); ++i) {
            const Fact& index = facts_[node.operands[i]];
            const ir::Dim& dim = buffer.dims[i];
            bool below = false;
            if (dim.is_constant()) {
                below = index.range.high < dim.constant;
            } else {
                const Bound* bound = find(index.upper, dim.size);
                below = index.range.high <= 0 || (bound != nullptr && bound->offset < 0);
            }
            proven.push_back(below && index.range.low >= 0);
        }
        return proven;
    }

    // --- leaves --------------------------------------------------------------------------------
    static Fact position(std::initializer_list<std::uint32_t> sizes) {
        Fact fact{{0, kMaxLength - 2}, {}, {}};
        for (std::uint32_t size : sizes)
            fact.upper.push_back({size, -1});
        return fact;
    }

    static Fact size_fact(std::uint32_t size) {
        const std::int64_t high = size >= ir::kStandardSizes          ? kMaxExtent
                                  : size == ir::kD || size == ir::kDv ? kMaxHeadDim
                                                                      : kMaxLength - 1;
        Fact fact{{1, high}, {{size, 0}}, {{size, 0}}};
        // Every key/value head has at least one query head.
        if (size == ir::kHKv) fact.upper.push_back({ir::kH, 0});
        if (size == ir::kH) fact.lower.push_back({ir::kHKv, 0});
        return fact;
    }

    Interval stored(const ir::Node& node) const {
        switch (program_.buffers[node.symbol].dtype) {
        case DType::i32: return {INT32_MIN, INT32_MAX};
        case DType::i16: return {INT16_MIN, INT16_MAX};
        case DType::i8: return {INT8_MIN, INT8_MAX};
        case DType::u8: return {0, UINT8_MAX};
        default: return kAny;
        }
    }

    // --- integers ------------------------------------------------------------------------------
    Fact integer(const ir::Node& node) const {
        switch (node.op) {
        case Op::const_int: return {{node.integer, node.integer}, {}, {}};
        case Op::b: return position({ir::kB});
        case Op::h: return position({ir::kH});
        case Op::h_kv: return position({ir::kHKv, ir::kH});
        case Op::q_idx:
            // Callers choose where a request's queries start; aligned to the end of its keys, q_idx
            // may be negative.
            if (!program_.is_dense()) return {{-(kMaxLength - 2), kMaxLength - 2}, {}, {}};
            return position({ir::kQLen});
        case Op::q_row:
        case Op::kv_row: return {{0, kMaxRows - 1}, {}, {}};
        // For a request that has elements; the sizes are those of the longest request.
        case Op::q_len: return {{1, kMaxLength - 1}, {{ir::kQLen, 0}}, {}};
        case Op::kv_len: return {{1, kMaxLength - 1}, {{ir::kKvLen, 0}}, {}};
        case Op::kv_idx: return position({ir::kKvLen});
        case Op::size: return size_fact(node.symbol);
        case Op::param: return {{-kMaxParam, kMaxParam}, {}, {}};
        // A read outside its buffer gives 0, which every type can hold.
        case Op::read: return {stored(node), {}, {}};
        case Op::real_to_int: return {whole(node.operands[0]), {}, {}};
        case Op::iselect: return select(node);
        case Op::counter: return counter(node);
        case Op::sum: return sum(node);
        default: return arithmetic(node);
        }
    }

    // A square root is never negative; where it is NaN, the integer is 0.
    Interval whole(NodeId real) const {
        Interval range = truncated(reals_[real]);
        if (graph_[real].op == Op::sqrt) range.low = std::max<std::int64_t>(range.low, 0);
        return range;
    }

    // At least its first value, and below its end. If the range is empty, any bound holds.
    Fact counter(const ir::Node& node) const {
        const Fact &first = facts_[node.operands[0]], &end = facts_[node.operands[1]];
        Fact fact{first.range, {}, first.lower};
        if (end.range.high != INT64_MAX)
            fact.range.high = std::max(end.range.high - 1, first.range.low);
        insert_shifted(fact.upper, end.upper, -1, true);
        return fact;
    }

    Fact sum(const ir::Node& node) const {
        const ir::Node& range = graph_[node.operands[0]];
        const std::array ends = {facts_[range.operands[1]].range, facts_[range.operands[0]].range};
        Interval count = transfer(Op::isub, ends);
        count = {std::max<std::int64_t>(count.low, 0), std::max<std::int64_t>(count.high, 0)};
        const std::array factors = {count, facts_[node.operands[1]].range};
        // Include 0, as partial sums of fewer terms occur.
        return {hull({0, 0}, transfer(Op::imul, factors)), {}, {}};
    }

    Fact arithmetic(const ir::Node& node) const {
        std::vector<Interval> intervals;
        intervals.reserve(node.operands.size());
        for (NodeId operand : node.operands)
            intervals.push_back(facts_[operand].range);
        Fact fact;
        fact.range = transfer(node.op, intervals);
        // No bound holds for a sum that may wrap.
        if (is_any(fact.range)) return fact;
        const Fact& x = facts_[node.operands[0]];
        const Fact& y = facts_[node.operands.back()];
        switch (node.op) {
        case Op::iadd: add(fact, x, y); break;
        case Op::isub: subtract(fact, x, y); break;
        case Op::imin:
            fact.upper = x.upper;
            insert_shifted(fact.upper, y.upper, 0, true);
            fact.lower = hull_lower(x, y);
            break;
        case Op::imax:
            fact.upper = hull_upper(x, y);
            fact.lower = x.lower;
            insert_shifted(fact.lower, y.lower, 0, false);
            break;
        case Op::imod:
            if (y.range.low >= 1) insert_shifted(fact.upper, y.upper, -1, true);
            if (y.range.low >= 1 && x.range.low >= 0) insert_shifted(fact.upper, x.upper, 0, true);
            break;
        case Op::ifloordiv: // not above x
            if (y.range.low >= 1 && x.range.low >= 0) fact.upper = x.upper;
            break;
        case Op::ishr:
            if (x.range.low >= 0) fact.upper = x.upper;
            break;
        case Op::iabs:
            if (x.range.low >= 0) fact = x;
            break;
        case Op::iand:
            if (x.range.low >= 0) fact.upper = x.upper;
            if (y.range.low >= 0) insert_shifted(fact.upper, y.upper, 0, true);
            break;
        default: break;
        }
        return fact;
    }

    static void add(Fact& fact, const Fact& x, const Fact& y) {
        insert_shifted(fact.upper, x.upper, y.range.high, true);
        insert_shifted(fact.upper, y.upper, x.range.high, true);
        insert_shifted(fact.lower, x.lower, y.range.low, false);
        insert_shifted(fact.lower, y.lower, x.range.low, false);
    }

    static void subtract(Fact& fact, const Fact& x, const Fact& y) {
        if (is_small(y.range.low)) insert_shifted(fact.upper, x.upper, -y.range.low, true);
        if (is_small(y.range.high)) insert_shifted(fact.lower, x.lower, -y.range.high, false);
        for (const Bound& bound : x.upper)
            if (const Bound* match = find(y.lower, bound.size))
                fact.range.high = std::min(fact.range.high, bound.offset - match->offset);
        for (const Bound& bound : x.lower)
            if (const Bound* match = find(y.upper, bound.size))
                fact.range.low = std::max(fact.range.low, bound.offset - match->offset);
    }

    // --- selection: what the condition says about an arm
    // ------------------------------------------
    static void at_most(Fact& fact, const Fact& limit, std::int64_t shift) {
        if (!is_small(limit.range.high)) return;
        fact.range.high = std::min(fact.range.high, limit.range.high + shift);
        insert_shifted(fact.upper, limit.upper, shift, true);
    }
    static void at_least(Fact& fact, const Fact& limit, std::int64_t shift) {
        if (!is_small(limit.range.low)) return;
        fact.range.low = std::max(fact.range.low, limit.range.low + shift);
        insert_shifted(fact.lower, limit.lower, shift, false);
    }

    // Visits shared operands once, and a limited number of nodes of a condition.
    void refine(Fact& fact, NodeId arm, NodeId condition, bool holds) const {
        constexpr std::size_t kMostNodes = 64;
        std::vector<NodeId> seen = {condition};
        for (std::size_t next = 0; next < seen.size(); ++next) {
            const ir::Node& node = graph_[seen[next]];
            if (node.op != (holds ? Op::band : Op::bor)) {
                refine_by(fact, arm, node, holds);
                continue;
            }
            for (NodeId operand : node.operands)
                if (seen.size() < kMostNodes && std::ranges::find(seen, operand) == seen.end())
                    seen.push_back(operand);
        }
    }

    void refine_by(Fact& fact, NodeId arm, const ir::Node& comparison, bool holds) const {
        if (comparison.op != Op::ilt && comparison.op != Op::ile) return;
        const NodeId left = comparison.operands[0], right = comparison.operands[1];
        // x < y, or without it y <= x; x <= y, or without it y < x.
        const std::int64_t gap = (comparison.op == Op::ilt) == holds ? 1 : 0;
        const NodeId smaller = holds ? left : right, larger = holds ? right : left;
        if (arm == smaller) at_most(fact, facts_[larger], -gap);
        if (arm == larger) at_least(fact, facts_[smaller], gap);
    }

    Fact select(const ir::Node& node) const {
        const NodeId condition = node.operands[0];
        Fact yes = facts_[node.operands[1]], no = facts_[node.operands[2]];
        refine(yes, node.operands[1], condition, true);
        refine(no, node.operands[2], condition, false);
        // This arm is never taken.
        if (yes.range.low > yes.range.high) return facts_[node.operands[2]];
        if (no.range.low > no.range.high) return facts_[node.operands[1]];
        return {hull(yes.range, no.range), hull_upper(yes, no), hull_lower(yes, no)};
    }

    // --- reals: to bound what is truncated to an integer, and logits -------------------------
    bool is_data(const ir::Node& node) const {
        if (trust_ == Trust::all_reals) return false;
        switch (node.op) {
        case Op::score:
        case Op::read:
        case Op::param:
        case Op::sum:
        case Op::sin:
        case Op::cos:
        case Op::tanh:
        case Op::sigmoid:
        case Op::erf: return true;
        default: break;
        }
        return std::ranges::any_of(node.operands, [&](NodeId operand) {
            return graph_[operand].type == Type::real && is_data_[operand];
        });
    }

    RealInterval real(const ir::Node& node) const {
        switch (node.op) {
        case Op::const_real:
            if (node.real != node.real) return {};
            return {node.real, node.real, false};
        case Op::int_to_real: return real_of(facts_[node.operands[0]].range);
        case Op::bool_to_real: return {0, 1, false};
        case Op::fselect: return hull(reals_[node.operands[1]], reals_[node.operands[2]]);
        default: break;
        }
        if (ir::info(node.op).is_leaf()) return {};
        std::vector<RealInterval> intervals;
        intervals.reserve(node.operands.size());
        for (NodeId operand : node.operands)
            intervals.push_back(reals_[operand]);
        return transfer(node.op, intervals);
    }

    const ir::Program& program_;
    const ir::Graph& graph_;
    Trust trust_;
    std::vector<Fact> facts_;
    std::vector<RealInterval> reals_;
    std::vector<bool> is_data_;
};

} // namespace

Ranges ranges(const ir::Program& program) {
    Ranges ranges = Analysis(program, Trust::all_reals).run();
    ranges.in_range = Analysis(program, Trust::reals_of_positions).run().in_range;
    return ranges;
}

} // namespace flexc::analysis
