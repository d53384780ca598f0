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

// e4m3 and e5m2 are 8-bit types, for keys and values only. e4m3 has NaN, but no infinity.
enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean, e4m3, e5m2 };

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

// Threads for kernels on the CPU. Results do not depend on them.
struct CpuThreads {
    int count = 0; // at most so many at a time; 0: as many as the kernel has
    // Calls work(context, i) for each i from 0 to count - 1, in any order on any threads, and
    // returns when all have returned; neither throws. Null: flexc's own threads, by oneTBB.
    void (*parallel_for)(void* user, int count, void (*work)(void* context, int index),
                         void* context) = nullptr;
    void* user = nullptr; // must live as long as the plan
};

inline constexpr int kMaxDims = 8;
inline constexpr int kMaxHeadDim = 256;
// Limit on a tensor's elements, and on the distance from its first to its last in memory. A call
// fails if a tensor exceeds it, or has a rank outside of 0 to kMaxDims.
inline constexpr std::int64_t kMaxTensorElements = std::int64_t{1} << 48;

// A view of memory that the caller owns: on the CPU a host pointer, on CUDA a device pointer.
// Strides are in elements and may be zero or negative; data == nullptr means "not given".
struct TensorView {
    void* data = nullptr;
    DType dtype = DType::f32;
    int rank = 0;
    std::array<std::int64_t, kMaxDims> shape{};
    std::array<std::int64_t, kMaxDims> strides{};
    bool is_read_only = false; // a call that would write to it refuses it

    static TensorView contiguous(void* data, DType dtype, std::span<const std::int64_t> shape);
    static TensorView contiguous(void* data, DType dtype,
                                 std::initializer_list<std::int64_t> shape) {
        return contiguous(data, dtype, std::span(shape.begin(), shape.size()));
    }
    // Contiguous too, for an input that the caller may not write to.
    static TensorView read_only(const void* data, DType dtype, std::span<const std::int64_t> shape);
    static TensorView read_only(const void* data, DType dtype,
                                std::initializer_list<std::int64_t> shape) {
        return read_only(data, dtype, std::span(shape.begin(), shape.size()));
    }
    explicit operator bool() const { return data != nullptr; }
    std::int64_t elements() const; // INT64_MAX where there are more, 0 for a rank beyond kMaxDims
};

struct NamedTensor {
    std::string_view name;
    TensorView tensor;
};

} // namespace flexc
