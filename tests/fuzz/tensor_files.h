// Tensor files: made, changed and opened.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "fuzz.h"

namespace flexc::fuzz {

// As an entry of the header.
nlohmann::json tensor_entry(const char* type, std::vector<std::uint64_t> shape, std::uint64_t begin,
                            std::uint64_t end);
std::string file_of(const std::string& header, const std::string& data);
// Changes of the header as JSON, as text or as bytes, and of how much data there is.
std::string mutate_file(const std::string& input, const Corpus& corpus, Random& random);

// A file in memory that can be opened by its path.
class MemoryFile {
  public:
    explicit MemoryFile(std::string_view bytes);
    MemoryFile(const MemoryFile&) = delete;
    MemoryFile& operator=(const MemoryFile&) = delete;
    ~MemoryFile();
    std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

  private:
    int descriptor_;
};

} // namespace flexc::fuzz
