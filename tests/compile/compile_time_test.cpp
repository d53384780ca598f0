// How long programs take to compile on two processors, by what their kernels take of one.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "api/choose_candidate.h"
#include "api/frontend.h"
#include "compile/kernels.h"
#include "cuda/nvrtc.h"
#include "front/library.h"
#include "random_program.h"
#include "support/text.h"
#include "term_program.h"

namespace {

using namespace flexc;

double processor_seconds() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

struct Compile {
    double seconds = 0;
    int spilled_bytes = 0;
};

// A kernel's candidates, in the order in which they were asked for.
struct Kernel {
    std::string chosen; // its template
    int spilled_bytes = 0;
    std::vector<Compile> compiles;

    double seconds() const {
        double sum = 0;
        for (const Compile& one : compiles)
            sum += one.seconds;
        return sum;
    }
    // Where a second processor is free: the first one was refused, so that two begin at once.
    double seconds_beside() const {
        double sum = compiles.front().seconds;
        for (std::size_t at = 1; at < compiles.size(); at += 2)
            sum += at + 1 < compiles.size()
                       ? std::max(compiles[at].seconds, compiles[at + 1].seconds)
                       : compiles[at].seconds;
        return sum;
    }
};

struct Measured {
    std::string name;
    double slowness = 1; // of the machine, beside its quickest moment
    std::vector<Kernel> kernels;

    double on_two_processors() const {
        double all = 0, longest = 0;
        for (const Kernel& kernel : kernels) {
            all += kernel.seconds();
            longest = std::max(longest, kernel.seconds_beside());
        }
        return std::max(all / 2, longest) / slowness;
    }
    int spilled_bytes() const {
        int most = 0;
        for (const Kernel& kernel : kernels)
            most = std::max(most, kernel.spilled_bytes);
        return most;
    }
};

std::string text_of(const Measured& program) {
    std::string text = formatted("{:5.2f} s {:4} bytes  {}", program.on_two_processors(),
                                 program.spilled_bytes(), program.name);
    for (const Kernel& kernel : program.kernels) {
        if (kernel.seconds() < 0.5 * program.slowness) continue;
        text += "; " + kernel.chosen;
        for (const Compile& one : kernel.compiles)
            text +=
                formatted(" {:.2f} s {} bytes", one.seconds / program.slowness, one.spilled_bytes);
    }
    return text;
}

Kernel measure(const plan::TargetProgram& program, std::span<const plan::KernelConfig> candidates) {
    Kernel kernel;
    const auto attempt = [&](std::size_t at) -> Result<api::Attempt> {
        const double start = processor_seconds();
        auto text = cuda::fill_template(candidates[at], api::mod_text(program, candidates[at]));
        if (!text) return text.error();
        auto output = cuda::compile_cubin(*text, program.target().arch);
        if (!output) return output.error();
        int spilled = 0;
        for (const cuda::KernelUsage& usage : output->kernels)
            spilled = std::max(spilled, usage.spill_store_bytes);
        kernel.compiles.push_back({processor_seconds() - start, spilled});
        return api::Attempt{*std::move(text), *std::move(output)};
    };
    const auto choice = api::choose_candidate(candidates, {attempt, [] { return false; }}, {});
    REQUIRE_MESSAGE(choice.has_value(), (choice ? "" : choice.error().message));
    kernel.chosen = candidates[choice->at].template_path;
    for (const cuda::KernelUsage& usage : choice->attempt.output.kernels)
        kernel.spilled_bytes = std::max(kernel.spilled_bytes, usage.spill_store_bytes);
    return kernel;
}

CompileOptions options_of(int head_dim) {
    return *api::complete({.dtype = DType::bf16,
                           .head_dim = head_dim,
                           .device = {Device::Kind::cuda, 0},
                           .backward = true});
}

plan::TargetProgram program_of(ir::Program program, int head_dim) {
    const CompileOptions options = options_of(head_dim);
    auto mod = api::lower_program({dsl::Source("test", ""), std::move(program), ""}, options);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? "" : mod.error().message));
    return {std::move(*mod), options, *plan::target_of("sm_90a")};
}

// All kernels that compile() makes.
std::vector<Kernel> measure(const plan::TargetProgram& program) {
    const auto plan = api::plan_of(program);
    REQUIRE(plan.has_value());
    std::vector<Kernel> kernels;
    for (const std::vector<plan::Variant>* variants : {&plan->forward, &plan->backward}) {
        const plan::Variant& variant = variants->front();
        const plan::PassPlan pass = plan::pass_of(program, variant, variant.candidates.front());
        for (std::size_t at = 0; at < pass.kernels.size(); ++at)
            kernels.push_back(at == pass.main ? measure(program, variant.candidates)
                                              : measure(program, std::span(&pass.kernels[at], 1)));
    }
    if (plan->block_mask) kernels.push_back(measure(program, std::span(&*plan->block_mask, 1)));
    return kernels;
}

// Seconds that one small kernel takes, which tell how slow the machine is now.
double reference_seconds() {
    static const plan::TargetProgram kProgram =
        program_of(*front::compile_text({.source = {"<test>", std::string("score")}}).program, 64);
    static const plan::KernelPlan kPlan = *api::plan_of(kProgram);
    return measure(kProgram, std::span(&kPlan.forward.back().candidates.front(), 1)).seconds();
}

// The name begins with how many nodes the derivatives have.
void measure_all(const std::vector<std::pair<std::string, ir::Program>>& programs,
                 std::initializer_list<int> head_dims = {64, 128}) {
    std::vector<Measured> all;
    reference_seconds(); // opens the compiler
    double before = reference_seconds(), least = before;
    for (const auto& [name, program] : programs)
        for (const int head_dim : head_dims) {
            Measured one{.name = formatted("{} D {}", name, head_dim)};
            one.kernels = measure(program_of(program, head_dim));
            MESSAGE(text_of(one));
            const double after = reference_seconds();
            one.slowness = (before + after) / 2;
            least = std::min(least, after);
            before = after;
            all.push_back(std::move(one));
        }
    constexpr double kMostSeconds = 5;
    double sum = 0;
    int over = 0, spilling = 0;
    for (Measured& one : all) {
        one.slowness /= least;
        sum += one.on_two_processors();
        over += one.on_two_processors() > kMostSeconds;
        spilling += one.spilled_bytes() > 0;
    }
    std::ranges::sort(all, std::greater(), &Measured::on_two_processors);
    std::string text = formatted("{} compiles: mean {:.2f} s, {} over {} s, {} spill; the "
                                 "reference took {:.2f} s or more",
                                 all.size(), sum / static_cast<double>(all.size()), over,
                                 kMostSeconds, spilling, least);
    for (std::size_t at = 0; at < std::min<std::size_t>(all.size(), 10); ++at)
        text += "\n" + text_of(all[at]);
    MESSAGE(text);
}

std::vector<ir::NodeId> derivatives(const passes::Mod& mod) {
    std::vector<ir::NodeId> roots = {mod.d_score};
    for (const passes::ReadGradient& gradient : mod.gradients)
        roots.push_back(gradient.partial);
    return roots;
}

std::size_t nodes_of_derivatives(const plan::TargetProgram& program) {
    return ir::reachable(program.mod().program.graph, derivatives(program.mod())).size();
}

bool reads_score(const ir::Program& program, ir::NodeId root) {
    return std::ranges::any_of(
        ir::reachable(program.graph, std::span(&root, 1)),
        [&](ir::NodeId id) { return program.graph[id].op == ir::Op::score; });
}

// Which random programs, and how many where FLEXC_FUZZ_PROGRAMS does not say.
struct Choice {
    std::size_t count = 60;
    std::size_t least_nodes = 0; // of the derivatives
    int most_operators = 300;    // drawn
    bool integers = true;
};

// FLEXC_TEST_SEED is the first seed.
std::vector<std::pair<std::string, ir::Program>> random_programs(const Choice& choice) {
    constexpr std::size_t kMostNodes = 199;
    constexpr int kLeastInstructions = 8; // of an element: what has fewer is as the library's
    const char* count = std::getenv("FLEXC_FUZZ_PROGRAMS");
    const std::size_t most = count == nullptr ? choice.count : std::strtoul(count, nullptr, 10);
    std::vector<std::pair<std::string, ir::Program>> programs;
    for (std::uint64_t seed = test::first_seed(); programs.size() < most; ++seed) {
        test::Random random(seed);
        const int operators = static_cast<int>(random.integer(5, choice.most_operators));
        ir::Program program =
            test::random_program(seed, {.operators = operators, .integers = choice.integers});
        // The language lets no mask use the score.
        if (reads_score(program, program.mask)) continue;
        const plan::TargetProgram planned = program_of(program, 64);
        const int instructions =
            planned.request(plan::KernelKind::backward_fused).work.element_instructions;
        const std::size_t nodes = nodes_of_derivatives(planned);
        if (nodes < choice.least_nodes || nodes > kMostNodes || instructions < kLeastInstructions)
            continue;
        programs.emplace_back(formatted("seed {}, {} nodes", seed, nodes), std::move(program));
    }
    return programs;
}

} // namespace

// Half an hour and more on a free processor: test_compile --no-skip -tc='how long*'.
TEST_CASE("how long random programs take to compile" * doctest::skip()) {
    measure_all(random_programs({}));
}

TEST_CASE("how long large random programs take to compile" * doctest::skip()) {
    measure_all(random_programs(
                    {.count = 40, .least_nodes = 100, .most_operators = 400, .integers = false}),
                {128}); // the head dim that takes longer
}

TEST_CASE("how long programs of long sums take to compile" * doctest::skip()) {
    const char* count = std::getenv("FLEXC_FUZZ_PROGRAMS");
    const std::size_t most = count == nullptr ? 20 : std::strtoul(count, nullptr, 10);
    std::vector<std::pair<std::string, ir::Program>> programs;
    for (std::uint64_t seed = test::first_seed(); programs.size() < most; ++seed) {
        test::Random random(seed);
        const bool is_learned = random.chance(30);
        const std::string text =
            is_learned ? test::term_program(random) : test::sum_program(random, "bf16");
        ir::Program program = *front::compile_text({.source = {"<test>", text}}).program;
        programs.emplace_back(formatted("seed {}, {} nodes{}", seed,
                                        nodes_of_derivatives(program_of(program, 64)),
                                        is_learned ? ", learned" : ""),
                              std::move(program));
    }
    measure_all(programs);
}

TEST_CASE("how long mods of the library take to compile" * doctest::skip()) {
    std::vector<std::pair<std::string, ir::Program>> programs;
    for (const front::LibraryMod& mod : front::library()) {
        ir::Program program =
            *front::compile_text({.source = {"<test>", std::string(mod.text)}}).program;
        const std::size_t nodes = nodes_of_derivatives(program_of(program, 64));
        programs.emplace_back(formatted("{}, {} nodes", mod.name, nodes), std::move(program));
    }
    measure_all(programs);
}
