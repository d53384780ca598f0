// Which candidate is kept, by made-up compilers.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "api/choose_candidate.h"
#include "plan/plan.h"
#include "random.h"

using namespace flexc;
using api::Attempt;
using api::Choice;
using plan::KernelConfig;

namespace {

struct Outcome {
    int spills = 0;
    bool serialised = false;
    std::string error = {};
};

// Gives each candidate its outcome, and remembers who was asked for.
class Made {
  public:
    explicit Made(std::vector<Outcome> outcomes) : outcomes_(std::move(outcomes)) {}

    Result<Attempt> attempt(std::size_t at) {
        {
            const std::lock_guard lock(mutex_);
            asked_.push_back(at);
        }
        if (!outcomes_[at].error.empty())
            return Error{ErrorCode::compile_failed, outcomes_[at].error};
        cuda::NvrtcOutput output;
        output.kernels = {
            {.spill_store_bytes = outcomes_[at].spills, .serialised = outcomes_[at].serialised}};
        return Attempt{{}, std::move(output)};
    }
    std::vector<std::size_t> asked() {
        std::ranges::sort(asked_);
        return asked_;
    }

  private:
    std::vector<Outcome> outcomes_;
    std::mutex mutex_;
    std::vector<std::size_t> asked_;
};

Choice choose(const std::vector<KernelConfig>& candidates, Made& made, bool has_room) {
    auto choice = api::choose_candidate(
        candidates, {[&](std::size_t at) { return made.attempt(at); }, [&] { return has_room; }},
        {});
    REQUIRE(choice);
    return *std::move(choice);
}

std::vector<KernelConfig> backward(int head_dim, bool computes_rows = false) {
    plan::KernelRequest request;
    request.kind = plan::KernelKind::backward_fused;
    request.arch = 90;
    request.head_dim = request.head_dim_v = head_dim;
    request.has_score_mod = true;
    request.derivative.computes_rows = computes_rows;
    return plan::candidates(request);
}

} // namespace

TEST_CASE("a candidate for which there are no registers is passed over") {
    const std::string no_registers =
        "NVRTC 13.0 could not compile x.cu for sm_90a: NVRTC_ERROR_COMPILATION\nptxas fatal   : "
        "(C7600) Register allocation failed with register count of '232'.";
    const std::vector<KernelConfig> candidates(3);
    Made first({{.error = no_registers}, {}, {}});
    CHECK(choose(candidates, first, false).at == 1);
    CHECK(first.asked() == std::vector<std::size_t>{0, 1});
    Made last({{.spills = 900}, {.error = no_registers}, {.error = no_registers}});
    CHECK(choose(candidates, last, false).at == 0);
    const auto message_of = [&](std::vector<Outcome> outcomes) {
        Made made(std::move(outcomes));
        const auto choice = api::choose_candidate(
            candidates, {[&](std::size_t at) { return made.attempt(at); }, [] { return false; }},
            {});
        return choice ? "" : choice.error().message;
    };
    CHECK(message_of({{.error = no_registers}, {.error = no_registers}, {.error = no_registers}}) ==
          no_registers);
    CHECK(message_of({{.error = "mod.cuh(3): error: expected a ;"}, {}, {}}) ==
          "mod.cuh(3): error: expected a ;");
}

TEST_CASE("candidates are compiled until one does not spill, two at once where there is room") {
    const std::vector<KernelConfig> candidates = backward(128);
    REQUIRE(candidates.size() > 3);
    struct Case {
        std::vector<Outcome> outcomes;
        std::size_t chosen;
        std::vector<std::size_t> asked, asked_with_room;
    };
    const std::vector<Case> cases = {
        {{{0}}, 0, {0}, {0}},
        {{{16}}, 0, {0}, {0}},
        {{{20}, {0}, {0}}, 1, {0, 1}, {0, 1, 2}},
        {{{20}, {24}, {0}}, 2, {0, 1, 2}, {0, 1, 2}},
        {{{0, true}, {0}, {0}}, 1, {0, 1}, {0, 1, 2}},
    };
    for (const Case& one : cases)
        for (const bool has_room : {false, true}) {
            std::vector<Outcome> outcomes = one.outcomes;
            outcomes.resize(candidates.size());
            Made made(outcomes);
            CHECK(choose(candidates, made, has_room).at == one.chosen);
            CHECK(made.asked() == (has_room ? one.asked_with_room : one.asked));
        }
}

TEST_CASE("a mask's first form is kept where it spills a few words, and has one form after it") {
    for (const int row_instructions : {0, 480}) {
        plan::KernelRequest request;
        request.kind = plan::KernelKind::backward_fused;
        request.arch = 90;
        request.head_dim = request.head_dim_v = 128;
        request.mask.has_block_mask = request.derivative.computes_rows = true;
        request.work.row_instructions = row_instructions;
        const std::vector<KernelConfig> candidates = plan::candidates(request);
        for (const auto& [first, second, chosen] :
             {std::tuple{16, 0, 0}, {20, 0, 1}, {98, 92, 1}, {92, 98, 0}}) {
            std::vector<Outcome> outcomes(candidates.size());
            outcomes[0].spills = first;
            outcomes[1].spills = second;
            Made made(outcomes);
            CHECK(choose(candidates, made, false).at == static_cast<std::size_t>(chosen));
            CHECK(made.asked().size() == (first <= 16 ? 1 : 2));
        }
    }
}

TEST_CASE("where elements are added one by one, spills that no form saves lead to another family") {
    plan::KernelRequest request;
    request.kind = plan::KernelKind::backward_fused;
    request.arch = 90;
    request.head_dim = request.head_dim_v = 128;
    request.has_score_mod = request.gradients.by_element = true;
    const std::vector<KernelConfig> candidates = plan::candidates(request);
    const auto generic = static_cast<std::size_t>(
        std::ranges::find_if(
            candidates,
            [&](const KernelConfig& one) { return one.family != candidates.front().family; }) -
        candidates.begin());
    REQUIRE(generic > 2);
    REQUIRE(generic < candidates.size());
    for (const auto& [spills, next] : {std::pair{8, std::size_t{1}}, {100, generic}}) {
        std::vector<Outcome> outcomes(candidates.size());
        outcomes.front().spills = spills;
        Made made(outcomes);
        CHECK(choose(candidates, made, false).at == next);
        CHECK(made.asked() == std::vector<std::size_t>{0, next});
    }
    // Where there is no other family, the first one is kept.
    const std::vector<KernelConfig> alone(
        candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(generic));
    std::vector<Outcome> outcomes(alone.size());
    outcomes.front().spills = 100;
    Made made(outcomes);
    const Choice kept = choose(alone, made, false);
    CHECK(kept.at == 0);
    CHECK(kept.tolerated_spills == 100);
    CHECK(made.asked() == std::vector<std::size_t>{0});
}

TEST_CASE("where loops over terms serialise products, another family follows") {
    plan::KernelRequest request;
    request.kind = plan::KernelKind::backward_fused;
    request.arch = 90;
    request.head_dim = request.head_dim_v = 128;
    request.has_score_mod = true;
    request.sums = {.count = 1, .carried = 1};
    const std::vector<KernelConfig> candidates = plan::candidates(request);
    std::vector<Outcome> outcomes(candidates.size());
    outcomes.front().serialised = true;
    Made made(outcomes);
    const std::size_t chosen = choose(candidates, made, false).at;
    CHECK(candidates[chosen].family != candidates.front().family);
    CHECK(made.asked() == std::vector<std::size_t>{0, chosen});
}

TEST_CASE("two candidates that are compiled at once wait for nobody") {
    const std::vector<KernelConfig> candidates = backward(128);
    std::mutex mutex;
    std::condition_variable changed;
    int begun = 0;
    const auto attempt = [&](std::size_t at) -> Result<Attempt> {
        cuda::NvrtcOutput output;
        output.kernels = {{.spill_store_bytes = at == 2 ? 0 : 20}};
        if (at == 0) return Attempt{{}, std::move(output)};
        std::unique_lock lock(mutex);
        ++begun;
        changed.notify_all();
        if (!changed.wait_for(lock, std::chrono::seconds(20), [&] { return begun == 2; }))
            return Error{ErrorCode::internal, "alone"};
        return Attempt{{}, std::move(output)};
    };
    const auto choice = api::choose_candidate(candidates, {attempt, [] { return true; }}, {});
    REQUIRE(choice);
    CHECK(choice->at == 2);
}

TEST_CASE("spills of a module's other kernels are not the candidate's") {
    const std::vector<KernelConfig> candidates = backward(128);
    for (const int own : {0, 400}) {
        const auto attempt = [&](std::size_t at) -> Result<Attempt> {
            cuda::NvrtcOutput output;
            output.kernels = {{.name = "flexc_backward_references", .spill_store_bytes = 400},
                              {.name = std::string(candidates[at].entry),
                               .spill_store_bytes = at == 0 ? own : 0}};
            return Attempt{{}, std::move(output)};
        };
        const auto choice = api::choose_candidate(candidates, {attempt, [] { return false; }}, {});
        REQUIRE(choice);
        CHECK((choice->at == 0) == (own == 0));
    }
}

TEST_CASE("room changes nothing about the choice") {
    test::Random random(7);
    for (int i = 0; i < 2000; ++i) {
        const auto candidates = backward(random.pick(std::array{64, 128}), random.chance(50));
        std::vector<Outcome> outcomes;
        for (std::size_t at = 0; at < candidates.size(); ++at)
            outcomes.push_back(
                {random.pick(std::array{0, 4, 8, 40, 60, 72, 100, 140, 300}), random.chance(10)});
        Made alone(outcomes), beside(outcomes);
        const Choice one = choose(candidates, alone, false),
                     other = choose(candidates, beside, true);
        REQUIRE(one.at == other.at);
        REQUIRE(one.tolerated_spills == other.tolerated_spills);
        // Whoever is kept spills no more than any that was tried.
        const int spills = outcomes[one.at].spills;
        for (const std::size_t at : alone.asked())
            if (!outcomes[at].serialised)
                REQUIRE((spills <= outcomes[at].spills || outcomes[one.at].serialised));
    }
}

TEST_CASE("an error of one that nobody needs is not told, that of another is") {
    const std::vector<KernelConfig> candidates = backward(128);
    for (const std::size_t failing : {1, 2}) {
        const auto attempt = [&](std::size_t at) -> Result<Attempt> {
            if (at == failing) return Error{ErrorCode::cancelled, "stopped"};
            cuda::NvrtcOutput output;
            output.kernels = {{.spill_store_bytes = at == 0 ? 20 : 0}};
            return Attempt{{}, std::move(output)};
        };
        const auto choice = api::choose_candidate(candidates, {attempt, [] { return true; }}, {});
        CHECK(choice.has_value() == (failing == 2));
    }
}
