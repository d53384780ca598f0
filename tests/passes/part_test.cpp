// Programs for parts of a problem say of the part what the whole says of it.
#include "passes/part.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "ir/interp.h"
#include "program_of.h"

using namespace flexc;

namespace {

ir::Program part(const char* text, const CompileOptions& options) {
    ir::Program program = test::program_of(text);
    const auto made = passes::make_part(program, options);
    REQUIRE_MESSAGE(made.has_value(), made.error().message);
    return program;
}

std::size_t param_of(const ir::Program& program, const char* name) {
    const auto found = std::ranges::find(program.params, name, &ir::Param::name);
    REQUIRE(found != program.params.end());
    return static_cast<std::size_t>(found - program.params.begin());
}

} // namespace

TEST_CASE("heads begin at params, and sizes of heads are those of the whole") {
    CompileOptions options;
    options.part_of_heads = true;
    const ir::Program program = part(
        "buffer t: f32[H] \nscore_mod = score + t[h] + 100 * h_kv + 10000 * H + 1000000 * H_KV",
        options);
    ir::BufferData data{.extents = {8}, .reals = {0, 1, 2, 3, 4, 5, 6, 7}};
    ir::Environment environment;
    environment.sizes.assign(program.sizes.size(), 2); // of the part
    environment.params.resize(program.params.size());
    environment.params[param_of(program, "H.first")].integer = 4;
    environment.params[param_of(program, "H.whole")].integer = 8;
    environment.params[param_of(program, "H_KV.first")].integer = 2;
    environment.params[param_of(program, "H_KV.whole")].integer = 4;
    environment.buffers = {&data};
    environment.h = 1;
    environment.h_kv = 0;
    CHECK(ir::evaluate_real(program, program.score, environment) == 5 + 200 + 80000 + 4000000);
    // The buffer is whole: its dim is no longer the number of heads of the part.
    CHECK(program.buffers[0].dims[0].size >= ir::kStandardSizes);
}

TEST_CASE("rows of a sharded buffer are found by the shift; what is not there reads 0") {
    CompileOptions options;
    options.sharded = {{"t", "KV_LEN"}};
    const ir::Program program =
        part("buffer t: f32[2, KV_LEN]\nscore_mod = score + t[h, kv_idx]", options);
    ir::BufferData data{.extents = {2, 3}, .reals = {1, 2, 3, 4, 5, 6}};
    ir::Environment environment;
    environment.sizes.assign(program.sizes.size(), 100);
    environment.params.resize(program.params.size());
    environment.params[param_of(program, "t.KV_LEN.shift")].integer = -50;
    environment.buffers = {&data};
    environment.h = 1;
    for (const std::int64_t row : {-1, 0, 2, 3}) {
        environment.kv_idx = 50 + row;
        CHECK(ir::evaluate_real(program, program.score, environment) ==
              (row < 0 || row > 2 ? 0 : 4.0 + static_cast<double>(row)));
    }
}

TEST_CASE("a sink by itself, and none") {
    CompileOptions options;
    options.sink_use = SinkUse::alone;
    const char* text = "mask_mod = q_idx > kv_idx\nscore_mod = score * 2\nsink = 3.0 + h";
    const ir::Program alone = part(text, options);
    ir::Environment environment;
    environment.sizes.assign(alone.sizes.size(), 4);
    environment.h = 2;
    CHECK(ir::evaluate_real(alone, alone.score, environment) == 5);
    CHECK(ir::evaluate_boolean(alone, alone.mask, environment));
    CHECK(alone.sink == ir::kNoNode);
    options.sink_use = SinkUse::absent;
    const ir::Program absent = part(text, options);
    environment.score = 7;
    CHECK(ir::evaluate_real(absent, absent.score, environment) == 14);
    CHECK(absent.sink == ir::kNoNode);
    CHECK(part(text, {}).sink != ir::kNoNode);
}
