#include "support/usual_types.h"

#include <algorithm>
#include <array>
#include <string>

namespace flexc::support {

namespace {

struct Synonym {
    std::string_view from, to;
};

constexpr auto kUsualTypes = std::to_array<Synonym>({
    {"float64", "f64"},   {"double", "f64"},
    {"float32", "f32"},   {"float", "f32"},
    {"fp32", "f32"},      {"float16", "f16"},
    {"half", "f16"},      {"fp16", "f16"},
    {"bfloat16", "bf16"}, {"int64", "i64"},
    {"long", "i64"},      {"int32", "i32"},
    {"int", "i32"},       {"int16", "i16"},
    {"short", "i16"},     {"int8", "i8"},
    {"uint8", "u8"},      {"byte", "u8"},
    {"boolean", "bool"},  {"i1", "bool"},
    {"tensor", "f32"},    {"float8_e4m3fn", "e4m3"},
    {"fp8_e4m3", "e4m3"}, {"float8_e5m2", "e5m2"},
    {"fp8_e5m2", "e5m2"},
});

} // namespace

std::string_view usual_type(std::string_view name) {
    std::string lower(name);
    for (char& c : lower)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
    const auto* row = std::find_if(kUsualTypes.begin(), kUsualTypes.end(),
                                   [&](const Synonym& entry) { return entry.from == lower; });
    return row != kUsualTypes.end() ? row->to : std::string_view();
}

} // namespace flexc::support
