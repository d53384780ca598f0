#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "ir/interp.h"

using namespace flexc;
using ir::Dual;
using ir::Op;
using ir::Value;

namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

std::int64_t integer(Op op, std::int64_t x, std::int64_t y = 0) {
    const std::array operands = {Value<double>{.integer = x}, Value<double>{.integer = y}};
    return ir::apply<double>(op, operands).integer;
}

double real(Op op, double x, double y = 0, double z = 0) {
    const std::array operands = {Value<double>{.real = x}, Value<double>{.real = y},
                                 Value<double>{.real = z}};
    return ir::apply<double>(op, operands).real;
}

double slope(Op op, Dual x, Dual y = 0, Dual z = 0) {
    const std::array operands = {Value<Dual>{.real = x}, Value<Dual>{.real = y},
                                 Value<Dual>{.real = z}};
    return ir::apply<Dual>(op, operands).real.slope;
}

} // namespace

TEST_CASE("integer division floors, and is total") {
    CHECK(integer(Op::ifloordiv, 7, 2) == 3);
    CHECK(integer(Op::ifloordiv, -7, 2) == -4);
    CHECK(integer(Op::ifloordiv, 7, -2) == -4);
    CHECK(integer(Op::ifloordiv, -7, -2) == 3);
    CHECK(integer(Op::ifloordiv, -6, 2) == -3);
    CHECK(integer(Op::ifloordiv, 5, 0) == 0);
    CHECK(integer(Op::ifloordiv, kMin, -1) == kMin);
    CHECK(integer(Op::imod, 7, 3) == 1);
    CHECK(integer(Op::imod, -7, 3) == 2);
    CHECK(integer(Op::imod, 7, -3) == -2);
    CHECK(integer(Op::imod, -7, -3) == -1);
    CHECK(integer(Op::imod, 5, 0) == 0);
    CHECK(integer(Op::imod, kMin, -1) == 0);
}

TEST_CASE("integer arithmetic wraps") {
    CHECK(integer(Op::iadd, kMax, 1) == kMin);
    CHECK(integer(Op::isub, kMin, 1) == kMax);
    CHECK(integer(Op::imul, kMax, 2) == -2);
    CHECK(integer(Op::ineg, kMin) == kMin);
    CHECK(integer(Op::iabs, kMin) == kMin);
    CHECK(integer(Op::ipow, 3, 4) == 81);
    CHECK(integer(Op::ipow, 2, 64) == 0);
    CHECK(integer(Op::ipow, 0, 0) == 1);
    CHECK(integer(Op::ipow, 2, -1) == 0);
    CHECK(integer(Op::ipow, -1, -3) == -1);
    CHECK(integer(Op::ipow, 1, kMin) == 1);
}

TEST_CASE("shifts are defined for every amount") {
    CHECK(integer(Op::ishl, 3, 2) == 12);
    CHECK(integer(Op::ishl, 1, 63) == kMin);
    CHECK(integer(Op::ishl, 1, 64) == 0);
    CHECK(integer(Op::ishl, 1, -1) == 0);
    CHECK(integer(Op::ishr, -8, 1) == -4);
    CHECK(integer(Op::ishr, -8, 64) == -1);
    CHECK(integer(Op::ishr, 8, 64) == 0);
    CHECK(integer(Op::ishr, -8, -1) == -1);
}

TEST_CASE("min and max keep NaN, comparisons with it are false") {
    CHECK(std::isnan(real(Op::fmin, kNan, 1)));
    CHECK(std::isnan(real(Op::fmin, 1, kNan)));
    CHECK(std::isnan(real(Op::fmax, kNan, 1)));
    CHECK(std::isnan(real(Op::fmax, 1, kNan)));
    CHECK(std::isnan(real(Op::fclamp, kNan, 0, 1)));
    CHECK(std::isnan(real(Op::fclamp, 0.5, kNan, 1)));
    CHECK(real(Op::fclamp, 3, 2, 1) == 1); // bounds the wrong way round: the upper one
    const std::array operands = {Value<double>{.real = kNan}, Value<double>{.real = 1}};
    CHECK_FALSE(ir::apply<double>(Op::flt, operands).boolean);
    CHECK_FALSE(ir::apply<double>(Op::feq, operands).boolean);
    CHECK(ir::apply<double>(Op::fne, operands).boolean);
}

TEST_CASE("rounding and modulo of reals") {
    CHECK(real(Op::fround, 0.5) == 0);
    CHECK(real(Op::fround, 1.5) == 2);
    CHECK(real(Op::fround, -2.5) == -2);
    CHECK(real(Op::fround, 2.500001) == 3);
    CHECK(std::signbit(real(Op::fround, -0.25)));
    CHECK(real(Op::fround, kInf) == kInf);
    CHECK(real(Op::fmod, -7, 3) == 2);
    CHECK(real(Op::fmod, 7, -3) == -2);
    CHECK(real(Op::fmod, 1, kInf) == 1);
    CHECK(std::isnan(real(Op::fmod, 1, 0)));
    CHECK(real(Op::ffloordiv, -7, 2) == -4);
    CHECK(real(Op::fsign, kNan) == 0);
    CHECK(real(Op::sigmoid, -1000) == 0);
    CHECK(real(Op::softplus, 1000) == 1000);
    CHECK(real(Op::softplus, -kInf) == 0);
}

TEST_CASE("reals become integers by truncation, saturating") {
    auto to_int = [](double x) {
        const std::array operands = {Value<double>{.real = x}};
        return ir::apply<double>(Op::real_to_int, operands).integer;
    };
    CHECK(to_int(2.9) == 2);
    CHECK(to_int(-2.9) == -2);
    CHECK(to_int(kNan) == 0);
    CHECK(to_int(kInf) == kMax);
    CHECK(to_int(-1e30) == kMin);
}

TEST_CASE("reads outside give 0, whatever lies beside") {
    ir::Program program;
    program.buffers.push_back(
        {.name = "t", .dims = {{.constant = 2}, {.constant = 3}}, .span = {}});
    ir::Graph& graph = program.graph;
    const ir::NodeId row = graph.ambient(Op::q_idx), column = graph.ambient(Op::kv_idx);
    const ir::NodeId read = graph.read(0, ir::Type::real, {row, column});
    const ir::BufferData data{{2, 3}, {1, 2, 3, 4, 5, 6}, {}, {}};
    ir::Environment environment;
    environment.buffers = {&data};
    auto at = [&](std::int64_t q, std::int64_t kv) {
        environment.q_idx = q;
        environment.kv_idx = kv;
        return ir::evaluate_real(program, read, environment);
    };
    CHECK(at(1, 2) == 6);
    CHECK(at(0, 3) == 0); // not the next row
    CHECK(at(1, -1) == 0);
    CHECK(at(2, 0) == 0);
    CHECK(at(kMax, kMax) == 0);
    CHECK(ir::evaluate_slope(program, read, environment, read) == 1);
}

TEST_CASE("slopes at kinks follow the language's table") {
    const Dual x{0, 1};
    CHECK(slope(Op::fabs, x) == 0);
    CHECK(slope(Op::fmin, {2, 1}, 2) == 0.5);
    CHECK(slope(Op::fmax, {2, 1}, {2, 3}) == 2);
    CHECK(slope(Op::fclamp, {1, 1}, {0, 0}, {1, 5}) == 1);
    CHECK(slope(Op::fclamp, {2, 1}, {0, 0}, {1, 5}) == 5);
    CHECK(slope(Op::pow, {0, 1}, 0) == 0);
    CHECK(slope(Op::pow, {0, 1}, {2, 1}) == 0);
    CHECK(slope(Op::pow, {3, 1}, 2) == doctest::Approx(6));
    CHECK(slope(Op::ffloor, {1.5, 1}) == 0);
}
