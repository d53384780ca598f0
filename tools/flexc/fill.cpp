#include "flexc/fill.h"

#include <algorithm>
#include <bit>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>

#include "flexc/command.h"
#include "flexc/host_memory.h"
#include "flexc/mod_option.h"
#include "support/amounts.h"
#include "support/floats.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

// Random contents repeat after this many elements (a prime, so that no tile sees its own again in
// step): drawing each of 10^8 numbers would take longer than the benchmark.
constexpr std::size_t kPeriod = 1'048'573;

// Stops at the ends of the type, where a conversion would be undefined.
template <typename Integer> void store_integer(std::byte* out, double value) {
    constexpr auto kLeast = std::numeric_limits<Integer>::min();
    constexpr auto kMost = std::numeric_limits<Integer>::max();
    const auto stored = value >= static_cast<double>(kMost)    ? kMost
                        : value <= static_cast<double>(kLeast) ? kLeast
                                                               : static_cast<Integer>(value);
    std::memcpy(out, &stored, sizeof stored);
}
template <typename Stored> void store_as(std::byte* out, Stored stored) {
    std::memcpy(out, &stored, sizeof stored);
}

} // namespace

void store(std::byte* out, DType dtype, double value) {
    switch (dtype) {
    case DType::f64: return store_as(out, value);
    case DType::f32: return store_as(out, static_cast<float>(value));
    case DType::f16: return store_as(out, support::F16::narrow(static_cast<float>(value)));
    case DType::bf16: return store_as(out, support::Bf16::narrow(static_cast<float>(value)));
    case DType::i64: return store_integer<std::int64_t>(out, value);
    case DType::i32: return store_integer<std::int32_t>(out, value);
    case DType::i16: return store_integer<std::int16_t>(out, value);
    case DType::i8: return store_integer<std::int8_t>(out, value);
    case DType::u8: return store_integer<std::uint8_t>(out, value);
    case DType::boolean: return store_as(out, static_cast<std::uint8_t>(value != 0));
    case DType::e4m3: return store_as(out, support::E4m3::narrow(static_cast<float>(value)));
    case DType::e5m2: return store_as(out, support::E5m2::narrow(static_cast<float>(value)));
    }
}

namespace {

std::function<double()> generator(const FillSpec& spec, std::uint64_t seed) {
    auto random = std::make_shared<std::mt19937_64>(seed);
    switch (spec.kind) {
    case FillSpec::Kind::normal:
        return [random, normal = std::normal_distribution<double>(0, 1),
                std = spec.first]() mutable { return std * normal(*random); };
    case FillSpec::Kind::uniform:
        return [random, uniform = std::uniform_real_distribution<double>(
                            spec.first, spec.second)]() mutable { return uniform(*random); };
    case FillSpec::Kind::index:
        return [random, index = std::uniform_int_distribution<std::int64_t>(
                            0, static_cast<std::int64_t>(spec.first) - 1)]() mutable {
            return static_cast<double>(index(*random));
        };
    case FillSpec::Kind::list:
        return
            [list = spec.list, at = std::size_t{0}]() mutable { return list[at++ % list.size()]; };
    case FillSpec::Kind::segments:
    case FillSpec::Kind::constant: break;
    }
    return [value = spec.first] { return value; };
}

} // namespace

std::int64_t parse_count(const std::string& text, std::string_view what) {
    std::int64_t count = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), count);
    if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size() ||
        text.front() == '0' || count < 1 || count > (std::int64_t{1} << 30)) {
        fail_usage(formatted("{}: '{}' is not a whole number from 1 to 2^30", what, text));
    }
    return count;
}

std::string default_fill(const BufferInfo& buffer) {
    return is_float(buffer.dtype) ? "normal:0.1" : "const:0";
}

std::vector<std::int64_t> buffer_shape(const BufferInfo& buffer,
                                       const std::map<std::string, std::int64_t>& sizes) {
    std::vector<std::int64_t> shape;
    for (const auto& dim : buffer.dims) {
        if (const auto known = sizes.find(dim); known != sizes.end()) {
            shape.push_back(known->second);
        } else if (std::isdigit(static_cast<unsigned char>(dim.front())) != 0) {
            shape.push_back(parse_count(dim, "buffer " + buffer.name));
        } else {
            fail_usage(formatted("buffer {} has a dim {}; say how long with --dim {}=N",
                                 buffer.name, dim, dim));
        }
    }
    return shape;
}

FillSpec parse_fill(const std::string& text) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
        c == ':' ? void(parts.emplace_back()) : parts.back().push_back(c);
    }
    const auto bad = [&] {
        fail_usage(formatted("--fill '{}': expected normal:STD, uniform:LO:HI, index:N, "
                             "segments:LEN, list:X:Y:... or const:X",
                             text));
    };
    const auto number = [&](std::size_t i) { return parse_number(parts[i], "--fill " + text); };
    const auto finite = [&](std::size_t i) {
        if (std::isinf(number(i))) {
            fail_usage(formatted("--fill '{}': {} is not finite", text, parts[i]));
        }
        return number(i);
    };
    const auto& kind = parts[0];
    if (kind == "normal" && parts.size() <= 2) {
        return {FillSpec::Kind::normal, parts.size() == 2 ? finite(1) : 0.1, 0};
    }
    if (kind == "uniform" && parts.size() == 3 && finite(1) < finite(2)) {
        return {FillSpec::Kind::uniform, number(1), number(2)};
    }
    if (kind == "index" && parts.size() == 2 && number(1) >= 1 && number(1) < 0x1p53) {
        return {FillSpec::Kind::index, number(1), 0};
    }
    if (kind == "segments" && parts.size() == 2 && finite(1) >= 1 && number(1) < 0x1p53) {
        return {FillSpec::Kind::segments, std::floor(number(1)), 0};
    }
    if (kind == "const" && parts.size() == 2) {
        return {FillSpec::Kind::constant, number(1), 0};
    }
    if (kind == "list" && parts.size() >= 2) {
        FillSpec spec{.kind = FillSpec::Kind::list};
        for (std::size_t i = 1; i < parts.size(); ++i) {
            spec.list.push_back(number(i));
        }
        return spec;
    }
    bad();
    return {};
}

std::vector<std::byte> make_contents(const FillSpec& spec, DType dtype,
                                     std::span<const std::int64_t> shape, std::uint64_t seed) {
    const auto width = size_of(dtype);
    auto size = width;
    for (const auto extent : shape) {
        size = support::times(size, static_cast<std::size_t>(extent));
    }
    require(check_host_memory(size, formatted("a tensor of shape [{}]", joined(shape, ", "))));
    const auto elements = size / width;
    std::vector<std::byte> bytes(size);
    if (spec.kind == FillSpec::Kind::segments) {
        const auto row = shape.empty() ? 1 : static_cast<std::size_t>(shape.back());
        const auto length = static_cast<std::size_t>(spec.first);
        for (std::size_t i = 0; i < elements; ++i) {
            const std::size_t segment = i % row / length;
            store(&bytes[i * width], dtype, static_cast<double>(segment));
        }
        return bytes;
    }
    const auto next = generator(spec, seed);
    const auto period = kPeriod - kPeriod % std::max<std::size_t>(spec.list.size(), 1);
    const auto drawn = std::min(elements, period);
    for (std::size_t i = 0; i < drawn; ++i) {
        store(&bytes[i * width], dtype, next());
    }
    for (std::size_t done = drawn; done < elements; done += drawn) {
        std::memcpy(&bytes[done * width], bytes.data(), std::min(drawn, elements - done) * width);
    }
    return bytes;
}

} // namespace flexc::cli
