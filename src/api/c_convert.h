// The C ABI's structs as the C++ API's values. Structs of another version's size are understood as
// long as what is not known here is zero.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flexc/flexc.h"
#include "flexc/flexc_c.h"

namespace flexc::api {

// No struct of ours will be that large: a struct_size above it was never set.
inline constexpr std::uint32_t kLargestStruct = 4096;

Error invalid(std::string message);

template <typename Struct> Result<Struct> read_struct(const Struct* given, const char* what) {
    if (given == nullptr) return invalid(std::string(what) + " is NULL");
    const std::uint32_t size = given->struct_size;
    if (size < sizeof(std::uint32_t) || size > kLargestStruct)
        return invalid(std::string(what) + ": struct_size is not set");
    // Otherwise a part of a pointer would be read.
    if (size % alignof(Struct) != 0)
        return invalid(std::string(what) + ": struct_size is not the size of a struct");
    const auto* bytes = reinterpret_cast<const unsigned char*>(given);
    for (std::uint32_t at = sizeof(Struct); at < size; ++at)
        if (bytes[at] != 0)
            return Error{ErrorCode::unsupported,
                         std::string(what) + " uses a field that this version of flexc lacks"};
    Struct result{};
    std::memcpy(&result, given, std::min<std::size_t>(size, sizeof(Struct)));
    return result;
}

// Fills as much of the caller's struct as the caller has.
template <typename Struct> Result<void> fill_struct(Struct* out, Struct value, const char* what) {
    if (auto known = read_struct(out, what); !known && known.error().code != ErrorCode::unsupported)
        return known.error();
    value.struct_size = out->struct_size;
    std::memcpy(out, &value, std::min<std::size_t>(out->struct_size, sizeof(Struct)));
    return {};
}

// Element i of an array whose elements have the size that the first one states.
template <typename Struct>
Result<Struct> read_element(const Struct* array, std::size_t index, const char* what) {
    if (array == nullptr) return invalid(std::string(what) + " is NULL");
    const auto* bytes = reinterpret_cast<const unsigned char*>(array);
    return read_struct(
        reinterpret_cast<const Struct*>(bytes + index * std::size_t{array->struct_size}), what);
}

template <typename Enum>
Result<Enum> read_enum(std::int32_t given, std::int32_t last, const char* what) {
    if (given < 0 || given > last)
        return invalid(std::string(what) + " has no value " + std::to_string(given));
    return static_cast<Enum>(given);
}

std::string text_or(const char* given, std::string fallback);

// The token of a flexc_cancel_token, which only the C ABI has.
CancelToken token_of(const flexc_cancel_token* token);
Result<CompileOptions> read_options(const flexc_compile_options* given);
Result<Device> read_device(std::int32_t device, std::int32_t index);
Result<Sizes> read_sizes(const flexc_sizes* given);
Result<MaskTiles> read_mask_tile(const flexc_mask_tile* given);
Result<TensorView> read_tensor(const flexc_tensor* given, const char* what);
Result<std::vector<NamedTensor>> read_tensors(const flexc_named_tensor* given, std::size_t count);
Result<ForwardTensors> read_forward(const flexc_forward_tensors* given);
Result<BackwardTensors> read_backward(const flexc_backward_tensors* given);
Result<Lengths> read_lengths(const flexc_lengths* given);
Result<LengthTensors> read_length_tensors(const flexc_length_tensors* given);
Result<Workspace> read_workspace(const flexc_workspace* given);

Result<std::vector<ParamValue>> read_params(const flexc_param_value* given, std::size_t count);

// The options, and the storage that they point into.
struct ReadPlanOptions {
    std::vector<ParamValue> params;
    std::unique_ptr<const ForwardTensors> forward; // these two where options says so
    std::unique_ptr<const BackwardTensors> backward;
    PlanOptions options;
};
Result<ReadPlanOptions> read_plan_options(const flexc_plan_options* given);

std::int32_t to_c(DType dtype);
std::int32_t to_c(ErrorCode code);
std::int32_t to_c(Device::Kind kind);

} // namespace flexc::api
