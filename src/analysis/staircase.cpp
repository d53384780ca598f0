#include "analysis/staircase.h"

#include <numeric>

namespace flexc::analysis {

using ir::NodeId;
using ir::Op;

namespace {

constexpr std::int64_t kMostPeriod = 1 << 16;
// Limit on values and gains, far from overflow.
constexpr std::int64_t kMostValue = std::int64_t{1} << 40;

std::int64_t floor_divide(std::int64_t x, std::int64_t y) {
    return x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0);
}
std::int64_t floor_modulo(std::int64_t x, std::int64_t y) { return x - floor_divide(x, y) * y; }

bool is_small_number(std::int64_t x) { return -kMostValue <= x && x <= kMostValue; }

} // namespace

std::int64_t Staircase::at(std::int64_t position) const {
    const std::int64_t periods = floor_divide(position, period());
    return values_[static_cast<std::size_t>(position - periods * period())] + periods * gain_;
}

std::optional<std::int64_t> Staircase::gain(std::int64_t step, std::int64_t from,
                                            std::int64_t to) const {
    const std::int64_t all = std::lcm(period(), step);
    const std::int64_t result = at(to) - at(from);
    for (std::int64_t first = step; first < all; first += step)
        if (at(first + to) - at(first + from) != result) return {};
    return result;
}

std::optional<Staircase> Staircase::of(const ir::Graph& graph, NodeId id, Op position) {
    const ir::Node& node = graph[id];
    const auto made = [](std::int64_t period, auto value) -> std::optional<Staircase> {
        if (period > kMostPeriod) return {};
        Staircase result;
        for (std::int64_t at = 0; at < period; ++at)
            result.values_.push_back(value(at));
        result.gain_ = value(period) - value(0);
        for (const std::int64_t of : result.values_)
            if (!is_small_number(of)) return {};
        return is_small_number(result.gain_) ? std::optional(std::move(result)) : std::nullopt;
    };
    if (node.op == position) return made(1, [](std::int64_t at) { return at; });
    if (node.op == Op::const_int) return made(1, [&](std::int64_t) { return node.integer; });
    if (node.operands.empty() || node.operands.size() > 2 || node.type != ir::Type::integer)
        return {};
    const auto x = of(graph, node.operands.front(), position);
    const auto y = of(graph, node.operands.back(), position);
    if (!x || !y) return {};
    const std::int64_t both = std::lcm(x->period(), y->period());
    const bool by_constant = y->period() == 1 && y->gain_ == 0;
    const std::int64_t constant = y->at(0);
    switch (node.op) {
    case Op::ineg: return made(both, [&](std::int64_t at) { return -x->at(at); });
    case Op::iadd: return made(both, [&](std::int64_t at) { return x->at(at) + y->at(at); });
    case Op::isub: return made(both, [&](std::int64_t at) { return x->at(at) - y->at(at); });
    case Op::imul: {
        const bool x_is_constant = x->period() == 1 && x->gain_ == 0;
        if (!by_constant && !x_is_constant) return {};
        if (!is_small_number(by_constant ? constant * constant : x->at(0) * x->at(0))) return {};
        return made(both, [&](std::int64_t at) { return x->at(at) * y->at(at); });
    }
    case Op::ifloordiv:
    case Op::imod: {
        if (!by_constant || constant < 1) return {};
        // After this many periods, x has increased by a multiple of the divisor.
        const std::int64_t periods = constant / std::gcd(constant, x->gain_);
        if (periods > kMostPeriod) return {};
        const bool divides = node.op == Op::ifloordiv;
        return made(x->period() * periods, [&](std::int64_t at) {
            return divides ? floor_divide(x->at(at), constant) : floor_modulo(x->at(at), constant);
        });
    }
    default: return {};
    }
}

} // namespace flexc::analysis
