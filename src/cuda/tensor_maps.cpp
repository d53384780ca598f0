#include "cuda/tensor_maps.h"

#include <algorithm>
#include <array>
#include <initializer_list>

#include "cuda/driver_api.h"

namespace flexc::cuda {

namespace {

// CUtensorMapDataType, CUtensorMapSwizzle, CUtensorMapL2promotion.
constexpr int kBits16 = 1, kBits32 = 2, kFloat16 = 6, kBfloat16 = 9, kSwizzle128 = 3,
              kPromote256 = 3;
constexpr unsigned kBoxColumns = 64, kBoxBytes = 128;
constexpr unsigned kOutputRows = 16;
constexpr std::uint64_t kAlignment = 16, kElementBytes = 2;
constexpr std::uint64_t kStrideLimit = std::uint64_t{1} << 40;
constexpr std::uint64_t kCoordinateLimit = std::uint64_t{1} << 31;

struct Extents {
    int columns;
    long long rows;
    int heads, batch;
};

struct Walk {
    std::array<std::uint64_t, 4> dims;
    std::array<std::uint64_t, 3> strides; // in bytes
};

// Returns the dims and strides for a map; nothing if TMA cannot address the tensor. The driver
// checks most of this too, but which errors it reports is not specified.
std::optional<Walk> walk_of(const TensorArgument& tensor, const Extents& extents) {
    if (tensor.stride_d != 1 || reinterpret_cast<std::uintptr_t>(tensor.data) % kAlignment != 0)
        return {};
    Walk walk{{static_cast<std::uint64_t>(extents.columns),
               static_cast<std::uint64_t>(extents.rows), static_cast<std::uint64_t>(extents.heads),
               static_cast<std::uint64_t>(extents.batch)},
              {}};
    if (walk.dims[1] > kCoordinateLimit) return {};
    const std::array<long long, 3> steps = {tensor.stride_s, tensor.stride_h, tensor.stride_b};
    for (std::size_t i = 0; i < walk.strides.size(); ++i) {
        // The stride of a dim with a single entry is never used.
        if (walk.dims[i + 1] == 1) {
            walk.strides[i] = kAlignment;
            continue;
        }
        if (steps[i] <= 0) return {};
        walk.strides[i] = static_cast<std::uint64_t>(steps[i]) * kElementBytes;
        if (walk.strides[i] % kAlignment != 0 || walk.strides[i] >= kStrideLimit) return {};
    }
    return walk;
}

bool encode(const DriverApi& api, const TensorArgument& tensor, const Extents& extents, int type,
            unsigned box_rows, TensorMap& map) {
    const auto walk = walk_of(tensor, extents);
    if (!walk) return false;
    const std::array<std::uint32_t, 4> box = {kBoxColumns, box_rows, 1, 1}, every = {1, 1, 1, 1};
    return api.tensor_map(&map, type, walk->dims.size(), tensor.data, walk->dims.data(),
                          walk->strides.data(), box.data(), every.data(), 0, kSwizzle128,
                          kPromote256, 0) == kDriverSuccess;
}

int tensor_map_type(DType dtype) { return dtype == DType::bf16 ? kBfloat16 : kFloat16; }

struct Shapes {
    static constexpr int kSomeRows = 2,
                         kSomeEntries = 2; // of keys that are not in order, which have no map
    Extents q, k, v, o;

    Shapes(const AttentionArguments& arguments, const TensorForm& form)
        : q{form.head_dim, arguments.q_len, arguments.heads, arguments.batch},
          k{form.head_dim, arguments.kv_len, arguments.kv_heads, arguments.batch} {
        if (form.is_ragged) {
            // A map must have at least one row.
            q.rows = std::max(arguments.q_rows, 1LL);
            k.rows = std::max(arguments.kv_rows, 1LL);
            q.batch = k.batch = 1;
        }
        if (!form.keys_are_in_order)
            k = {form.head_dim, kSomeRows, arguments.kv_heads, kSomeEntries};
        v = {form.head_dim_v, k.rows, k.heads, k.batch};
        o = {form.head_dim_v, q.rows, q.heads, q.batch};
    }
};

// Encodes the maps of queries, keys and values, of which both passes load whole tiles. Keys and
// values that threads copy have none.
template <typename Maps>
bool encode_inputs(const DriverApi& api, const plan::KernelConfig& config, bool loads_keys,
                   const AttentionArguments& arguments, const Shapes& shapes, int type,
                   Maps& maps) {
    const auto query_tile = static_cast<unsigned>(config.block.query_tile);
    const auto key_tile = static_cast<unsigned>(config.block.key_tile);
    if (!encode(api, arguments.q, shapes.q, type, query_tile, maps.q)) return false;
    if (!loads_keys) return true;
    return encode(api, arguments.k, shapes.k, type, key_tile, maps.k) &&
           encode(api, arguments.v, shapes.v, type, key_tile, maps.v);
}

// Whether floats can be written to the tensor in pairs.
bool takes_pairs(const TensorArgument& tensor) {
    constexpr std::uint64_t kPair = 2 * sizeof(float);
    return tensor.stride_d == 1 && reinterpret_cast<std::uintptr_t>(tensor.data) % kPair == 0 &&
           tensor.stride_s % 2 == 0 && tensor.stride_h % 2 == 0 && tensor.stride_b % 2 == 0;
}

struct Named {
    std::string_view name;
    const TensorArgument* tensor;
    Extents extents;
};
std::string_view first_that_tma_cannot_take(std::initializer_list<Named> tensors) {
    for (const Named& one : tensors)
        if (!walk_of(*one.tensor, one.extents)) return one.name;
    return "";
}

} // namespace

std::string_view forward_tensor_without_tma(const AttentionArguments& arguments,
                                            const TensorForm& form) {
    const Shapes shapes(arguments, form);
    if (const std::string_view name = first_that_tma_cannot_take({{"q", &arguments.q, shapes.q},
                                                                  {"k", &arguments.k, shapes.k},
                                                                  {"v", &arguments.v, shapes.v}});
        !name.empty())
        return name;
    if ((arguments.o_flags & kOutputF32) != 0) return takes_pairs(arguments.o) ? "" : "o";
    return first_that_tma_cannot_take({{"o", &arguments.o, shapes.o}});
}

std::string_view backward_tensor_without_tma(const AttentionArguments& arguments,
                                             const TensorForm& form) {
    const Shapes shapes(arguments, form);
    if (const std::string_view name =
            first_that_tma_cannot_take({{"q", &arguments.q, shapes.q},
                                        {"k", &arguments.k, shapes.k},
                                        {"v", &arguments.v, shapes.v},
                                        {"d_out", &arguments.d_out, shapes.o}});
        !name.empty())
        return name;
    if ((arguments.dk_flags & kOutputF32) == 0 && !walk_of(arguments.dk, shapes.k)) return "dk";
    if ((arguments.dv_flags & kOutputF32) == 0 && !walk_of(arguments.dv, shapes.v)) return "dv";
    return "";
}

std::optional<ForwardTensorMaps> forward_maps(const plan::KernelConfig& config, bool loads_keys,
                                              const AttentionArguments& arguments, DType dtype,
                                              const TensorForm& form) {
    const Result<DriverApi>& api = driver_api();
    if (!api || api->tensor_map == nullptr) return {};
    const Shapes shapes(arguments, form);
    const int type = tensor_map_type(dtype);
    ForwardTensorMaps maps{};
    if (!encode_inputs(*api, config, loads_keys, arguments, shapes, type, maps)) return {};
    if ((arguments.o_flags & kOutputF32) != 0) {
        // Floats are not written through a map; the kernel's prefetch still needs one.
        maps.o = maps.q;
        return takes_pairs(arguments.o) ? std::optional(maps) : std::nullopt;
    }
    if (!encode(*api, arguments.o, shapes.o, type, kOutputRows, maps.o)) return {};
    return maps;
}

void add_bias_tensor_map(const plan::KernelConfig& config, const BiasLayout& biases,
                         ForwardTensorMaps& maps) {
    const Result<DriverApi>& api = driver_api();
    const std::uint64_t stride = biases.row_step * static_cast<unsigned>(biases.element_bytes);
    if (!api || config.block.key_tile * biases.element_bytes % static_cast<int>(kBoxBytes) != 0 ||
        reinterpret_cast<std::uintptr_t>(biases.data) % kAlignment != 0 ||
        stride % kAlignment != 0 || stride >= kStrideLimit || biases.rows > kCoordinateLimit ||
        biases.columns > kCoordinateLimit)
        return;
    const std::array<std::uint64_t, 2> dims = {biases.columns, biases.rows};
    const std::array<std::uint32_t, 2> every = {1, 1},
                                       box = {kBoxBytes /
                                                  static_cast<unsigned>(biases.element_bytes),
                                              static_cast<unsigned>(config.block.query_tile)};
    if (api->tensor_map(&maps.biases, biases.element_bytes == 2 ? kBits16 : kBits32, dims.size(),
                        biases.data, dims.data(), &stride, box.data(), every.data(), 0, kSwizzle128,
                        kPromote256, 0) != kDriverSuccess)
        return;
    maps.biases_from = biases.data;
    maps.bias_row_step = static_cast<long long>(biases.row_step);
}

std::optional<BackwardTensorMaps> backward_maps(const plan::KernelConfig& config,
                                                const AttentionArguments& arguments, DType dtype,
                                                const TensorForm& form) {
    const Result<DriverApi>& api = driver_api();
    if (!api || api->tensor_map == nullptr) return {};
    const Shapes shapes(arguments, form);
    const int type = tensor_map_type(dtype);
    BackwardTensorMaps maps;
    if (!encode_inputs(*api, config, true, arguments, shapes, type, maps) ||
        !encode(*api, arguments.d_out, shapes.o, type,
                static_cast<unsigned>(config.block.query_tile), maps.d_out))
        return {};
    // Rows that are written at once: a warpgroup's in a persistent kernel, else a warp's.
    const unsigned rows = config.block.is_persistent ? 4 * kOutputRows : kOutputRows;
    // Floats are not written through a map.
    maps.dk = maps.k;
    maps.dv = maps.v;
    if ((arguments.dk_flags & kOutputF32) == 0 &&
        !encode(*api, arguments.dk, shapes.k, type, rows, maps.dk))
        return {};
    if ((arguments.dv_flags & kOutputF32) == 0 &&
        !encode(*api, arguments.dv, shapes.v, type, rows, maps.dv))
        return {};
    return maps;
}

} // namespace flexc::cuda
