#include "flexc/mod_option.h"

#include <doctest/doctest.h>

#include "flexc/command.h"

using namespace flexc;
using namespace flexc::cli;

TEST_CASE("buffers are declared as in a program") {
    const auto plain = parse_buffer("doc: i32[KV_LEN]");
    CHECK(plain.name == "doc");
    CHECK(plain.type == DType::i32);
    CHECK(plain.dims == std::vector<std::string>{"KV_LEN"});
    CHECK_FALSE(plain.grad);
    const auto learned = parse_buffer(" rb :bf16[ H , N] grad ");
    CHECK(learned.name == "rb");
    CHECK(learned.dims == std::vector<std::string>{"H", "N"});
    CHECK(learned.grad);
    CHECK(parse_buffer("t: f32[]").dims.empty());
    for (const char* text : {"", "x", "x: f32", "x: f31[H]", "x: f32[H] gard", "x: f32[H",
                             "3: f32[H]", "x: f32[H]] grad"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(parse_buffer(text), CommandError);
    }
}

TEST_CASE("devices") {
    CHECK(parse_device("cpu").kind == Device::Kind::cpu);
    CHECK(parse_device("cuda").kind == Device::Kind::cuda);
    CHECK(parse_device("cuda:3").index == 3);
    CHECK(parse_device("auto").kind != Device::Kind::automatic);
    for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:99999", "cpu:1"}) {
        CAPTURE(text);
        CHECK_THROWS_AS(parse_device(text), CommandError);
    }
}

TEST_CASE("the params of an expression are declared with their values") {
    const auto mod = load_mod({.expression = "cap * score + W", .params = {"cap=2.5", "W=3"}});
    REQUIRE(mod.options.params.size() == 2);
    CHECK(mod.options.params[0].type == DType::f32);
    CHECK(mod.options.params[1].type == DType::i64);
    CHECK(mod.param_values[0].second == 2.5);
    const auto declared =
        load_mod({.expression = "param cap: f32 = 1; score_mod = cap", .params = {"cap=2"}});
    CHECK(declared.options.params.empty());
    CHECK_THROWS_AS(load_mod({.expression = "score", .params = {"cap"}}), CommandError);
    CHECK_THROWS_AS(load_mod({.expression = "score", .params = {"cap=x"}}), CommandError);
    CHECK_THROWS_AS(load_mod({.expression = "score", .params = {"c.*=1"}}), CommandError);
}

TEST_CASE("near names are found, far ones are not") {
    const std::vector<std::string> names{"alibi", "causal", "softcap"};
    CHECK(nearest_name("alibbi", names) == "alibi");
    CHECK(nearest_name("casual", names) == "causal");
    CHECK(nearest_name("window", names).empty());
}
