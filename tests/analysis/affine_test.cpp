// Affine forms of integers, against their values and what these gain from place to place.
#include <doctest/doctest.h>

#include <functional>

#include "analysis/affine.h"
#include "analysis/distance.h"
#include "ir/print.h"
#include "program_of.h"
#include "random_program.h"

using namespace flexc;
using analysis::AffineForm;
using analysis::Dependence;
using ir::NodeId;
using ir::Op;

namespace {

std::vector<AffineForm> forms_of(const ir::Graph& graph) {
    return analysis::affine_forms(graph, analysis::dependences(graph));
}

// The form of the index in "t[index]".
struct Index {
    explicit Index(const std::string& text)
        : program(test::program_of("param W: int = 3\nbuffer off: i32[B]\nbuffer t: f32[99]\n"
                                   "score_mod = score + t[" +
                                   text + "]")) {
        for (NodeId id = 0; id < program.graph.size(); ++id)
            if (program.graph[id].op == Op::read && program.graph[id].type == ir::Type::real)
                form = forms_of(program.graph)[program.graph[id].operands.at(0)];
    }
    ir::Program program;
    AffineForm form;
};

std::int64_t wrapped(const AffineForm& form, const ir::Environment& at,
                     const std::vector<ir::Value<double>>& values) {
    const auto word = [](std::int64_t value) { return static_cast<std::uint64_t>(value); };
    std::uint64_t sum =
        word(form.constant) + word(form.q) * word(at.q_idx) + word(form.kv) * word(at.kv_idx);
    for (const AffineForm::Term& term : form.rest)
        sum += word(term.coefficient) * word(values[term.node].integer);
    return static_cast<std::int64_t>(sum);
}

// Sums, products and what is neither, of all that an integer can be; some numbers are near the
// limits of forms.
class IntegerGenerator {
  public:
    explicit IntegerGenerator(std::uint64_t seed) : random_(seed) {
        program.params.push_back({.name = "W", .type = ir::Type::integer, .default_value = 2});
        program.buffers.push_back(
            {.name = "off", .dtype = DType::i64, .dims = {{.size = ir::kKvLen}}, .span = {}});
        ir::Graph& graph = program.graph;
        pool_ = {graph.ambient(Op::q_idx),
                 graph.ambient(Op::kv_idx),
                 graph.ambient(Op::b),
                 graph.ambient(Op::h),
                 graph.param(0, ir::Type::integer),
                 graph.size_of(ir::kKvLen),
                 graph.integer(3),
                 graph.integer(-1),
                 graph.integer(std::int64_t{1} << 31),
                 graph.integer((std::int64_t{1} << 31) - 1)};
        for (int i = 0; i < 60; ++i)
            pool_.push_back(draw());
        // All of them are needed.
        NodeId all = graph.integer(0);
        for (const NodeId id : pool_)
            all = make(Op::ixor, {all, id});
        program.score = graph.apply(Op::int_to_real, {all});
        program.mask = graph.boolean(true);
    }
    ir::Program program;

  private:
    NodeId make(Op op, std::vector<NodeId> operands) {
        return program.graph.apply(op, std::move(operands));
    }
    NodeId draw() {
        const NodeId x = random_.pick(pool_), y = random_.pick(pool_);
        ir::Graph& graph = program.graph;
        switch (random_.integer(0, 12)) {
        case 0: return make(Op::iabs, {x});
        case 1: return make(random_.chance(50) ? Op::imin : Op::imax, {x, y});
        case 2: return make(Op::ifloordiv, {x, graph.integer(random_.integer(2, 5))});
        case 3: return make(Op::imod, {x, graph.integer(random_.integer(2, 5))});
        case 4: return make(Op::ineg, {x});
        case 5: return make(Op::imul, {x, y});
        case 6:
        case 7: return make(Op::imul, {x, graph.integer(random_.integer(-3, 3))});
        case 8:
            return graph.read(0, ir::Type::integer,
                              {make(Op::imod, {x, graph.size_of(ir::kKvLen)})});
        case 9:
        case 10: return make(Op::isub, {x, y});
        default: return make(Op::iadd, {x, y});
        }
    }

    test::Random random_;
    std::vector<NodeId> pool_;
};

// Calls use(form, value at an (q, kv)) for each integer of a program that is outside of sums.
using ValueAt = std::function<std::int64_t(std::int64_t q, std::int64_t kv)>;
template <typename Use> void for_integers(const ir::Program& program, std::uint64_t seed, Use use) {
    const auto forms = forms_of(program.graph);
    const auto counters = ir::counters_of(program.graph);
    test::Instance instance(program, seed);
    ir::Environment& environment = instance.environment();
    const std::array roots = {program.score, program.mask};
    const std::vector<NodeId> nodes = ir::reachable(program.graph, roots);
    constexpr std::int64_t kPlaces = 6;
    std::vector<std::vector<ir::Value<double>>> values;
    for (std::int64_t q = 0; q < kPlaces; ++q)
        for (std::int64_t kv = 0; kv < kPlaces; ++kv) {
            environment.q_idx = q;
            environment.kv_idx = kv;
            values.push_back(ir::evaluate<double>(program, roots, environment));
        }
    for (const NodeId id : nodes) {
        if (program.graph[id].type != ir::Type::integer || counters[id] != ir::kNoNode) continue;
        CAPTURE(id);
        for (std::int64_t place = 0; place < kPlaces * kPlaces; ++place) {
            environment.q_idx = place / kPlaces;
            environment.kv_idx = place % kPlaces;
            const auto& here = values[static_cast<std::size_t>(place)];
            REQUIRE(wrapped(forms[id], environment, here) == here[id].integer);
        }
        use(id, forms[id], [&](std::int64_t q, std::int64_t kv) {
            return values[static_cast<std::size_t>(q * kPlaces + kv)][id].integer;
        });
    }
}

// What its form says that an integer gains is what it gains.
int check_gains(const ir::Program& program, std::uint64_t seed) {
    const auto dependence = analysis::dependences(program.graph);
    const auto of_distance =
        analysis::of_distance(program.graph, dependence, forms_of(program.graph));
    int found = 0;
    for_integers(program, seed, [&](NodeId id, const AffineForm& form, const auto& at) {
        const auto gain = [](std::int64_t from, std::int64_t to) {
            return static_cast<std::int64_t>(static_cast<std::uint64_t>(to) -
                                             static_cast<std::uint64_t>(from));
        };
        const auto slope = analysis::slope_in_kv(form);
        found += slope && *slope != 0;
        for (std::int64_t x = 1; x < 4; ++x)
            for (std::int64_t y = 1; y < 4; ++y) {
                if (slope) REQUIRE(gain(at(x, y), at(x, y + 1)) == *slope);
                if (is_linear_by_query(form)) REQUIRE(gain(at(x, y), at(x + 1, y)) == form.q);
                if (is_shifted_position(form))
                    REQUIRE(gain(at(x, y), at(x + 1, y)) + gain(at(x, y), at(x, y + 1)) == 1);
                if (of_distance[id]) REQUIRE(at(x, y) == at(x + 1, y + 1));
            }
    });
    return found;
}

} // namespace

TEST_CASE("affine forms of indices") {
    const auto expect = [](const char* text, std::int64_t q, std::int64_t kv, std::int64_t constant,
                           std::size_t terms) {
        CAPTURE(text);
        const AffineForm form = Index(text).form;
        CHECK(form.q == q);
        CHECK(form.kv == kv);
        CHECK(form.constant == constant);
        CHECK(form.rest.size() == terms);
    };
    expect("7", 0, 0, 7, 0);
    expect("q_idx", 1, 0, 0, 0);
    expect("3 * (q_idx - 2 * kv_idx) + 5", 3, -6, 5, 0);
    expect("-(kv_idx - 4) * 2", 0, -2, 8, 0);
    expect("kv_idx + off[b]", 0, 1, 0, 1);
    expect("off[b] * 2 - off[b] - off[b] + W", 0, 0, 0, 1);
    expect("W * kv_idx + W", 0, 0, 0, 2);
    expect("kv_idx // 12 * 5 - kv_idx % 12 + q_idx", 1, 0, 0, 2);
    expect("abs(q_idx - kv_idx) + max(W, kv_idx)", 0, 0, 0, 2);
    expect("kv_idx * 2147483648", 0, std::int64_t{1} << 31, 0, 0);
    expect("kv_idx * 2147483648 * 2", 0, 0, 0, 1);
    expect("(kv_idx * 2147483648 * 2 - kv_idx) * 3", 0, -3, 0, 1);
    expect("kv_idx + 2147483649", 0, 1, 0, 1);
}

TEST_CASE("what forms tell") {
    const auto slope = [](const char* text) { return analysis::slope_in_kv(Index(text).form); };
    CHECK(slope("kv_idx * 3 - q_idx * W") == 3);
    CHECK(slope("q_idx // 2") == 0);
    CHECK(slope("off[b] - kv_idx") == -1);
    CHECK(!slope("kv_idx // 2 + kv_idx"));
    CHECK(!slope("W * kv_idx"));
    CHECK(!slope("kv_idx + int(score)"));
    CHECK(!slope("kv_idx * 1048577"));
    const auto shifted = [](const char* text) {
        return analysis::is_shifted_position(Index(text).form);
    };
    for (const char* text : {"q_idx", "kv_idx", "kv_idx - W", "off[b] + q_idx", "3 - (2 - kv_idx)"})
        CHECK_MESSAGE(shifted(text), std::string(text));
    for (const char* text : {"W", "2 * q_idx", "-kv_idx", "2 * q_idx - kv_idx", "q_idx + kv_idx",
                             "q_idx + kv_idx // 2", "-q_idx"})
        CHECK_MESSAGE(!shifted(text), std::string(text));
}

TEST_CASE("forms have the values of their integers, and gain what these gain") {
    int found = 0;
    for (const std::uint64_t seed : test::seeds(300)) {
        CAPTURE(seed);
        const IntegerGenerator generator(seed);
        CAPTURE(ir::print(generator.program));
        found += check_gains(generator.program, seed);
    }
    CHECK(found > test::trials(300));
    for (const std::uint64_t seed : test::seeds(200)) {
        CAPTURE(seed);
        check_gains(test::random_program(seed), seed);
    }
}

TEST_CASE("what is of a distance has one value along a diagonal") {
    const auto is = [](const std::string& text) -> bool {
        const ir::Program program = test::program_of(
            "param W: int = 3\nbuffer t: f32[99]\nbuffer off: i32[B]\nscore_mod = " + text);
        const auto dependence = analysis::dependences(program.graph);
        return analysis::of_distance(program.graph, dependence,
                                     forms_of(program.graph))[program.score];
    };
    for (const char* text :
         {"t[q_idx - kv_idx + W]", "abs(kv_idx - q_idx) * 0.5", "2 * q_idx - kv_idx * 2",
          "q_idx + abs(q_idx - kv_idx) - kv_idx", "t[W] + off[b]",
          "t[q_idx - kv_idx] if q_idx - kv_idx >= 0 else (kv_idx - q_idx) // 2 + 0.0",
          "where(q_idx < kv_idx, 1.0, 2.0)", "t[where(kv_idx + W != q_idx + off[b], 4, 5)]",
          "where(2 * q_idx - kv_idx <= q_idx + 3, 1.0, 2.0)"})
        CHECK_MESSAGE(is(text), std::string(text));
    for (const char* text :
         {"t[q_idx]", "score * (q_idx - kv_idx)", "2 * q_idx - kv_idx", "q_idx + kv_idx",
          "q_idx // 2 - kv_idx // 2", "off[kv_idx] - off[q_idx]", "W * q_idx - W * kv_idx",
          "where(q_idx < 7, 1.0, 2.0)", "where(q_idx < 2 * kv_idx, 1.0, 2.0)",
          "where(off[q_idx] == off[kv_idx], 1.0, 2.0)"})
        CHECK_MESSAGE(!is(text), std::string(text));
}

TEST_CASE("forms of shared and of long sums take bounded work") {
    ir::Graph graph;
    NodeId doubled = graph.ambient(Op::kv_idx), halved = doubled, all = graph.integer(0);
    for (std::int64_t i = 0; i < 2000; ++i) {
        doubled = graph.apply(Op::iadd, {doubled, doubled});
        halved =
            graph.apply(Op::isub, {halved, graph.apply(Op::ifloordiv, {halved, graph.integer(2)})});
        all = graph.apply(Op::iadd, {all, graph.size_of(static_cast<std::uint32_t>(i))});
    }
    const auto forms = forms_of(graph);
    for (const AffineForm& form : forms) {
        CHECK(form.rest.size() <= analysis::kMaxTerms);
        CHECK(form.kv <= analysis::kMaxCoefficient);
    }
    // Forms of nodes that are made later are those of a graph that has them from the start.
    std::vector<AffineForm> extended;
    ir::Graph growing;
    for (std::int64_t i = 0; i < 100; ++i) {
        growing.apply(Op::iadd, {growing.ambient(Op::q_idx), growing.integer(i)});
        analysis::extend_affine_forms(extended, growing, analysis::dependences(growing));
    }
    CHECK(extended == forms_of(growing));
}
