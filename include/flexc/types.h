// Element types, devices and tensor views.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace flexc {

enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

std::string_view name(DType dtype); // "f32", "bool", ...
std::size_t size_of(DType dtype);   // bytes
bool is_float(DType dtype);
bool parse_dtype(std::string_view text, DType& dtype);

struct Device {
    enum class Kind : std::uint8_t { automatic, cpu, cuda };
    Kind kind = Kind::automatic;
    int index = 0;

    static Device cpu() { return {Kind::cpu, 0}; }
    static Device cuda(int index = 0) { return {Kind::cuda, index}; }
};

inline constexpr int kMaxDims = 8;

// A view of memory that the caller owns: on the CPU a host pointer, on CUDA a device pointer.
// Strides are in elements and may be zero or negative; data == nullptr means "not given".
struct TensorView {
    void* data = nullptr;
    DType dtype = DType::f32;
    int rank = 0;
    std::array<std::int64_t, kMaxDims> shape{};
    std::array<std::int64_t, kMaxDims> strides{};

    static TensorView contiguous(void* data, DType dtype, std::span<const std::int64_t> shape);
    static TensorView contiguous(void* data, DType dtype,
                                 std::initializer_list<std::int64_t> shape) {
        return contiguous(data, dtype, std::span(shape.begin(), shape.size()));
    }
    explicit operator bool() const { return data != nullptr; }
    std::int64_t elements() const;
};

struct NamedTensor {
    std::string_view name;
    TensorView tensor;
};

} // namespace flexc
