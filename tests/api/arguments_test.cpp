// A program that reads as many arguments as the language lets it declare.
#include <doctest/doctest.h>

#include <string>

#include "api/case.h"
#include "api/cuda_kernels.h"
#include "program_of.h"

using namespace flexc;

namespace {

// With 8 dims of its own for each buffer, or one.
std::string widest(int buffers, int dims, int params) {
    std::string text, body = "score_mod {\n  x = score\n", sum = "  x += 0.0001 * (0";
    for (int buffer = 0; buffer < buffers; ++buffer) {
        const std::string name = "b" + std::to_string(buffer);
        std::string shape, at;
        for (int dim = 0; dim < dims; ++dim) {
            const std::string size = "n" + std::to_string(buffer) + "_" + std::to_string(dim);
            shape += (dim == 0 ? "" : ", ") + size;
            at += dim == 0 ? "0" : ", 0";
            sum += " + " + size;
        }
        text += "buffer " + name + ": f32[" + shape + "] grad\n";
        body += "  x += " + name + "[" + at + "] * (1 + h)\n";
    }
    for (int i = 0; i < params; ++i) {
        text += "param p" + std::to_string(i) + ": f32 = 0.5\n";
        sum += " + p" + std::to_string(i);
    }
    return text + body + sum + ")\n  x\n}\n";
}

} // namespace

TEST_CASE("a program with all buffers, dims and params that there may be") {
    test::Case one{.text = widest(32, 8, 256), .batch = 1, .heads = 2, .q_len = 3, .kv_len = 5};
    for (int buffer = 0; buffer < 32; ++buffer)
        for (int dim = 0; dim < 8; ++dim)
            one.dims["n" + std::to_string(buffer) + "_" + std::to_string(dim)] = 1 + dim % 2;
    for (const Device device : test::test_devices())
        if (device.kind == Device::Kind::cpu) CHECK(test::run_case(one, device, 1) == "");
    const passes::Mod mod = test::lowered(one.text);
    CHECK(passes::argument_slots(mod).size() > 1024);
    CHECK(passes::argument_slots(mod).size() <= passes::kMaxArgumentWords);
}

TEST_CASE("what a compiler or driver takes of arguments") {
    const passes::Mod mod = test::lowered(widest(32, 8, 256));
    CHECK(api::check_argument_bytes(mod, 12010, "NVRTC"));
    CHECK(api::check_argument_bytes(mod, 13000, "NVRTC"));
    const auto old = api::check_argument_bytes(mod, 12000, "NVRTC");
    REQUIRE(!old);
    CHECK(old.error().code == ErrorCode::limit);
    CHECK(old.error().message.find("NVRTC 12.0 allows 4096") != std::string::npos);
    CHECK(api::check_argument_bytes(test::lowered(widest(4, 4, 20)), 12000, "NVRTC"));
}
