// What the passes make of random programs against the tape, which shares nothing with them: values
// and all gradients. FLEXC_FUZZ_SECONDS=3600 test_passes -tc="differential*" goes on for an hour,
// from FLEXC_TEST_SEED.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <utility>

#include "ir/print.h"
#include "passes/pipeline.h"
#include "random_program.h"
#include "tape.h"

using namespace flexc;

namespace {

using Address = std::pair<std::uint32_t, std::vector<std::int64_t>>; // buffer, indices
struct Gradient {
    double sum = 0, absolute = 0;
};
using Gradients = std::map<Address, Gradient>;

void add(Gradients& gradients, Address address, double slope) {
    Gradient& gradient = gradients[std::move(address)];
    gradient.sum += slope;
    gradient.absolute += std::fabs(slope);
}

Gradients by_tape(const ir::Program& program, const test::TapeResult& tape) {
    Gradients gradients;
    for (const test::ReadSlope& read : tape.reads)
        add(gradients, {program.graph[read.read].symbol, read.indices}, read.slope);
    return gradients;
}

// By the partials of a mod, for all values of counters; where sums of d score are what kernels
// have, by these and their factors.
Gradients by_mod(const passes::Mod& mod, ir::Environment environment) {
    Gradients gradients;
    const ir::Graph& graph = mod.program.graph;
    for (const passes::ReadGradient& gradient : mod.gradients) {
        std::int64_t first = 0, end = 1;
        if (const ir::NodeId counter = mod.counters[gradient.read]; counter != ir::kNoNode) {
            first = ir::evaluate_integer(mod.program, graph[counter].operands[0], environment);
            end = ir::evaluate_integer(mod.program, graph[counter].operands[1], environment);
        }
        const ir::Node& read = graph[gradient.read];
        for (environment.counter = first; environment.counter < end; ++environment.counter) {
            std::vector<ir::NodeId> roots = read.operands;
            roots.push_back(gradient.partial);
            if (gradient.sum_factor != ir::kNoNode) {
                roots.push_back(gradient.sum_factor);
                roots.push_back(mod.d_score);
                if (gradient.choice != ir::kNoNode) roots.push_back(gradient.choice);
            }
            const auto values = ir::evaluate<double>(mod.program, roots, environment);
            std::vector<std::int64_t> indices;
            bool inside = true;
            for (std::size_t i = 0; i < read.operands.size(); ++i) {
                indices.push_back(values[read.operands[i]].integer);
                inside = inside && indices[i] >= 0 &&
                         indices[i] < environment.buffers[read.symbol]->extents[i];
            }
            const double slope = gradient.sum_factor == ir::kNoNode
                                     ? values[gradient.partial].real
                                     : values[mod.d_score].real * values[gradient.sum_factor].real;
            const bool adds = gradient.choice == ir::kNoNode || values[gradient.choice].real != 0;
            if (inside) add(gradients, {read.symbol, std::move(indices)}, adds ? slope : 0);
        }
    }
    return gradients;
}

// Constants are rounded to f32 on the way.
bool is_near(double x, double y, double size = 0) {
    return std::fabs(x - y) <= 2e-5 * (1 + std::fabs(x) + std::fabs(y) + size);
}

test::RandomOptions options_of(std::uint64_t seed) {
    return {.operators = seed % 7 == 0 ? 80 : 30,
            .wild_reads = seed % 3 != 0,
            .places = seed % 4 == 1,
            .cuts = seed % 2 == 0,
            .tame = seed % 5 != 0};
}

struct Tally {
    int programs = 0, points = 0, gradients = 0, smooth = 0, factors = 0;
};

// A slope by the tape alone: is it what the score does nearby?
void check_by_differences(const ir::Program& program, const ir::Environment& environment,
                          const test::TapeResult& tape, Tally& tally) {
    constexpr double kStep = 1e-5;
    // Beside values that are larger, doubles do not have what the slope adds to the score.
    constexpr double kLargeTerms = 1e8;
    if (tape.margin < 0.01 || tape.has_tie) return;
    if (std::fmax(tape.largest, tape.d_score_terms) > kLargeTerms) return;
    const auto score_at = [&](double by) {
        ir::Environment moved = environment;
        moved.score += by;
        return test::differentiate(program, moved).score;
    };
    const double near = (score_at(kStep) - score_at(-kStep)) / (2 * kStep);
    const double far = (score_at(2 * kStep) - score_at(-2 * kStep)) / (4 * kStep);
    if (!(std::fabs(near - far) <= 1e-5 * (1 + std::fabs(near))) || std::fabs(tape.score) > 1e3)
        return;
    ++tally.smooth;
    REQUIRE(std::fabs(near - tape.d_score) <= 1e-4 * (1 + std::fabs(near)));
}

void check(std::uint64_t seed, Tally& tally) {
    CAPTURE(seed);
    const ir::Program program = test::random_program(seed, options_of(seed));
    passes::PipelineOptions options;
    options.divides_by_derivative = seed % 2 == 1;
    const auto mod = passes::lower(program, options);
    REQUIRE_MESSAGE(mod.has_value(), mod.error().message);
    tally.factors += static_cast<int>(
        std::ranges::count_if(mod->gradients, [](const passes::ReadGradient& gradient) {
            return gradient.sum_factor != ir::kNoNode;
        }));
    CAPTURE(ir::print(program));
    ++tally.programs;
    test::Instance instance(program, seed);
    for (int point = 0; point < 6; ++point, instance.move()) {
        const ir::Environment& environment = instance.environment();
        const test::TapeResult tape = test::differentiate(program, environment);
        CAPTURE(environment.score);
        // Where a value is next to a step or a tie, rounding decides; on one, rules do. Passes may
        // change signs of zeros.
        if (!tape.is_finite || tape.divides_by_zero || tape.margin < 1e-6) continue;
        // Nor where errors of constants, which are f32, are magnified.
        const test::TapeResult unrounded =
            test::differentiate(program, environment, test::Rounding::nothing);
        if (!is_near(tape.score, unrounded.score) || !is_near(tape.d_score, unrounded.d_score))
            continue;
        ++tally.points;
        REQUIRE(is_near(ir::evaluate_real(mod->program, mod->score, environment), tape.score));
        REQUIRE(is_near(ir::evaluate_real(mod->program, mod->d_score, environment), tape.d_score,
                        tape.d_score_terms));
        Gradients expected = by_tape(program, tape), actual = by_mod(*mod, environment);
        for (const auto& [address, gradient] : actual)
            expected.try_emplace(address);
        for (const auto& [address, gradient] : expected) {
            CAPTURE(program.buffers[address.first].name);
            ++tally.gradients;
            REQUIRE(is_near(actual[address].sum, gradient.sum, gradient.absolute));
        }
        check_by_differences(program, environment, tape, tally);
    }
}

} // namespace

TEST_CASE("differential: values and gradients of random programs are those of the tape") {
    Tally tally;
    const char* text = std::getenv("FLEXC_FUZZ_SECONDS");
    const double seconds = text == nullptr ? 0 : std::strtod(text, nullptr);
    // A count, unlike a time, gives every machine the same programs.
    const char* count = std::getenv("FLEXC_FUZZ_PROGRAMS");
    const int programs =
        count == nullptr ? test::trials(2000) : static_cast<int>(std::strtol(count, nullptr, 10));
    const auto start = std::chrono::steady_clock::now();
    const auto goes_on = [&](int done) {
        if (text == nullptr) return done < programs;
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
               seconds;
    };
    for (std::uint64_t seed = test::first_seed(); goes_on(tally.programs); ++seed)
        check(seed, tally);
    MESSAGE(tally.programs << " programs, " << tally.points << " points, " << tally.gradients
                           << " gradients of buffers, " << tally.smooth
                           << " points checked by differences, " << tally.factors
                           << " factors of sums");
    CHECK(tally.points > tally.programs);
    CHECK(tally.smooth > tally.programs / 4);
}

TEST_CASE("a function that rounds to a whole number is next to it for the tape") {
    ir::Program program;
    ir::Graph& graph = program.graph;
    const auto apply = [&](ir::Op op, ir::NodeId x) { return graph.apply(op, {x}); };
    const ir::NodeId same = apply(
        ir::Op::softplus, apply(ir::Op::log, apply(ir::Op::expm1, graph.ambient(ir::Op::score))));
    program.mask = graph.boolean(true);
    const auto margins = [&](ir::NodeId of) {
        program.score = apply(ir::Op::int_to_real, apply(ir::Op::real_to_int, of));
        test::Instance instance(program, 1);
        ir::Environment environment = instance.environment();
        std::vector<double> all;
        for (environment.score = 1; environment.score <= 30; ++environment.score)
            all.push_back(test::differentiate(program, environment).margin);
        return all;
    };
    CHECK(std::ranges::max(margins(same)) < 1e-6);
    CHECK(std::isinf(std::ranges::min(margins(graph.ambient(ir::Op::score)))));
}
