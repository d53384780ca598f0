#include <nlohmann/json.hpp>

#include "flexc/safetensors.h"
#include "flexc/whole_file.h"

namespace flexc::cli {
namespace {

std::string_view type_name(DType dtype) {
    switch (dtype) {
    case DType::f64: return "F64";
    case DType::f32: return "F32";
    case DType::f16: return "F16";
    case DType::bf16: return "BF16";
    case DType::i64: return "I64";
    case DType::i32: return "I32";
    case DType::i16: return "I16";
    case DType::i8: return "I8";
    case DType::u8: return "U8";
    case DType::boolean: return "BOOL";
    case DType::e4m3: return "F8_E4M3";
    case DType::e5m2: return "F8_E5M2";
    }
    return "";
}

// Eight bytes of length and the header, padded so that the data starts on a multiple of eight.
std::string header_of(std::span<const OutputTensor> tensors) {
    nlohmann::ordered_json header = nlohmann::ordered_json::object();
    std::uint64_t offset = 0;
    for (const auto& tensor : tensors) {
        header[tensor.name] = {{"dtype", type_name(tensor.dtype)},
                               {"shape", tensor.shape},
                               {"data_offsets", {offset, offset + tensor.bytes.size()}}};
        offset += tensor.bytes.size();
    }
    auto text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    std::string length;
    for (int byte = 0; byte < 8; ++byte) {
        length += static_cast<char>(text.size() >> (8 * byte) & 0xff);
    }
    return length + text;
}

} // namespace

Result<void> write_tensors(const std::string& path, std::span<const OutputTensor> tensors) {
    const auto header = header_of(tensors);
    std::vector<std::string_view> parts{header};
    for (const auto& tensor : tensors) {
        parts.emplace_back(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    }
    return write_whole_file(path, parts);
}

} // namespace flexc::cli
