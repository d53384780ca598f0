#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "flexc/safetensors.h"
#include "support/text.h"

namespace flexc::cli {
namespace {

namespace fs = std::filesystem;

Error system_error(const fs::path& path) {
    return {ErrorCode::io, formatted("{}: {}", path.string(), std::strerror(errno))};
}

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

bool write_all(int descriptor, const void* data, std::size_t bytes) {
    const auto* in = static_cast<const char*>(data);
    while (bytes > 0) {
        const auto count = ::write(descriptor, in, bytes);
        if (count < 0 && errno == EINTR) {
            continue;
        }
        if (count < 0) {
            return false;
        }
        in += count;
        bytes -= static_cast<std::size_t>(count);
    }
    return true;
}

// A temporary file that is gone unless it was published.
class TemporaryFile {
  public:
    explicit TemporaryFile(const fs::path& target)
        : path_((target.parent_path() / ("." + target.filename().string() + ".XXXXXX")).string()) {
        descriptor_ = ::mkostemp(path_.data(), O_CLOEXEC);
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    ~TemporaryFile() {
        if (descriptor_ >= 0) {
            ::close(descriptor_);
            ::unlink(path_.c_str());
        }
    }

    int descriptor() const { return descriptor_; }
    bool publish(const fs::path& target) {
        if (::fsync(descriptor_) != 0) {
            return false;
        }
        const int descriptor = std::exchange(descriptor_, -1);
        if (::close(descriptor) != 0 || ::rename(path_.c_str(), target.c_str()) != 0) {
            const int reason = errno;
            ::unlink(path_.c_str());
            errno = reason;
            return false;
        }
        return true;
    }

  private:
    std::string path_;
    int descriptor_ = -1;
};

// mkostemp makes private files; the published one gets the mode an ordinary open would give.
mode_t ordinary_mode(const fs::path& target) {
    struct stat status{};
    if (::stat(target.c_str(), &status) == 0) {
        return status.st_mode & 07777;
    }
    const mode_t mask = ::umask(0);
    ::umask(mask);
    return 0666 & ~mask;
}

// So that the rename itself survives a power cut; what cannot be synced is left to the system.
void sync_folder(const fs::path& folder) {
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) {
        return;
    }
    (void)::fsync(descriptor);
    ::close(descriptor);
}

// Where the bytes go: links are followed, dangling ones too, so that renaming replaces no link.
fs::path resolve(const std::string& given) {
    std::error_code failure;
    fs::path path = given;
    constexpr int kMostLinks = 40;
    for (int i = 0; i < kMostLinks && fs::is_symlink(path, failure); ++i) {
        path = path.parent_path() / fs::read_symlink(path, failure);
    }
    auto resolved = fs::weakly_canonical(fs::absolute(path, failure), failure);
    return failure ? path : resolved;
}

bool is_device_or_pipe(const fs::path& path) {
    std::error_code failure;
    const auto type = fs::status(path, failure).type();
    return type == fs::file_type::character || type == fs::file_type::fifo;
}

Result<void> write_to(int descriptor, const fs::path& path, std::span<const OutputTensor> tensors) {
    const auto header = header_of(tensors);
    if (!write_all(descriptor, header.data(), header.size())) {
        return system_error(path);
    }
    for (const auto& tensor : tensors) {
        if (!write_all(descriptor, tensor.bytes.data(), tensor.bytes.size())) {
            return system_error(path);
        }
    }
    return {};
}

} // namespace

Result<void> check_writable(const std::string& path) {
    const auto target = resolve(path);
    std::error_code failure;
    if (fs::is_directory(target, failure)) {
        return Error{ErrorCode::io, path + ": is a folder, expected the name of a file"};
    }
    if (is_device_or_pipe(target)) {
        return {};
    }
    if (!fs::is_directory(target.parent_path(), failure)) {
        return Error{ErrorCode::io,
                     formatted("{}: there is no folder {}", path, target.parent_path().string())};
    }
    if (::access(target.parent_path().c_str(), W_OK) != 0) {
        return system_error(target.parent_path());
    }
    return {};
}

Result<void> write_tensors(const std::string& path, std::span<const OutputTensor> tensors) {
    if (auto done = check_writable(path); !done) {
        return done;
    }
    const auto target = resolve(path);
    if (is_device_or_pipe(target)) {
        const int descriptor = ::open(target.c_str(), O_WRONLY | O_CLOEXEC);
        if (descriptor < 0) {
            return system_error(target);
        }
        auto done = write_to(descriptor, target, tensors);
        ::close(descriptor);
        return done;
    }
    TemporaryFile temporary(target);
    if (temporary.descriptor() < 0) {
        return system_error(target);
    }
    if (auto done = write_to(temporary.descriptor(), target, tensors); !done) {
        return done;
    }
    if (::fchmod(temporary.descriptor(), ordinary_mode(target)) != 0 ||
        !temporary.publish(target)) {
        return system_error(target);
    }
    sync_folder(target.parent_path());
    return {};
}

} // namespace flexc::cli
