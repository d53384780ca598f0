#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "flexc/host_memory.h"
#include "flexc/safetensors.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;

Error bad(std::string message) { return {ErrorCode::io, std::move(message)}; }

struct TypeName {
    std::string_view text;
    DType dtype;
};
constexpr TypeName kTypes[] = {
    {"F64", DType::f64},      {"F32", DType::f32},      {"F16", DType::f16},
    {"BF16", DType::bf16},    {"I64", DType::i64},      {"I32", DType::i32},
    {"I16", DType::i16},      {"I8", DType::i8},        {"U8", DType::u8},
    {"BOOL", DType::boolean}, {"F8_E4M3", DType::e4m3}, {"F8_E5M2", DType::e5m2},
};

// nlohmann::json keeps the last of two equal keys; a file with two tensors of one name is refused.
// Its parser with a callback would look at all keys of an object after each value in it.
class DuplicateFinder : public json::json_sax_t {
  public:
    std::string duplicate;

    bool key(string_t& name) override {
        if (open_.back().insert(name).second) return true;
        duplicate = name;
        return false;
    }
    bool start_object(std::size_t) override {
        open_.emplace_back();
        return true;
    }
    bool end_object() override {
        open_.pop_back();
        return true;
    }
    bool null() override { return true; }
    bool boolean(bool) override { return true; }
    bool number_integer(number_integer_t) override { return true; }
    bool number_unsigned(number_unsigned_t) override { return true; }
    bool number_float(number_float_t, const string_t&) override { return true; }
    bool string(string_t&) override { return true; }
    bool binary(binary_t&) override { return true; }
    bool start_array(std::size_t) override { return true; }
    bool end_array() override { return true; }
    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
        return false;
    }

  private:
    std::vector<std::set<std::string>> open_;
};

// Whether a name may stand in a message: on a terminal, control characters could do anything.
bool is_printable(std::string_view tensor_name) {
    constexpr std::size_t kMostBytes = 1024;
    return tensor_name.size() <= kMostBytes && std::ranges::none_of(tensor_name, [](char c) {
               return std::iscntrl(static_cast<unsigned char>(c)) != 0;
           });
}

Error unprintable() {
    return bad("the name of a tensor has control characters, or more than 1,024 bytes");
}

// Unsigned, and small enough that sums of them cannot wrap.
std::optional<std::uint64_t> count_of(const json& value) {
    if (!value.is_number_unsigned()) {
        return std::nullopt;
    }
    const auto number = value.get<std::uint64_t>();
    if (number > (std::uint64_t{1} << 62)) {
        return std::nullopt;
    }
    return number;
}

Result<void> read_shape(const json& value, TensorEntry& entry) {
    if (!value.is_array()) {
        return bad(formatted("tensor '{}': expected \"shape\" to be a list", entry.name));
    }
    if (value.size() > static_cast<std::size_t>(kMaxDims)) {
        return bad(formatted("tensor '{}': {} dimensions, expected at most {}", entry.name,
                             value.size(), kMaxDims));
    }
    for (const auto& extent : value) {
        const auto count = count_of(extent);
        if (!count) {
            return bad(formatted("tensor '{}': shape holds {}, expected whole numbers from 0",
                                 entry.name, extent.dump()));
        }
        entry.shape.push_back(static_cast<std::int64_t>(*count));
    }
    return {};
}

Result<void> read_type(const json& value, TensorEntry& entry) {
    for (const auto& type : kTypes) {
        if (value == type.text) {
            entry.dtype = type.dtype;
            return {};
        }
    }
    return bad(
        formatted("tensor '{}': type {}, expected one of F64 F32 F16 BF16 I64 I32 I16 I8 U8 BOOL",
                  entry.name, value.dump()));
}

std::optional<std::uint64_t> byte_count(const TensorEntry& entry) {
    std::uint64_t bytes = size_of(entry.dtype);
    for (const auto extent : entry.shape) {
        if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes)) {
            return std::nullopt;
        }
    }
    return bytes;
}

Result<void> read_offsets(const json& value, std::uint64_t data_bytes, TensorEntry& entry) {
    std::optional<std::uint64_t> begin, end;
    if (value.is_array() && value.size() == 2) {
        begin = count_of(value[0]);
        end = count_of(value[1]);
    }
    if (!begin || !end || *begin > *end) {
        return bad(formatted("tensor '{}': data_offsets are {}, expected [begin, end]", entry.name,
                             value.dump()));
    }
    if (*end > data_bytes) {
        return bad(formatted(
            "tensor '{}': its data ends at byte {}, but the file holds only {} bytes of data "
            "(truncated?)",
            entry.name, *end, data_bytes));
    }
    const auto expected = byte_count(entry);
    if (!expected || *end - *begin != *expected) {
        return bad(formatted("tensor '{}': {} bytes of data, expected {} for {} {}", entry.name,
                             *end - *begin, expected ? std::to_string(*expected) : "more than 2^64",
                             name(entry.dtype), describe_shape(entry.shape)));
    }
    entry.begin = *begin;
    entry.end = *end;
    return {};
}

Result<TensorEntry> read_entry(const std::string& tensor_name, const json& value,
                               std::uint64_t data_bytes) {
    TensorEntry entry;
    entry.name = tensor_name;
    for (const char* key : {"dtype", "shape", "data_offsets"}) {
        if (!value.is_object() || !value.contains(key)) {
            return bad(formatted("tensor '{}': the header gives no \"{}\"", tensor_name, key));
        }
    }
    if (auto done = read_type(value["dtype"], entry); !done) {
        return done.error();
    }
    if (auto done = read_shape(value["shape"], entry); !done) {
        return done.error();
    }
    if (auto done = read_offsets(value["data_offsets"], data_bytes, entry); !done) {
        return done.error();
    }
    return entry;
}

// In file order, every byte belongs to exactly one tensor.
Result<void> check_layout(const std::vector<TensorEntry>& entries, std::uint64_t data_bytes) {
    std::vector<const TensorEntry*> ordered;
    for (const auto& entry : entries) {
        ordered.push_back(&entry);
    }
    std::sort(ordered.begin(), ordered.end(), [](const auto* left, const auto* right) {
        return std::pair(left->begin, left->end) < std::pair(right->begin, right->end);
    });
    std::uint64_t position = 0;
    const TensorEntry* previous = nullptr;
    for (const auto* entry : ordered) {
        if (entry->begin < position) {
            return bad(formatted("tensor '{}': its data overlaps that of '{}'", entry->name,
                                 previous->name));
        }
        if (entry->begin > position) {
            return bad(formatted("tensor '{}': its data begins at byte {}, expected {} "
                                 "(no bytes may lie between tensors)",
                                 entry->name, entry->begin, position));
        }
        position = entry->end;
        previous = entry;
    }
    if (position != data_bytes) {
        return bad(formatted("{} bytes of data, but the header declares {}", data_bytes, position));
    }
    return {};
}

Result<void> read_exactly(int descriptor, void* target, std::uint64_t bytes, std::uint64_t offset) {
    auto* out = static_cast<char*>(target);
    while (bytes > 0) {
        const auto count = ::pread(descriptor, out, std::min<std::uint64_t>(bytes, 1u << 30),
                                   static_cast<off_t>(offset));
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return bad(std::strerror(errno));
        }
        if (count == 0) {
            return bad("the file became shorter while it was read");
        }
        out += count;
        offset += static_cast<std::uint64_t>(count);
        bytes -= static_cast<std::uint64_t>(count);
    }
    return {};
}

} // namespace

std::string describe_shape(std::span<const std::int64_t> shape) {
    return formatted("[{}]", joined(shape, ", "));
}

Result<std::vector<TensorEntry>> parse_header(std::string_view header, std::uint64_t data_bytes) {
    DuplicateFinder finder;
    const bool well_formed = json::sax_parse(header.begin(), header.end(), &finder);
    if (!finder.duplicate.empty()) {
        return is_printable(finder.duplicate)
                   ? bad(formatted("tensor '{}': the header names it twice", finder.duplicate))
                   : unprintable();
    }
    const auto root =
        well_formed ? json::parse(header.begin(), header.end(), nullptr, false) : json();
    if (!root.is_object()) {
        return bad("the header is not a JSON object; is this a safetensors file?");
    }
    std::vector<TensorEntry> entries;
    for (const auto& [key, value] : root.items()) {
        if (key == "__metadata__") {
            continue;
        }
        if (!is_printable(key)) {
            return unprintable();
        }
        auto entry = read_entry(key, value, data_bytes);
        if (!entry) {
            return entry.error();
        }
        entries.push_back(std::move(*entry));
    }
    if (auto done = check_layout(entries, data_bytes); !done) {
        return done.error();
    }
    return entries;
}

Result<TensorFile> TensorFile::open(const std::string& path) {
    const auto fail = [&](const std::string& why) { return bad(formatted("{}: {}", path, why)); };
    TensorFile file;
    file.path_ = path;
    // Without O_NONBLOCK a pipe that nobody writes to would hang before it can be refused.
    file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file.descriptor_ < 0) {
        return fail(std::strerror(errno));
    }
    struct stat status{};
    if (::fstat(file.descriptor_, &status) != 0) {
        return fail(std::strerror(errno));
    }
    if (!S_ISREG(status.st_mode)) {
        return fail("not a regular file");
    }
    const auto file_bytes = static_cast<std::uint64_t>(status.st_size);
    if (file_bytes < kLengthBytes) {
        return fail(formatted("{} bytes are too few for a safetensors file", file_bytes));
    }
    unsigned char length_bytes[kLengthBytes];
    if (auto done = read_exactly(file.descriptor_, length_bytes, kLengthBytes, 0); !done) {
        return fail(done.error().message);
    }
    std::uint64_t header_bytes = 0;
    for (int i = 7; i >= 0; --i) {
        header_bytes = header_bytes << 8 | length_bytes[i];
    }
    if (header_bytes > file_bytes - kLengthBytes) {
        return fail(formatted("the header is said to be {} bytes long, but only {} follow",
                              header_bytes, file_bytes - kLengthBytes));
    }
    if (header_bytes > kMaxHeaderBytes) {
        return fail(
            formatted("a header of {} bytes; at most {} are read", header_bytes, kMaxHeaderBytes));
    }
    std::string header(header_bytes, '\0');
    if (auto done = read_exactly(file.descriptor_, header.data(), header_bytes, kLengthBytes);
        !done) {
        return fail(done.error().message);
    }
    file.data_start_ = kLengthBytes + header_bytes;
    auto entries = parse_header(header, file_bytes - file.data_start_);
    if (!entries) {
        return fail(entries.error().message);
    }
    file.entries_ = std::move(*entries);
    return file;
}

const TensorEntry* TensorFile::find(std::string_view name) const {
    for (const auto& entry : entries_) {
        if (entry.name == name) {
            return &entry;
        }
    }
    return nullptr;
}

Result<std::vector<std::byte>> TensorFile::read(const TensorEntry& entry) const {
    const auto size = entry.end - entry.begin;
    // A file may have holes, which take no room on the disk.
    if (auto checked = check_host_memory(size, formatted("{}: tensor '{}'", path_, entry.name));
        !checked) {
        return checked.error();
    }
    std::vector<std::byte> bytes(size);
    if (auto done = read(entry, 0, bytes); !done) {
        return done.error();
    }
    return bytes;
}

Result<void> TensorFile::read(const TensorEntry& entry, std::uint64_t begin,
                              std::span<std::byte> to) const {
    if (auto done =
            read_exactly(descriptor_, to.data(), to.size(), data_start_ + entry.begin + begin);
        !done) {
        return bad(formatted("{}: tensor '{}': {}", path_, entry.name, done.error().message));
    }
    return {};
}

TensorFile::TensorFile(TensorFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)),
      data_start_(other.data_start_), entries_(std::move(other.entries_)) {}

TensorFile& TensorFile::operator=(TensorFile&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    std::swap(path_, other.path_);
    std::swap(data_start_, other.data_start_);
    std::swap(entries_, other.entries_);
    return *this;
}

TensorFile::~TensorFile() {
    if (descriptor_ >= 0) {
        ::close(descriptor_);
    }
}

} // namespace flexc::cli
