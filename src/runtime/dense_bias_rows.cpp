#include "runtime/dense_bias_rows.h"

#include <algorithm>
#include <bit>
#include <span>
#include <utility>

namespace flexc::runtime {

namespace {

constexpr std::uint64_t kRowAlignment = 16;

// Whether so many elements end at aligned bytes. Strides may be negative; unsigned arithmetic tells
// multiples of a power of two even so.
bool is_aligned(const plan::CopiedBias& bias, std::uint64_t elements) {
    return elements * bias.element_bytes % kRowAlignment == 0;
}

bool has_aligned_rows(const plan::CopiedBias& bias, const Call& call) {
    const auto [heads, keys] =
        std::pair(std::span(bias.strides).first(bias.strides.size() - 1), bias.strides.back());
    return call.words[bias.data] % kRowAlignment == 0 && call.words[keys] == 1 &&
           is_aligned(bias, static_cast<std::uint64_t>(call.attention.kv_len)) &&
           is_aligned(bias, static_cast<std::uint64_t>(call.attention.kv_offset)) &&
           std::ranges::all_of(
               heads, [&](std::size_t word) { return is_aligned(bias, call.words[word]); });
}

} // namespace

std::optional<cuda::BiasLayout> rows_of(const plan::CopiedBias& bias, const Call& call) {
    const auto word = [&](std::size_t index) {
        return static_cast<std::int64_t>(call.words[index]);
    };
    const std::size_t keys = bias.strides.size() - 1;
    std::int64_t step = 0;
    for (std::size_t dim = 0; dim < keys; ++dim) {
        if (!bias.by_query[dim]) continue;
        if (step != 0) return {};
        step = word(bias.strides[dim]);
    }
    if (step <= 0 || word(bias.strides[keys]) != 1) return {};
    // TMA faults where a box does not begin at aligned bytes.
    if (!is_aligned(bias, static_cast<std::uint64_t>(call.attention.kv_offset))) return {};
    // Distance from the first element of the bias to the last: columns within a row, and rows.
    std::int64_t columns = 0, rows = 0;
    for (std::size_t dim = 0; dim <= keys; ++dim) {
        const std::int64_t stride = word(bias.strides[dim]);
        const std::int64_t steps = word(bias.extents[dim]) - 1;
        if (stride < 0 || steps < 0) return {};
        if (steps == 0) continue;
        if (stride % step == 0) {
            rows += steps * (stride / step);
        } else {
            if (dim != keys && !is_aligned(bias, call.words[bias.strides[dim]])) return {};
            columns += steps * stride;
        }
    }
    if (columns >= step) return {};
    return cuda::BiasLayout{.data = std::bit_cast<void*>(call.words[bias.data]),
                            .element_bytes = static_cast<int>(bias.element_bytes),
                            .columns = static_cast<std::uint64_t>(columns + 1),
                            .rows = static_cast<std::uint64_t>(rows + 1),
                            .row_step = static_cast<std::uint64_t>(step)};
}

bool have_aligned_rows(const std::vector<plan::CopiedBias>& biases, const Call& call) {
    return std::ranges::all_of(
        biases, [&](const plan::CopiedBias& bias) { return has_aligned_rows(bias, call); });
}

} // namespace flexc::runtime
