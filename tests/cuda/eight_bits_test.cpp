// Numbers of eight bits become f16 as kernels widen them, on the host.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>

#include <doctest/doctest.h>

#include "api/tensor.h"
#include "cuda/names.h"
#include "host_module.h"
#include "support/text.h"

namespace {

using namespace flexc;

using Function = void(unsigned four, unsigned* pairs);

constexpr std::string_view kText = R"(
#include "common/eight_bits.cuh"
template <typename Narrow> void store(unsigned four, unsigned* pairs) {
    const F16Pairs wide = widen<Narrow>(four);
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
    constexpr std::array kTypes = {DType::e4m3, DType::e5m2, DType::i8};
    for (const DType dtype : kTypes)
        text += formatted("extern \"C\" void {}(unsigned four, unsigned* pairs) {{ "
                          "store<{}>(four, pairs); }}\n",
                          name(dtype), cuda::element_type(dtype));
    const test::HostModule module(text);
    for (const DType dtype : kTypes) {
        auto* const widen = module.function<Function>(std::string(name(dtype)));
        int wrong = 0;
        for (unsigned code = 0; code < 256; ++code) {
            const std::array<unsigned, 4> codes = {code, 255 - code, code ^ 0x80u,
                                                   code * 7 & 0xffu};
            std::array<unsigned, 2> pairs{};
            widen(codes[0] | codes[1] << 8 | codes[2] << 16 | codes[3] << 24, pairs.data());
            for (std::size_t i = 0; i < 4; ++i) {
                const auto bits = static_cast<std::uint16_t>(pairs[i / 2] >> i % 2 * 16);
                const auto got = static_cast<double>(std::bit_cast<_Float16>(bits));
                const double should = expected(dtype, codes[i]);
                wrong += got != should && !(std::isnan(got) && std::isnan(should));
            }
        }
        CHECK_MESSAGE(wrong == 0, name(dtype));
    }
}
