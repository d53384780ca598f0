#include "flexc/bench_ranks.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "flexc/command.h"
#include "flexc/fill.h"
#include "flexc/ranked_call.h"
#include "flexc/stopwatch.h"
#include "flexc/visible_fraction.h"
#include "support/env.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

constexpr double kLoadMs = 300;
constexpr int kLeastRepeats = 3, kMostRepeats = 101;
// A GPU has one call after the other, as in training, and ranks meet at the end of them.
constexpr int kCallsOfGpu = 10;

// What each rank has, in their order.
template <typename Value>
std::vector<Value> of_ranks(Communicator& communicator, const Value& own) {
    constexpr int kChannel = 0;
    const int self = communicator.rank();
    auto all = std::make_shared<std::vector<Value>>(communicator.ranks(), own);
    std::vector<Communicator::Message> sends, receives;
    for (int peer = 0; peer < communicator.ranks(); ++peer) {
        if (peer != self) {
            sends.push_back({peer, &all->at(static_cast<std::size_t>(self)), sizeof own});
            receives.push_back({peer, &all->at(static_cast<std::size_t>(peer)), sizeof own});
        }
    }
    require(communicator.wait(value_of(communicator.start(kChannel, sends, receives, all))));
    return *all;
}

// Also a barrier.
double slowest(Communicator& communicator, double own) {
    return std::ranges::max(of_ranks(communicator, own));
}

// The median of what the slowest rank takes. All ranks repeat the work as often; one that has none
// waits for the others.
template <typename Work> double median_on_ranks(Communicator& communicator, Work work) {
    slowest(communicator, 0);
    const double first = slowest(communicator, milliseconds(work));
    const int repeats =
        static_cast<int>(std::clamp<double>(kLoadMs / first, kLeastRepeats, kMostRepeats));
    std::vector<double> times;
    for (int i = 0; i < repeats; ++i) {
        slowest(communicator, 0);
        times.push_back(slowest(communicator, milliseconds(work)));
    }
    return median(std::move(times));
}

RankedProblem problem_of(const BenchCase& bench, const RankedBench& options) {
    RankedProblem problem{
        .text = bench.mod.text,
        .options = bench.mod.options,
        .shape = bench.problem,
        .scale = bench.scale,
        .params = bench.mod.param_values,
        .output_type = options.output_type == OutputType::f32 ? DType::f32 : bench.problem.dtype,
        .backward = options.backward};
    problem.options.cache = {.memory = false, .disk = false}; // compile_ms is of a compile
    return problem;
}

// Buffers are the same everywhere; other tensors only as random.
void fill(RankedCall& call, const BenchCase& bench, bool backward) {
    const FillSpec unit{FillSpec::Kind::normal, 1.0, 0};
    for (const auto& buffer : bench.buffers) {
        call.add_buffer(buffer.info, buffer.shape, buffer.bytes);
    }
    call.deal();
    auto seed = std::uint64_t{4} * static_cast<std::uint64_t>(call.communicator().rank());
    for (const char* name : {"q", "k", "v", "do"}) {
        if (std::string_view(name) == "do" && !backward) {
            continue;
        }
        auto& tensor = call.add_input(name);
        tensor.bytes =
            make_contents(unit, tensor.dtype,
                          tensor.shape(tensor.shards->rows(call.communicator().rank())), ++seed);
    }
    call.prepare();
}

struct Pass {
    const char* prefix; // of its keys
    bool is_backward;
    void (RankedCall::*on_ranks)();
    Result<void> (AttentionCall::*alone)() const;
    std::uint64_t Traffic::* received;
};
constexpr Pass kPasses[] = {
    {"forward_", false, &RankedCall::forward, &AttentionCall::forward, &Traffic::forward_received},
    {"backward_", true, &RankedCall::backward, &AttentionCall::backward,
     &Traffic::backward_received}};

} // namespace

nlohmann::json bench_on_ranks(const BenchCase& bench, const RankedBench& options,
                              const std::shared_ptr<Communicator>& communicator) {
    const bool is_first = communicator->rank() == 0;
    const int ranks = communicator->ranks();
    const bool is_on_gpu = bench.mod.options.device.kind == Device::Kind::cuda;
    const int calls = is_on_gpu ? kCallsOfGpu : 1;
    RankedCall call(problem_of(bench, options), communicator, options.ranks);
    fill(call, bench, options.backward);
    // The whole, with the threads of one rank, while the others wait.
    std::optional<AttentionCall> alone;
    if (is_first) {
        alone.emplace(make_call(bench, value_of(compile(bench.mod.text, bench.mod.options)),
                                options.backward, options.output_type));
    }
    const auto traffic = of_ranks(*communicator, call.plan().traffic());
    double most_area = 0;
    for (const auto& one : traffic) {
        most_area = std::max(most_area, one.visible_area);
    }
    const auto threads = support::environment_count(support::Variable::threads);
    const double fair_area = traffic.front().fair_area;
    nlohmann::json value{{"device", is_on_gpu ? "cuda" : "cpu"},
                         {"ranks", ranks},
                         {"threads", threads ? nlohmann::json(*threads) : nlohmann::json(nullptr)},
                         {"exchange", name(call.plan().exchange())},
                         {"shards", call.shards()},
                         {"plan", call.plan().explain()},
                         {"dtype", name(bench.problem.dtype)},
                         {"compile_ms", call.compile_ms()},
                         {"most_work", fair_area == 0 ? 1.0 : most_area / fair_area}};
    for (const auto& pass : kPasses) {
        if (pass.is_backward && !options.backward) {
            continue;
        }
        const std::string prefix = pass.prefix;
        const double ms = median_on_ranks(*communicator,
                                          [&] {
                                              for (int i = 0; i < calls; ++i) {
                                                  (call.*pass.on_ranks)();
                                              }
                                              call.synchronize();
                                          }) /
                          calls;
        const double alone_ms = median_on_ranks(*communicator,
                                                [&] {
                                                    for (int i = 0; alone && i < calls; ++i) {
                                                        require(((*alone).*pass.alone)());
                                                    }
                                                    call.synchronize();
                                                }) /
                                calls;
        std::uint64_t moved = 0, most = 0;
        for (const auto& one : traffic) {
            moved += one.*pass.received;
            most = std::max(most, one.*pass.received);
        }
        value[prefix + "ms"] = ms;
        value["one_rank_" + prefix + "ms"] = alone_ms;
        value[prefix + "fraction_of_one_rank"] = alone_ms / (ms * ranks);
        value[prefix + "bytes_moved"] = moved;
        value[prefix + "bytes_into_a_rank"] = most;
    }
    if (is_first) {
        const auto visible = visible_fraction(bench, *alone);
        value["visible_fraction"] =
            visible.value ? nlohmann::json(*visible.value) : nlohmann::json(nullptr);
        value["visible_fraction_method"] = visible.method;
        for (const auto& buffer : bench.buffers) {
            value["fills"][buffer.info.name] = buffer.fill;
        }
    }
    slowest(*communicator, 0); // nobody leaves while the first counts
    return value;
}

void print_ranked_summary(const nlohmann::json& value) {
    print(stdout, "{} ranks by {}", value["ranks"].get<int>(),
          value["exchange"].get<std::string>());
    for (const auto& pass : kPasses) {
        const std::string prefix = pass.prefix;
        if (!value.contains(prefix + "ms")) {
            continue;
        }
        print(stdout,
              "{} {} {:.4g} ms, {:.3f} of one rank's speed ({:.4g} ms), {} bytes moved, {} into a "
              "rank at most",
              pass.is_backward ? ";" : ":", pass.is_backward ? "backward" : "forward",
              value[prefix + "ms"].get<double>(),
              value[prefix + "fraction_of_one_rank"].get<double>(),
              value["one_rank_" + prefix + "ms"].get<double>(),
              value[prefix + "bytes_moved"].get<std::uint64_t>(),
              value[prefix + "bytes_into_a_rank"].get<std::uint64_t>());
    }
    if (const auto& visible = value["visible_fraction"]; !visible.is_null()) {
        print(stdout, "; {:.4g} % visible", 100 * visible.get<double>());
    }
    print(stdout,
          "; {} shards: a rank has {:.3f} of a fair share of it at most; compile {:.4g} ms\n{}",
          value["shards"].get<std::string>(), value["most_work"].get<double>(),
          value["compile_ms"].get<double>(), value["plan"].get<std::string>());
}

} // namespace flexc::cli
