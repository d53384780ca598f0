#include <doctest/doctest.h>

#include "api/cuda_kernels.h"
#include "cache/scratch.h"
#include "compile/kernels.h"

using namespace flexc;
using api::CompiledKernel;

namespace {

// One of the kernels that a first choice may become.
struct Became {
    std::size_t candidate = 0;
    std::optional<plan::ForwardSchedule> schedule = {};
};

// What is asked of a cache folder that other builds of this version write to as well.
struct Shared {
    explicit Shared(std::string_view arch, bool backward = false)
        : program(*test::lower_text("mask_mod = q_idx >= kv_idx", 128, 128, true),
                  {.head_dim = 128,
                   .head_dim_v = 128,
                   .backward = backward,
                   .cache = scratch.options()},
                  *plan::target_of(arch)),
          kernels(*api::plan_of(program)),
          variant(backward ? kernels.backward.front() : kernels.forward.front()) {}

    test::Scratch scratch;
    plan::TargetProgram program;
    plan::KernelPlan kernels;
    const plan::Variant& variant;
    std::shared_ptr<cache::Store> store = cache::Store::open(scratch.options());

    plan::KernelConfig config(const Became& one) const {
        return one.schedule ? plan::with_schedule(variant, *one.schedule)
                            : variant.candidates[one.candidate];
    }
    cuda::Translation translation(const Became& one) const {
        const plan::KernelConfig chosen = config(one);
        return *cuda::fill_template(chosen, api::mod_text(program, chosen));
    }
    // An entry for the first choice that says it became `said`, by a build where that is `made`.
    void keep(const Became& said, const Became& made) const {
        const api::Identity id = api::identify(translation({}), program.target().arch);
        CompiledKernel one;
        one.kernel.cubin = "code of another build";
        one.made_of = api::source_of(translation(made));
        one.refused = static_cast<int>(said.candidate);
        one.schedule = said.schedule;
        store->remove(id.key);
        store->publish(id.key, api::entry_of(one));
    }
    CompiledKernel compile() const {
        auto one = api::compile_kernel(program, variant.candidates, &variant, *store);
        REQUIRE(one);
        return *std::move(one);
    }
    void check_used(const Became& choice) const {
        const CompiledKernel one = compile();
        CHECK(one.cached);
        CHECK(one.kernel.cubin == "code of another build");
        CHECK(one.refused == static_cast<int>(choice.candidate));
        CHECK(one.schedule == choice.schedule);
        CHECK(one.kernel.config.block.key_tile == config(choice).block.key_tile);
        CHECK(one.kernel.info.reason == config(choice).reason);
    }
    // Made anew, and found the next time.
    void check_heals() const {
        const std::uint64_t corrupt = store->statistics().corrupt;
        const CompiledKernel fresh = compile();
        CHECK_FALSE(fresh.cached);
        CHECK(fresh.kernel.cubin != "code of another build");
        CHECK_FALSE(fresh.schedule);
        const Became became{static_cast<std::size_t>(fresh.refused)};
        CHECK(fresh.made_of == api::source_of(translation(became)));
        CHECK(store->statistics().corrupt == corrupt + 1);
        const CompiledKernel again = compile();
        CHECK(again.cached);
        CHECK(again.kernel.cubin == fresh.kernel.cubin);
        CHECK(again.made_of == fresh.made_of);
        CHECK(again.kernel.info.registers == fresh.kernel.info.registers);
    }
};

} // namespace

TEST_CASE("a configuration that followed a refused one is found again") {
    const Shared shared("sm_80", true);
    const CompiledKernel fresh = shared.compile();
    WARN(fresh.refused > 0); // not by every NVRTC
    CHECK((fresh.made_of == fresh.id.source) == (fresh.refused == 0));
    const CompiledKernel again = shared.compile();
    CHECK(again.cached);
    CHECK(again.refused == fresh.refused);
    CHECK(again.made_of == fresh.made_of);
    CHECK(again.kernel.cubin == fresh.kernel.cubin);
    CHECK(shared.store->statistics().corrupt == 0);
}

TEST_CASE("an entry of a later configuration is used only where this build has the same one") {
    const Shared shared("sm_80");
    REQUIRE(shared.variant.candidates.size() > 2);
    REQUIRE(shared.config({1}).block.key_tile != shared.config({2}).block.key_tile);
    shared.keep({1}, {1});
    shared.check_used({1});
    shared.keep({1}, {2});
    shared.check_heals();
}

TEST_CASE("an entry of a kept schedule is used only where it is the same one in this build") {
    const Shared shared("sm_90a");
    const auto schedules = plan::forward_schedules(shared.variant.request);
    REQUIRE(schedules.size() > 2);
    shared.keep({.schedule = schedules[1]}, {.schedule = schedules[1]});
    shared.check_used({.schedule = schedules[1]});
    shared.keep({.schedule = schedules[1]}, {.schedule = schedules[2]});
    shared.check_heals();
}
