#include <doctest/doctest.h>

#include "api/cuda_kernels.h"
#include "cache/scratch.h"
#include "compile/kernels.h"
#include "cuda/select.h"

using namespace flexc;
using api::CompiledKernel;
using api::Preference;

namespace {

// What is asked of a cache folder that other builds of this version write to as well.
struct Shared {
    explicit Shared(std::string_view arch, cuda::KernelKind asked = cuda::KernelKind::forward)
        : target(*api::target_of(arch)), kind(asked) {}

    test::Scratch scratch;
    api::Target target;
    cuda::KernelKind kind;
    passes::Mod mod = *test::lower_text("mask_mod = q_idx >= kv_idx", 128, 128, true);
    CompileOptions options{.head_dim = 128, .head_dim_v = 128, .cache = scratch.options()};
    std::shared_ptr<cache::Store> store = cache::Store::open(options.cache);

    cuda::KernelConfig config(const Preference& choice) const {
        return api::configure(mod, options, kind, target, choice);
    }
    cuda::Translation translation(const Preference& choice) const {
        const cuda::KernelConfig chosen = config(choice);
        return *cuda::fill_template(chosen, api::mod_text(mod, options, chosen));
    }
    // An entry for the first choice that says it became `said`, by a build where that is `made`.
    void keep(const Preference& said, const Preference& made) const {
        const api::Identity id = api::identify(translation({}), target.arch);
        CompiledKernel one;
        one.kernel.cubin = "code of another build";
        one.made_of = api::source_of(translation(made));
        one.refused = said.refused;
        one.schedule = said.schedule;
        store->remove(id.key);
        store->publish(id.key, id.source, api::entry_of(one));
    }
    CompiledKernel compile() const {
        auto one = api::compile_kernel(mod, options, kind, target, *store);
        REQUIRE(one);
        return *std::move(one);
    }
    void check_used(const Preference& choice) const {
        const CompiledKernel one = compile();
        CHECK(one.cached);
        CHECK(one.kernel.cubin == "code of another build");
        CHECK(one.refused == choice.refused);
        CHECK(one.schedule == choice.schedule);
        CHECK(one.kernel.config.key_tile == config(choice).key_tile);
        CHECK(one.kernel.info.reason == config(choice).reason);
    }
    // Made anew, and found the next time.
    void check_heals() const {
        const std::uint64_t corrupt = store->statistics().corrupt;
        const CompiledKernel fresh = compile();
        CHECK_FALSE(fresh.cached);
        CHECK(fresh.kernel.cubin != "code of another build");
        CHECK_FALSE(fresh.schedule);
        CHECK(fresh.made_of == api::source_of(translation({.refused = fresh.refused})));
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
    const Shared shared("sm_80", cuda::KernelKind::backward_fused);
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
    REQUIRE(shared.config({}).has_next);
    REQUIRE(shared.config({.refused = 1}).key_tile != shared.config({.refused = 2}).key_tile);
    shared.keep({.refused = 1}, {.refused = 1});
    shared.check_used({.refused = 1});
    shared.keep({.refused = 1}, {.refused = 2});
    shared.check_heals();
}

TEST_CASE("an entry of a kept schedule is used only where it is the same one in this build") {
    const Shared shared("sm_90a");
    const auto schedules = cuda::forward_schedules(
        api::request_for(shared.mod, shared.options, cuda::KernelKind::forward, shared.target, {}));
    REQUIRE(schedules.size() > 2);
    shared.keep({.schedule = schedules[1]}, {.schedule = schedules[1]});
    shared.check_used({.schedule = schedules[1]});
    shared.keep({.schedule = schedules[1]}, {.schedule = schedules[2]});
    shared.check_heals();
}
