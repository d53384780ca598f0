// Numbers of eight bits become 16-bit floats as kernels widen them, on the host.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include <doctest/doctest.h>

#include "api/tensor.h"
#include "cuda/names.h"
#include "host_module.h"

namespace {

using namespace flexc;

using Function = void(unsigned four, unsigned* pairs);

constexpr std::string_view kText = R"(
#include "common/eight_bits.cuh"
template <typename Narrow, typename Wide> void widen(unsigned four, unsigned* pairs) {
    const WidePairs wide = Widening<Narrow, Wide>::of(four);
    pairs[0] = wide.first;
    pairs[1] = wide.second;
}
)";

double expected(DType dtype, unsigned code) {
    return dtype == DType::i8 ? static_cast<std::int8_t>(code) : test::from_eight_bits(dtype, code);
}

} // namespace

TEST_CASE("numbers of eight bits are widened exactly, each in its place") {
    std::string text(kText);
    const std::array narrow = {DType::e4m3, DType::e5m2, DType::i8};
    const std::array wide = {DType::f16, DType::bf16};
    for (const DType from : narrow)
        for (const DType to : wide)
            text += "extern \"C\" void " + std::string(name(from)) + "_" + std::string(name(to)) +
                    "(unsigned four, unsigned* pairs) { widen<" +
                    std::string(cuda::element_type(from)) + ", " +
                    std::string(cuda::element_type(to)) + ">(four, pairs); }\n";
    const test::HostModule module(text);
    for (const DType from : narrow)
        for (const DType to : wide) {
            auto* const widen =
                module.function<Function>(std::string(name(from)) + "_" + std::string(name(to)));
            int wrong = 0;
            for (unsigned code = 0; code < 256; ++code) {
                const std::array<unsigned, 4> codes = {code, code ^ 0xffu, 255 - code / 2,
                                                       code * 7 & 0xffu};
                std::array<unsigned, 2> pairs{};
                widen(codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24, pairs.data());
                for (std::size_t i = 0; i < 4; ++i) {
                    const auto bits = static_cast<std::uint16_t>(pairs[i / 2] >> i % 2 * 16);
                    const double got = to == DType::bf16
                                           ? static_cast<double>(test::from_bf16(bits))
                                           : static_cast<double>(std::bit_cast<_Float16>(bits));
                    const double should = expected(from, codes[i]);
                    wrong += got != should && !(std::isnan(got) && std::isnan(should));
                }
            }
            CHECK_MESSAGE(wrong == 0, name(from), " to ", name(to));
        }
}
