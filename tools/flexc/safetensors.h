// Reading and writing tensor files in the safetensors format: eight bytes of header length, a JSON
// header, then the data of all tensors with neither gaps nor overlaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/result.h"
#include "flexc/types.h"

namespace flexc::cli {

struct TensorEntry {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    std::uint64_t begin = 0, end = 0; // in the data section
};

std::string describe_shape(std::span<const std::int64_t> shape); // "[2, 4, 8]"

// Everything the header says has been checked against the file before open() returns.
class TensorFile {
  public:
    static Result<TensorFile> open(const std::string& path);
    TensorFile(TensorFile&& other) noexcept;
    TensorFile& operator=(TensorFile&& other) noexcept;
    ~TensorFile();

    const std::string& path() const { return path_; }
    const std::vector<TensorEntry>& entries() const { return entries_; }
    const TensorEntry* find(std::string_view name) const;
    Result<std::vector<std::byte>> read(const TensorEntry& entry) const;
    // From a byte of the tensor on, as many as `to` holds.
    Result<void> read(const TensorEntry& entry, std::uint64_t begin, std::span<std::byte> to) const;

  private:
    TensorFile() = default;
    int descriptor_ = -1;
    std::string path_;
    std::uint64_t data_start_ = 0;
    std::vector<TensorEntry> entries_;
};

// The tensors that a header declares; data_bytes is what the file holds after it.
Result<std::vector<TensorEntry>> parse_header(std::string_view header, std::uint64_t data_bytes);

struct OutputTensor {
    std::string name;
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    std::vector<std::byte> bytes;
};

// Whole or not at all.
Result<void> write_tensors(const std::string& path, std::span<const OutputTensor> tensors);

} // namespace flexc::cli
