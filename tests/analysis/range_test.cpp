#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "analysis/range.h"
#include "hostile_reals.h"
#include "ir/print.h"
#include "program_of.h"
#include "random_program.h"

using namespace flexc;
using ir::NodeId;
using ir::Op;

namespace {

// Points at the edges of what a call may be: huge sizes, first and last positions, and buffers that
// hold the ends of their types.
class ExtremeInstance {
  public:
    ExtremeInstance(const ir::Program& program, std::uint64_t seed) : random_(seed) {
        for (std::uint32_t size = 0; size < program.sizes.size(); ++size)
            environment.sizes.push_back(any_size(size));
        environment.sizes[ir::kH] =
            std::min(analysis::kMaxLength - 1, environment.sizes[ir::kHKv] * random_.integer(1, 3));
        for (const ir::Param& param : program.params)
            environment.params.push_back(
                {.boolean = random_.chance(50),
                 .integer = param.type == ir::Type::integer ? any_integer() >> 10 : 0,
                 .real = random_.real()});
        buffers_.resize(program.buffers.size());
        for (std::size_t i = 0; i < buffers_.size(); ++i) {
            const ir::Buffer& buffer = program.buffers[i];
            for (const ir::Dim& dim : buffer.dims)
                buffers_[i].extents.push_back(dim.is_constant() ? dim.constant
                                                                : environment.sizes[dim.size]);
            buffers_[i].at = [this, dtype = buffer.dtype](std::span<const std::int64_t>) {
                return any_element(dtype);
            };
            environment.buffers.push_back(&buffers_[i]);
        }
        move();
    }

    void move() {
        environment.b = position(ir::kB);
        environment.h = position(ir::kH);
        environment.h_kv = std::min(environment.h, position(ir::kHKv));
        environment.q_idx = position(ir::kQLen);
        environment.kv_idx = position(ir::kKvLen);
        environment.score = random_.chance(20) ? 1e30 : random_.real();
    }

    ir::Environment environment;

  private:
    std::int64_t any_size(std::uint32_t size) {
        if (size == ir::kD || size == ir::kDv) return random_.integer(1, 256);
        if (size >= ir::kStandardSizes)
            return random_.pick(std::array<std::int64_t, 4>{1, 2, 5, std::int64_t{1} << 40});
        return random_.pick(std::array<std::int64_t, 5>{1, 2, 7, 100000, analysis::kMaxLength - 1});
    }
    std::int64_t position(std::uint32_t size) {
        const std::int64_t last = environment.sizes[size] - 1;
        return random_.pick(std::array<std::int64_t, 3>{0, last, random_.integer(0, last)});
    }
    std::int64_t any_integer() {
        constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min();
        return random_.pick(std::array<std::int64_t, 6>{kLow, ~kLow, 0, -1, random_.integer(-9, 9),
                                                        random_.integer(kLow, ~kLow)});
    }
    ir::Value<double> any_element(DType dtype) {
        auto between = [&](std::int64_t low, std::int64_t high) {
            return random_.pick(std::array<std::int64_t, 3>{low, high, random_.integer(low, high)});
        };
        switch (dtype) {
        case DType::i64: return {.integer = any_integer()};
        case DType::i32: return {.integer = between(INT32_MIN, INT32_MAX)};
        case DType::i16: return {.integer = between(INT16_MIN, INT16_MAX)};
        case DType::i8: return {.integer = between(INT8_MIN, INT8_MAX)};
        case DType::u8: return {.integer = between(0, UINT8_MAX)};
        case DType::boolean: return {.boolean = random_.chance(50)};
        default:
            return {.real = random_.pick(std::array<double, 5>{
                        0.0, -1.5, 1e38, -std::numeric_limits<double>::infinity(),
                        std::numeric_limits<double>::quiet_NaN()})};
        }
    }

    test::Random random_;
    std::vector<ir::BufferData> buffers_;
};

bool fits(std::int64_t value) { return value >= INT32_MIN && value <= INT32_MAX; }

void check_point(const ir::Program& program, const analysis::Ranges& ranges,
                 std::span<const NodeId> order, std::span<const NodeId> roots,
                 const ir::Environment& environment) {
    const auto values = ir::evaluate<double>(program, roots, environment);
    const std::vector<NodeId> counters = ir::counters_of(program.graph);
    const auto is_counted = [&](NodeId counter) {
        const auto& range = program.graph[counter].operands;
        return values[range[0]].integer <= environment.counter &&
               environment.counter < values[range[1]].integer;
    };
    for (NodeId id : order) {
        const ir::Node& node = program.graph[id];
        CAPTURE(id);
        if (counters[id] != ir::kNoNode && !is_counted(counters[id])) continue;
        if (node.type == ir::Type::integer) {
            const std::int64_t value = values[id].integer;
            REQUIRE(ranges.of_node[id].low <= value);
            REQUIRE(value <= ranges.of_node[id].high);
            if (ranges.narrow[id]) REQUIRE(fits(value));
        }
        if (node.type == ir::Type::real) {
            const double size = std::fabs(values[id].real);
            REQUIRE((std::isnan(size) || size <= ranges.magnitude[id]));
            if (ranges.finite[id]) REQUIRE(std::isfinite(size));
        }
        if (node.op == Op::read) {
            for (std::size_t i = 0; i < node.operands.size(); ++i) {
                if (!ranges.in_range[id][i]) continue;
                const std::int64_t index = values[node.operands[i]].integer;
                REQUIRE(index >= 0);
                REQUIRE(index < environment.buffers[node.symbol]->extents[i]);
            }
        } else if (ranges.narrow[id]) {
            for (NodeId operand : node.operands)
                if (program.graph[operand].type == ir::Type::integer)
                    REQUIRE(fits(values[operand].integer));
        }
    }
}

// Whether each read of the program, in order, is proven in range at every index.
std::vector<bool> proofs(std::string text) {
    const passes::Mod mod = test::lowered(std::move(text), {.head_dim = 64});
    std::vector<bool> result;
    for (NodeId id : mod.order)
        if (mod.program.graph[id].op == Op::read) {
            bool all = true;
            for (bool inside : mod.ranges.in_range[id])
                all = all && inside;
            result.push_back(all);
        }
    return result;
}

bool proven(const std::string& dims, const std::string& index) {
    const auto result = proofs("buffer t: f32[" + dims + "]\nscore_mod = score + t[" + index + "]");
    REQUIRE(result.size() == 1);
    return result[0];
}

} // namespace

TEST_CASE("how large a modified score can be") {
    const auto bound = [](const char* text) {
        const passes::Mod mod = test::lowered(text, {.head_dim = 64});
        return mod.ranges.magnitude[mod.score];
    };
    CHECK(bound("20 * tanh(score / 20)") == doctest::Approx(20).epsilon(1e-3));
    CHECK(bound("clamp(score, -3, 7)") == doctest::Approx(7).epsilon(1e-3));
    CHECK(bound("sigmoid(score) - 4") == doctest::Approx(4).epsilon(1e-3));
    for (const char* text : {"score", "tanh(score) * score", "-inf if kv_idx < 3 else tanh(score)",
                             "param cap: f32 = 2\nscore_mod = cap * tanh(score / cap)"})
        CHECK(bound(text) > 1e38);
}

TEST_CASE("every value lies in its range, every proven index in its buffer") {
    int proofs_seen = 0, narrow_seen = 0;
    for (const std::uint64_t seed : test::seeds(800)) {
        CAPTURE(seed);
        const ir::Program program = test::random_program(
            seed, {.operators = 50, .sized_sums = false, .tame = seed % 2 == 0});
        const analysis::Ranges ranges = analysis::ranges(program);
        const std::array roots = {program.score, program.mask};
        const std::vector<NodeId> order = ir::reachable(program.graph, roots);
        CAPTURE(ir::print(program));
        ExtremeInstance instance(program, seed);
        for (int point = 0; point < 30; ++point, instance.move()) {
            instance.environment.counter = point % 7 - 1;
            check_point(program, ranges, order, roots, instance.environment);
        }
        for (NodeId id : order) {
            narrow_seen += program.graph[id].type == ir::Type::integer && ranges.narrow[id];
            for (bool inside : ranges.in_range[id])
                proofs_seen += inside;
        }
    }
    CHECK(proofs_seen > test::trials(800) / 2);
    CHECK(narrow_seen > 2 * test::trials(800));
}

TEST_CASE("what the reference gives for hostile reals lies in its interval") {
    test::HostilePoints points(test::first_seed());
    for (std::size_t i = 0; i < ir::all_operators().size(); ++i) {
        const ir::OpInfo& info = ir::info(static_cast<Op>(i));
        if (!test::is_of_reals(info)) continue;
        for (int trial = 0; trial < test::trials(20000); ++trial) {
            const test::HostilePoint point = points.next(info.arity());
            std::vector<ir::Value<double>> operands;
            for (int j = 0; j < info.arity(); ++j)
                operands.push_back({.real = point.operands[static_cast<std::size_t>(j)]});
            const double exact = ir::apply<double>(static_cast<Op>(i), operands).real;
            test::check_contained(static_cast<Op>(i), point, static_cast<float>(exact));
        }
    }
}

TEST_CASE("integers of hostile reals lie in their interval") {
    test::HostilePoints points(test::first_seed());
    for (int trial = 0; trial < test::trials(20000); ++trial) {
        const test::HostilePoint point = points.next(1);
        const analysis::Interval interval = analysis::truncated(point.intervals[0]);
        const std::int64_t value =
            ir::reference::truncate_to_int(static_cast<double>(point.operands[0])).value;
        REQUIRE(interval.low <= value);
        REQUIRE(value <= interval.high);
    }
}

TEST_CASE("no proof rests on reals that a caller chooses") {
    for (const char* index :
         {"int(sign(max(score, 1.0)))", "int(clamp(score, 0, 3))", "int(sin(score) + 2.0)",
          "int(cos(float(q_idx + 1) * 1e20) + 1.5)", "int(tanh(x[h]) + 1.5)",
          "min(max(int(score), 0), 3) + int(sigmoid(x[h]))", "int(clamp(y[kv_idx], 0, 3))"}) {
        CAPTURE(index);
        const auto result = proofs("buffer t: f32[4]\nbuffer x: f32[H]\nbuffer y: f32[KV_LEN]\n"
                                   "score_mod = t[" +
                                   std::string(index) + "] + x[0]");
        CHECK(std::ranges::count(result, false) == 1);
    }
    CHECK(proven("32", "min(int(log(float(abs(q_idx - kv_idx) + 1))), 31)"));
    CHECK(proven("4", "min(max(int(score), 0), 3)"));
    // No root is below 0.
    CHECK(proven("4", "min(int(sqrt(score)), 3)"));
    CHECK_FALSE(proven("4", "int(sqrt(clamp(score, 0, 9)))"));
}

TEST_CASE("indices that are proven") {
    CHECK(proven("H", "h"));
    CHECK(proven("B", "b"));
    CHECK(proven("H_KV", "h_kv"));
    CHECK(proven("H", "h_kv"));
    CHECK(proven("Q_LEN", "q_idx"));
    CHECK(proven("KV_LEN", "kv_idx"));
    CHECK(proven("B, H, Q_LEN, KV_LEN", "b, h, q_idx, kv_idx"));
    CHECK(proven("KV_LEN", "KV_LEN - 1 - kv_idx"));
    CHECK(proven("KV_LEN", "kv_idx // 2"));
    CHECK(proven("KV_LEN", "kv_idx % 16 - kv_idx % 16"));
    CHECK(proven("10", "kv_idx % 10"));
    CHECK(proven("32", "min(max(q_idx - kv_idx, 0), 31)"));
    CHECK(proven("32", "clamp(q_idx - kv_idx, 0, 31)"));
    CHECK(proven("N", "(q_idx * 7) % N"));
    CHECK(proven("N", "clamp(q_idx, 0, N - 1)"));
    CHECK(proven("KV_LEN", "max(kv_idx - 5, 0)"));
    CHECK(proven("KV_LEN", "min(q_idx, KV_LEN - 1)"));
    CHECK(proven("KV_LEN", "q_idx if q_idx < KV_LEN else 0"));
    CHECK(proven("64", "D - 1"));
    CHECK(proven("D", "63"));
    CHECK(proven("1", "0"));
    CHECK(proven("N", "0"));
    // A read as an index: its type bounds it.
    CHECK(proofs("buffer u: u8[KV_LEN]\nbuffer t: f32[256]\nscore_mod = score + t[u[kv_idx]]") ==
          std::vector<bool>{true, true});
    CHECK(proofs("buffer u: i8[KV_LEN]\nbuffer t: f32[256]\nscore_mod = score + t[u[kv_idx]]") ==
          std::vector<bool>{true, false});
    // T5 buckets: the logarithm is bounded, so that 32 bits are enough and no check is below.
    CHECK(proven("32", "max(min(16 + int(log(max(q_idx - kv_idx, 1) / 16) * 7.7), 31), 0)"));
}

TEST_CASE("indices that are not") {
    CHECK_FALSE(proven("KV_LEN", "q_idx"));
    CHECK_FALSE(proven("Q_LEN", "kv_idx"));
    CHECK_FALSE(proven("H_KV", "h"));
    CHECK_FALSE(proven("N", "q_idx - kv_idx + Q_LEN"));
    CHECK_FALSE(proven("KV_LEN", "kv_idx + 1"));
    CHECK_FALSE(proven("KV_LEN", "kv_idx - 1"));
    CHECK_FALSE(proven("9", "kv_idx % 10"));
    CHECK_FALSE(proven("N", "1"));
    CHECK_FALSE(proven("KV_LEN", "q_idx if q_idx <= KV_LEN else 0"));
    CHECK_FALSE(proven("63", "D - 1"));
}

TEST_CASE("widths: 64 bits only where 32 may not be enough") {
    auto narrow = [](const std::string& text) {
        const ir::Program program =
            test::program_of("param W: int = 3\nbuffer o: i64[B]\nmask_mod = 0 == " + text);
        const analysis::Ranges ranges = analysis::ranges(program);
        return static_cast<bool>(ranges.narrow[program.mask]);
    };
    CHECK(narrow("q_idx - kv_idx"));
    CHECK(narrow("q_idx + kv_idx"));
    CHECK(narrow("KV_LEN - Q_LEN + kv_idx - q_idx"));
    CHECK(narrow("(q_idx - kv_idx) // 3"));
    CHECK(narrow("kv_idx * 3") == false);
    CHECK(narrow("kv_idx * q_idx") == false);
    CHECK(narrow("kv_idx % 100 * 1000"));
    CHECK(narrow("q_idx + W") == false);
    CHECK(narrow("o[b]") == false);
    CHECK(narrow("clamp(o[b], 0, 9)"));
}
