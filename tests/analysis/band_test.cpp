#include <doctest/doctest.h>

#include <array>

#include "analysis/band.h"
#include "ir/print.h"
#include "ir/verify.h"
#include "passes/simplify.h"
#include "program_of.h"
#include "random_program.h"

using namespace flexc;
using ir::NodeId;
using ir::Op;

namespace {

bool in_band(const ir::Program& program, const analysis::Band& band,
             const ir::Environment& environment) {
    const std::int64_t diagonal = environment.kv_idx - environment.q_idx;
    for (NodeId low : band.low)
        if (diagonal < ir::evaluate_integer(program, low, environment)) return false;
    for (NodeId high : band.high)
        if (diagonal > ir::evaluate_integer(program, high, environment)) return false;
    return true;
}

// Every visible element is in the band; with an exact band, every element of it is visible; and the
// bounds use nothing that changes inside a head.
void check_band(ir::Program& program, const analysis::Band& band, std::uint64_t seed) {
    const auto dependence = analysis::dependences(program.graph);
    for (const auto* bounds : {&band.low, &band.high})
        for (NodeId bound : *bounds) {
            REQUIRE(program.graph[bound].type == ir::Type::integer);
            REQUIRE((dependence[bound].bits &
                     ~(analysis::Dependence::b | analysis::Dependence::h)) == 0);
            REQUIRE(ir::verify(program, std::span(&bound, 1)) == "");
        }
    test::Instance instance(program, seed);
    ir::Environment& environment = instance.environment();
    for (int head = 0; head < 2; ++head, instance.move())
        for (std::int64_t q = 0; q < 12; ++q)
            for (std::int64_t kv = 0; kv < 12; ++kv) {
                environment.q_idx = q;
                environment.kv_idx = kv;
                const bool visible = ir::evaluate_boolean(program, program.mask, environment);
                const bool inside = in_band(program, band, environment);
                if (visible) REQUIRE(inside);
                if (band.exact) REQUIRE(inside == visible);
            }
}

enum class Found { exact, band, none };

void expect(const std::string& mask, Found found) {
    CAPTURE(mask);
    ir::Program program = test::program_of("param W: int = 3\nbuffer off: i32[B]\n"
                                           "buffer keep: bool[KV_LEN]\nmask_mod = " +
                                           mask);
    const std::array roots = {&program.mask, &program.score};
    passes::simplify(program, roots);
    const analysis::Band band = analysis::band_of(program.graph, program.mask);
    CHECK(band.found() == (found != Found::none));
    CHECK(band.exact == (found == Found::exact));
    check_band(program, band, 5);
}

// Comparisons of affine forms, joined at random: bands, near-bands and much that is neither.
class MaskGenerator {
  public:
    explicit MaskGenerator(std::uint64_t seed) : random_(seed) {
        program.params.push_back({.name = "W", .type = ir::Type::integer, .default_value = 2});
        program.buffers.push_back(
            {.name = "off", .dtype = DType::i64, .dims = {{.size = ir::kB}}, .span = {}});
        program.score = program.graph.ambient(Op::score);
        program.mask = logic(3);
    }
    ir::Program program;

  private:
    NodeId make(Op op, std::vector<NodeId> operands) {
        return program.graph.apply(op, std::move(operands));
    }
    NodeId logic(int depth) {
        if (depth == 0 || random_.chance(20)) return comparison();
        if (random_.chance(15)) return make(Op::bnot, {logic(depth - 1)});
        return make(random_.chance(65) ? Op::band : Op::bor, {logic(depth - 1), logic(depth - 1)});
    }
    NodeId comparison() {
        const Op op = random_.pick(std::array{Op::ilt, Op::ile, Op::ile, Op::ieq, Op::ine});
        return make(op, {affine(2), affine(2)});
    }
    NodeId affine(int depth) {
        ir::Graph& graph = program.graph;
        if (depth == 0 || random_.chance(25)) {
            switch (random_.integer(0, 7)) {
            case 0: return graph.integer(random_.integer(-4, 4));
            case 1: return graph.param(0, ir::Type::integer);
            case 2: return graph.read(0, ir::Type::integer, {graph.ambient(Op::b)});
            case 3: return graph.size_of(ir::kKvLen);
            case 4:
            case 5: return graph.ambient(Op::q_idx);
            default: return graph.ambient(Op::kv_idx);
            }
        }
        switch (random_.integer(0, 9)) {
        case 0: return make(Op::iabs, {affine(depth - 1)});
        case 1: return make(Op::imin, {affine(depth - 1), affine(depth - 1)});
        case 2: return make(Op::imax, {affine(depth - 1), affine(depth - 1)});
        case 3: return make(Op::imul, {affine(depth - 1), graph.integer(random_.integer(-3, 3))});
        case 4: return make(Op::ineg, {affine(depth - 1)});
        case 5: return make(Op::iadd, {affine(depth - 1), affine(depth - 1)});
        default: return make(Op::isub, {affine(depth - 1), affine(depth - 1)});
        }
    }

    test::Random random_;
};

} // namespace

TEST_CASE("masks that are bands and nothing else") {
    for (const char* mask :
         {"q_idx >= kv_idx", "kv_idx <= q_idx", "q_idx > kv_idx", "not (q_idx < kv_idx)",
          "q_idx <= kv_idx", "q_idx - kv_idx >= 0", "kv_idx - q_idx < 1",
          "q_idx >= kv_idx and q_idx - kv_idx <= 4", "q_idx >= kv_idx and q_idx - kv_idx < W",
          "0 <= q_idx - kv_idx <= 4", "0 <= q_idx - kv_idx < W", "abs(q_idx - kv_idx) <= W",
          "abs(kv_idx - q_idx) < 3", "q_idx + off[b] >= kv_idx", "q_idx + off[b] * 2 >= kv_idx",
          "q_idx + KV_LEN - Q_LEN >= kv_idx", "q_idx == kv_idx", "2 * q_idx >= 2 * kv_idx + 1",
          "-3 * q_idx + 3 * kv_idx > -7"})
        expect(mask, Found::exact);
    expect("max(kv_idx - q_idx, -9) <= W", Found::band);
    expect("q_idx >= kv_idx or kv_idx - q_idx < W", Found::exact);
    // What both sides have of a row says nothing.
    expect("q_idx - off[q_idx % 2] >= kv_idx - off[q_idx % 2]", Found::exact);
    expect("q_idx - off[q_idx % 2] >= kv_idx - off[kv_idx % 2]", Found::none);
    expect("q_idx >= kv_idx and true", Found::exact);
}

TEST_CASE("masks that lie inside a band") {
    for (const char* mask :
         {"q_idx >= kv_idx and keep[kv_idx]", "keep[kv_idx] and abs(q_idx - kv_idx) <= W",
          "q_idx >= kv_idx and b % 2 == 0", "q_idx >= kv_idx and kv_idx < 5",
          "q_idx >= kv_idx and (q_idx - kv_idx) % 2 == 0",
          "(q_idx - kv_idx <= W or kv_idx < 2) and q_idx >= kv_idx",
          "abs(q_idx - kv_idx) <= 2 or abs(q_idx - kv_idx) <= W"})
        expect(mask, Found::band);
}

TEST_CASE("masks without a band") {
    for (const char* mask :
         {"true", "false", "keep[kv_idx]", "q_idx >= kv_idx or keep[kv_idx]", "q_idx < W",
          "q_idx + kv_idx < 5", "kv_idx < 3 or q_idx >= kv_idx", "2 * q_idx >= kv_idx",
          "q_idx // 2 >= kv_idx // 2", "q_idx >= kv_idx + off[kv_idx % B]", "q_idx != kv_idx",
          "abs(q_idx - kv_idx) >= 2", "min(q_idx - kv_idx, 3) <= W"})
        expect(mask, Found::none);
}

TEST_CASE("bands of random masks hold every visible element") {
    constexpr int kMasks = 4000;
    int found = 0, exact = 0;
    for (const std::uint64_t seed : test::seeds(kMasks)) {
        CAPTURE(seed);
        MaskGenerator generator(seed);
        CAPTURE(ir::print(generator.program));
        const analysis::Band band =
            analysis::band_of(generator.program.graph, generator.program.mask);
        found += band.found();
        exact += band.exact;
        check_band(generator.program, band, seed);
    }
    CHECK(found > test::trials(kMasks) / 27);
    CHECK(exact > test::trials(kMasks) / 200);
}

TEST_CASE("deeply shared masks take bounded work") {
    ir::Program program;
    ir::Graph& graph = program.graph;
    NodeId value = graph.apply(Op::isub, {graph.ambient(Op::q_idx), graph.ambient(Op::kv_idx)});
    for (int i = 0; i < 200; ++i)
        value = graph.apply(Op::imax, {value, graph.apply(Op::iadd, {value, graph.integer(1)})});
    NodeId mask = graph.apply(Op::ile, {value, graph.integer(0)});
    for (int i = 0; i < 200; ++i)
        mask = graph.apply(Op::bor, {mask, graph.apply(Op::bnot, {mask})});
    program.mask = mask;
    CHECK_FALSE(analysis::band_of(graph, mask).exact);
}
