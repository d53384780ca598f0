// Random programs: generated CUDA text, run on the host, against the interpreter.
#include <cmath>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include "cuda/emitted.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/pipeline.h"
#include "random_program.h"
#include "support/text.h"

namespace {

using namespace flexc;
using plan::KernelKind;

constexpr int kPrograms = 60;
constexpr int kPoints = 25;
constexpr int kMaxGradients = 64;

struct Position {
    int b, h, h_kv, q, kv;
    float score, d_modified;
};
struct Outcome {
    bool visible;
    float score, sink;
    long long low, high;
    float joint_score, d_score, partial[kMaxGradients];
};
using Function = void(const std::uint64_t*, const Position*, Outcome*);

constexpr std::string_view kPrelude = R"(#include "common/mod_prelude.cuh"
struct Position { int b, h, h_kv, q, kv; float score, d_modified; };
struct Outcome {
    bool visible; float score, sink; long long low, high;
    float joint_score, d_score, partial[64];
};
template <typename Joint> auto carried_of(const Joint& joint, int) -> decltype(&joint.carried[0]) {
    return joint.carried;
}
template <typename Joint> const float* carried_of(const Joint&, long) { return nullptr; }
)";

// Calls every function of a mod as a kernel does.
constexpr std::string_view kCaller = R"(
extern "C" void {name}(const unsigned long long* words, const Position* p, Outcome* out) {{
    using namespace mod;
    static_assert({words} == 0 || sizeof(Arguments) == 8 * {words}, "one word per slot");
    const Arguments& arguments = *reinterpret_cast<const Arguments*>(words);
    const Launch launch = at_launch(arguments);
    const Head head = at_head(arguments, launch, p->b, p->h, p->h_kv);
    const Row row = at_row(arguments, launch, head, p->b, p->h, p->h_kv, p->q);
    const Column column = at_column(arguments, launch, head, p->b, p->h, p->h_kv, p->kv);
    const At at{{arguments, launch, head, row, column, p->b, p->h, p->h_kv, p->q, p->kv}};
    {body}
}}
)";
constexpr std::string_view kForwardBody = R"(
    out->visible = visible(at);
    out->score = score(at, p->score);
    out->sink = mod::Sink::value(arguments, p->b, p->h, p->h_kv, p->q);
    const Band bounds = band(arguments, launch, head, p->b, p->h, p->h_kv);
    out->low = bounds.low;
    out->high = bounds.high;
    if (kReportsOutOfRange) report_out_of_range(at, p->score);)";
constexpr std::string_view kBackwardBody = R"(
    const Joint both = joint(at, p->score);
    out->joint_score = both.score;
    out->d_score = both.d_score;
    for (int i = 0; i < kGradients; ++i) out->partial[i] = both.partial[i];
    GradientSums sums{};
    if (kGradients > 0 && visible(at)) {
        add_gradients(at, both, p->d_modified);
        constexpr int kAdded = mod::AddedGradients::kPartial;
        if (kAdded >= 0)
            mod::AddedGradients::add(at, both.partial[kAdded < 0 ? 0 : kAdded] * p->d_modified);
        sum_gradients(at, both, p->d_modified, sums);
        float of_row[mod::RowGradients::kCount + 1] = {};
        float of_column[mod::ColumnGradients::kCount + 1] = {};
        mod::RowGradients::sum(both, p->d_modified, of_row);
        mod::RowGradients::sum_ends(at, both, p->d_modified, of_row);
        mod::RowGradients::flush(at, of_row);
        mod::ColumnGradients::sum(both, p->d_modified, of_column);
        mod::ColumnGradients::sum_ends(at, both, p->d_modified, of_column);
        mod::ColumnGradients::flush(at, of_column);
        mod::TermSums::visit([&](auto terms) {
            using Terms = decltype(terms);
            for (auto i = Terms::first(at); i < Terms::end(at); ++i) {
                const auto parts = Terms::parts(at, carried_of(both, 0), i);
                for (int read = 0; read < Terms::kReads; ++read)
                    if (auto* const to = Terms::address(at, read, i))
                        flexc_accumulate(to, parts.of[read] * p->d_modified *
                                                 Terms::factor(at, read, i));
            }
        });
    }
    flush_gradients(arguments, launch, head, p->b, p->h, p->h_kv, sums);)";

// Of the kernel that comes before a backward.
constexpr std::string_view kDeltaBody = R"(
    mod::Sink::visit_gradients(arguments, p->b, p->h, p->h_kv, p->q, [&](auto* to, float partial) {
        if (to != nullptr) flexc_accumulate(to, partial * p->d_modified);
    });)";

std::string_view body_of(KernelKind kind) {
    return kind == KernelKind::forward ? kForwardBody
           : kind == KernelKind::delta ? kDeltaBody
                                       : kBackwardBody;
}

// The text of one kernel kind of one program, in a namespace of its own.
std::string text_of(const passes::Mod& mod, KernelKind kind, DType dtype, const std::string& name) {
    plan::KernelConfig config;
    config.kind = kind;
    std::string text = test::emitted(mod, config, {.dtype = dtype});
    text.replace(text.find("#pragma once"), 12, "");
    const std::string body(body_of(kind));
    const std::size_t words = kind == KernelKind::delta && mod.sink == ir::kNoNode
                                  ? 0
                                  : passes::argument_slots(mod).size();
    return formatted("#define mod mod_{}\n{}", name, text) +
           formatted(fmt::runtime(kCaller), fmt::arg("name", name), fmt::arg("words", words),
                     fmt::arg("body", body)) +
           "#undef mod\n";
}

bool near(double expected, double got) {
    if (std::isnan(expected) || std::isnan(got)) return std::isnan(expected) == std::isnan(got);
    if (std::abs(expected) > 1e30 || std::abs(got) > 1e30) return true; // f32 has no more range
    return std::abs(expected - got) <= 1e-4 * (1 + std::abs(expected));
}

struct Case {
    std::uint64_t seed;
    passes::Mod mod;
    DType dtype;
};

std::vector<Case> cases(const test::RandomOptions& options, int count, bool deterministic) {
    std::vector<Case> result;
    for (std::uint64_t seed = test::first_seed(); static_cast<int>(result.size()) < count; ++seed) {
        auto mod =
            passes::lower(test::random_program(seed, options), {.backward = options.gradients,
                                                                .report_out_of_range = true,
                                                                .deterministic = deterministic});
        if (!mod && mod.error().code == ErrorCode::limit) continue;
        REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
        const DType dtype = seed % 2 == 0 ? DType::f32 : DType::bf16;
        result.push_back({seed, std::move(*mod), dtype});
    }
    return result;
}

void check_forward(const Case& one, const test::HostArguments& arguments, Function* function,
                   const ir::Environment& environment, Position position) {
    const passes::Mod& mod = one.mod;
    Outcome outcome{};
    arguments.clear_flag();
    function(arguments.words(), &position, &outcome);
    CHECK(outcome.visible == ir::evaluate_boolean(mod.program, mod.mask, environment));
    const double score = ir::evaluate_real(mod.program, mod.score, environment);
    CHECK_MESSAGE(near(score, outcome.score), score, " is not ", outcome.score);
    if (mod.sink != ir::kNoNode) {
        const double sink = ir::evaluate_real(mod.program, mod.sink, environment);
        CHECK_MESSAGE(near(sink, outcome.sink), sink, " is not ", outcome.sink);
    }
    const bool outside = mod.out_of_range != ir::kNoNode &&
                         ir::evaluate_boolean(mod.program, mod.out_of_range, environment);
    CHECK(arguments.flag() == outside);
    for (const ir::NodeId bound : mod.band.low)
        CHECK(outcome.low >= ir::evaluate_integer(mod.program, bound, environment));
    for (const ir::NodeId bound : mod.band.high)
        CHECK(outcome.high <= ir::evaluate_integer(mod.program, bound, environment));
    if (mod.band.found() && outcome.visible)
        CHECK(
            (position.kv - position.q >= outcome.low && position.kv - position.q <= outcome.high));
}

// What a read of a gradient buffer adds to, or -1 when it is outside.
std::int64_t element_of(const passes::Mod& mod, ir::NodeId read, const ir::BufferData& data,
                        const ir::Environment& environment) {
    const auto& indices = mod.program.graph[read].operands;
    std::int64_t offset = 0;
    for (std::size_t dim = 0; dim < indices.size(); ++dim) {
        const std::int64_t index = ir::evaluate_integer(mod.program, indices[dim], environment);
        if (index < 0 || index >= data.extents[dim]) return -1;
        offset = offset * data.extents[dim] + index;
    }
    return offset;
}

// What the terms of a sum add to a buffer, for all values of the counter.
void add_terms(const passes::Mod& mod, const passes::ReadGradient& gradient,
               ir::Environment environment, double d_modified,
               std::vector<std::vector<double>>& expected) {
    const auto& range = mod.program.graph[mod.counters[gradient.read]].operands;
    const std::int64_t end = ir::evaluate_integer(mod.program, range[1], environment);
    const std::uint32_t buffer = mod.program.graph[gradient.read].symbol;
    for (environment.counter = ir::evaluate_integer(mod.program, range[0], environment);
         environment.counter < end; ++environment.counter) {
        const std::int64_t element =
            element_of(mod, gradient.read, *environment.buffers[buffer], environment);
        if (element < 0) continue;
        expected[buffer][static_cast<std::size_t>(element)] +=
            ir::evaluate_real(mod.program, gradient.partial, environment) * d_modified;
    }
}

void check_backward(const Case& one, test::HostArguments& arguments, Function* function,
                    const ir::Environment& environment, Position position) {
    const passes::Mod& mod = one.mod;
    Outcome outcome{};
    arguments.clear_gradients();
    function(arguments.words(), &position, &outcome);
    const double score = ir::evaluate_real(mod.program, mod.score, environment);
    CHECK_MESSAGE(near(score, outcome.joint_score), score, " is not ", outcome.joint_score);
    const double d_score = ir::evaluate_real(mod.program, mod.d_score, environment);
    CHECK_MESSAGE(near(d_score, outcome.d_score), d_score, " is not ", outcome.d_score);

    const bool visible = ir::evaluate_boolean(mod.program, mod.mask, environment);
    std::vector<std::vector<double>> expected = arguments.empty_gradients();
    for (std::size_t i = 0; i < mod.gradients.size(); ++i) {
        const passes::ReadGradient& gradient = mod.gradients[i];
        if (mod.counters[gradient.read] != ir::kNoNode) {
            if (visible) add_terms(mod, gradient, environment, position.d_modified, expected);
            continue;
        }
        const double partial = ir::evaluate_real(mod.program, gradient.partial, environment);
        CHECK_MESSAGE(near(partial, outcome.partial[i]), partial, " is not ", outcome.partial[i]);
        const std::uint32_t buffer = mod.program.graph[gradient.read].symbol;
        const std::int64_t element =
            element_of(mod, gradient.read, *environment.buffers[buffer], environment);
        if (visible && element >= 0)
            expected[buffer][static_cast<std::size_t>(element)] +=
                static_cast<double>(outcome.partial[i]) * position.d_modified;
    }
    for (std::size_t buffer = 0; buffer < expected.size(); ++buffer)
        for (std::size_t i = 0; i < expected[buffer].size(); ++i) {
            const double got = arguments.gradient(buffer, i);
            CHECK_MESSAGE(near(expected[buffer][i], got), mod.program.buffers[buffer].name, "[", i,
                          "]: ", expected[buffer][i], " is not ", got);
        }
}

void check_sink(const Case& one, test::HostArguments& arguments, Function* function,
                const ir::Environment& environment, Position position) {
    const passes::Mod& mod = one.mod;
    Outcome outcome{};
    arguments.clear_gradients();
    function(arguments.words(), &position, &outcome);
    std::vector<std::vector<double>> expected = arguments.empty_gradients();
    for (const passes::ReadGradient& gradient : mod.sink_gradients) {
        if (mod.counters[gradient.read] != ir::kNoNode) {
            add_terms(mod, gradient, environment, position.d_modified, expected);
            continue;
        }
        const std::uint32_t buffer = mod.program.graph[gradient.read].symbol;
        const std::int64_t element =
            element_of(mod, gradient.read, *environment.buffers[buffer], environment);
        if (element >= 0)
            expected[buffer][static_cast<std::size_t>(element)] +=
                ir::evaluate_real(mod.program, gradient.partial, environment) * position.d_modified;
    }
    for (std::size_t buffer = 0; buffer < expected.size(); ++buffer)
        for (std::size_t i = 0; i < expected[buffer].size(); ++i) {
            const double got = arguments.gradient(buffer, i);
            CHECK_MESSAGE(near(expected[buffer][i], got), mod.program.buffers[buffer].name, "[", i,
                          "]: ", expected[buffer][i], " is not ", got);
        }
}

void run(const test::RandomOptions& options, bool deterministic = false) {
    const std::vector<Case> all = cases(options, kPrograms, deterministic);
    std::string text(kPrelude);
    if (deterministic) text += "#include \"common/exact_sum.cuh\"\n";
    for (const Case& one : all) {
        text += text_of(one.mod, KernelKind::forward, one.dtype, formatted("f{}", one.seed));
        if (options.gradients)
            text +=
                text_of(one.mod, KernelKind::backward_fused, one.dtype, formatted("b{}", one.seed));
        if (options.gradients && one.mod.sink != ir::kNoNode)
            text += text_of(one.mod, KernelKind::delta, one.dtype, formatted("d{}", one.seed));
    }
    const test::HostModule module(text);
    for (const Case& one : all) {
        CAPTURE(one.seed);
        test::Instance instance(one.mod.program, one.seed);
        test::HostArguments arguments(one.mod, instance.environment());
        for (int point = 0; point < kPoints; ++point) {
            CAPTURE(point);
            instance.move();
            const ir::Environment& at = instance.environment();
            const Position position{static_cast<int>(at.b),
                                    static_cast<int>(at.h),
                                    static_cast<int>(at.h_kv),
                                    static_cast<int>(at.q_idx),
                                    static_cast<int>(at.kv_idx),
                                    static_cast<float>(at.score),
                                    0.75f};
            check_forward(one, arguments, module.function<Function>(formatted("f{}", one.seed)), at,
                          position);
            if (options.gradients)
                check_backward(one, arguments,
                               module.function<Function>(formatted("b{}", one.seed)), at, position);
            if (options.gradients && one.mod.sink != ir::kNoNode)
                check_sink(one, arguments, module.function<Function>(formatted("d{}", one.seed)),
                           at, position);
        }
    }
}

} // namespace

TEST_CASE("random programs mean in CUDA text what the interpreter says, gradients too") {
    run({.kinks = false, .steps = false});
}

TEST_CASE("gradients go where the score says") {
    run({.kinks = false, .steps = false, .score_reads = true});
}

TEST_CASE("the same gradients come from exact sums") {
    run({.kinks = false, .steps = false}, true);
}

TEST_CASE("random programs with kinks, without gradients") {
    run({.gradients = false, .steps = false});
}
