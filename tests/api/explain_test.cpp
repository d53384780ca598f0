// What `flexc explain` says of a program that only the plan of its kernels knows.
#include <doctest/doctest.h>

#include <string>
#include <string_view>

#include "flexc/compile.h"
#include "support/text.h"

using namespace flexc;

namespace {

// Returns which kernel sums the gradient of t: "1 of 2"; empty if one sums all.
std::string kernel_of_table(int entries, const CompileOptions& options) {
    const auto text = explain(formatted("buffer e: i32[Q_LEN, KV_LEN]\nbuffer t: f32[H, {}] grad\n"
                                        "buffer s: f32[H, 33] grad\nscore_mod = (score + t[h, "
                                        "e[q_idx, kv_idx]]) * s[h, min(abs(q_idx - kv_idx), 32)]",
                                        entries),
                              "deps", options, "sm_90a");
    REQUIRE(text);
    constexpr std::string_view kKernel = " (kernel ";
    const std::size_t read = text->find("\nt[h, ");
    REQUIRE(read != std::string::npos);
    const std::size_t gradient = text->find("\n  gradient: ", read);
    REQUIRE(gradient != std::string::npos);
    const std::string line =
        text->substr(gradient + 1, text->find('\n', gradient + 1) - gradient - 1);
    const std::size_t at = line.find(kKernel);
    if (at == std::string::npos) return "";
    const std::size_t number = at + kKernel.size();
    return line.substr(number, line.find(')', number) - number);
}

} // namespace

TEST_CASE("deps names the kernel that sums a gradient in the plan") {
    CHECK(kernel_of_table(700, {.head_dim = 64}) == "1 of 2");
    CHECK(kernel_of_table(700, {.head_dim = 128}) == "1 of 2");
    CHECK(kernel_of_table(16000, {.head_dim = 64}) == "1 of 2");
    CHECK(kernel_of_table(16000, {.head_dim = 128}) == "2 of 2"); // the first has no room
    CHECK(kernel_of_table(700, {.head_dim = 64, .deterministic = true}).empty());
    CHECK(
        kernel_of_table(700, {.head_dim = 64, .backward_kernel = BackwardKernel::generic}).empty());
}
