// What operators give lies in the intervals that both tables, of ranges and of tiles, make of
// intervals around the operands.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "analysis/interval.h"
#include "analysis/tile_class.h"
#include "random_program.h"

using namespace flexc;
using ir::Op;
using ir::Type;

namespace {

struct Operand {
    ir::Value<double> value;
    interval::Fact tile;
    analysis::Interval range;
};

class Operands {
  public:
    explicit Operands(std::uint64_t seed) : random_(seed) {}

    Operand next(Type type) {
        switch (type) {
        case Type::boolean: {
            const bool x = random_.chance(50), is_known = random_.chance(50);
            return {{.boolean = x}, is_known ? interval::of(x) : interval::any_truth(), {}};
        }
        case Type::integer: {
            const std::array<std::int64_t, 3> ends = sorted(integer(), integer(), integer());
            const auto of = [](std::int64_t x) { return interval::of(static_cast<long long>(x)); };
            return {
                {.integer = ends[1]}, interval::hull(of(ends[0]), of(ends[2])), {ends[0], ends[2]}};
        }
        case Type::real: break;
        }
        const std::array<double, 3> ends = sorted(real(), real(), real());
        return {{.real = ends[1]}, {ends[0], ends[2]}, {}};
    }

  private:
    template <typename T> std::array<T, 3> sorted(T x, T y, T z) {
        std::array<T, 3> all = {x, y, z};
        if (random_.chance(30)) all = {x, x, x};
        std::ranges::sort(all);
        return all;
    }
    std::int64_t integer() {
        constexpr std::array<std::int64_t, 6> kGreat = {
            INT32_MAX, INT64_MAX, INT64_MIN, std::int64_t{1} << 53, std::int64_t{1} << 40, 63};
        const std::int64_t small = random_.integer(-9, 9);
        if (random_.chance(80)) return small;
        const std::int64_t great = random_.pick(kGreat);
        return static_cast<std::int64_t>(static_cast<std::uint64_t>(great) +
                                         static_cast<std::uint64_t>(small));
    }
    // Floats of which sums and products are exact enough.
    double real() {
        const double size = random_.chance(90) ? 1 : 65536;
        return random_.real() * (random_.chance(50) ? size : 0.25);
    }

    test::Random random_;
};

} // namespace

TEST_CASE("results of every operator lie in their intervals") {
    Operands random(test::first_seed());
    for (std::size_t i = 0; i < ir::all_operators().size(); ++i) {
        const auto op = static_cast<Op>(i);
        const ir::OpInfo& info = ir::info(op);
        if (info.is_leaf()) continue;
        CAPTURE(info.name);
        const Type type = ir::type_of_letter(info.signature.back());
        const auto arity = static_cast<std::size_t>(info.arity());
        for (int trial = 0; trial < test::trials(4000); ++trial) {
            std::vector<ir::Value<double>> values;
            std::array<interval::Fact, 3> tiles{};
            std::vector<analysis::Interval> ranges;
            for (std::size_t j = 0; j < arity; ++j) {
                const Operand operand = random.next(ir::type_of_letter(info.signature[j]));
                values.push_back(operand.value);
                tiles[j] = operand.tile;
                ranges.push_back(operand.range);
                CAPTURE(operand.value.integer);
            }
            const ir::Value<double> result = ir::apply<double>(op, values);
            const interval::Fact tile = analysis::tile_interval(op, type, tiles);
            const double number = type == Type::boolean   ? static_cast<double>(result.boolean)
                                  : type == Type::integer ? static_cast<double>(result.integer)
                                  // Tiles have it in f32, the interpreter in double precision.
                                  : op == Op::int_to_real ? static_cast<float>(result.real)
                                                          : result.real;
            const bool is_in_tile = (tile.low <= number && number <= tile.high) ||
                                    (type == Type::real && !interval::is_finite(tile));
            if (!is_in_tile)
                FAIL_CHECK(info.name << " of tiles: " << number << " is outside [" << tile.low
                                     << ", " << tile.high << "]");
            if (type != Type::integer || info.signature.front() == 'f') continue;
            const analysis::Interval range = analysis::transfer(op, ranges);
            if (result.integer < range.low || result.integer > range.high)
                FAIL_CHECK(info.name << " of ranges: " << result.integer << " is outside ["
                                     << range.low << ", " << range.high << "]");
        }
    }
}

TEST_CASE("operators that no table has an entry for say nothing") {
    CHECK(analysis::has_tile_interval(Op::iadd));
    CHECK(analysis::has_tile_interval(Op::fselect));
    CHECK(!analysis::has_tile_interval(Op::exp));
    CHECK(!analysis::has_tile_interval(Op::ipow));
    CHECK(!interval::is_finite(analysis::tile_interval(Op::exp, Type::real, {})));
}
