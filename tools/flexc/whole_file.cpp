#include "flexc/whole_file.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/text.h"

namespace flexc::cli {
namespace {

namespace fs = std::filesystem;

Error system_error(const fs::path& path) {
    return {ErrorCode::io, formatted("{}: {}", path.string(), std::strerror(errno))};
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

// A file beside `target` that is gone unless it was published. It has a name only while it takes
// the target's place; on file systems that must give it one at once, also before.
class TemporaryFile {
  public:
    explicit TemporaryFile(const fs::path& target) {
        const fs::path folder = target.parent_path();
        if (::access("/proc/self/fd", X_OK) == 0)
            descriptor_ = ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
        pattern_ = (folder / ("." + target.filename().string() + ".")).string();
        if (descriptor_ >= 0) return;
        named_ = pattern_ + "XXXXXX";
        descriptor_ = ::mkostemp(named_.data(), O_CLOEXEC);
        if (descriptor_ < 0) named_.clear();
    }
    TemporaryFile(const TemporaryFile&) = delete;
    TemporaryFile& operator=(const TemporaryFile&) = delete;
    ~TemporaryFile() {
        const int reason = errno;
        if (descriptor_ >= 0) ::close(descriptor_);
        if (!named_.empty()) ::unlink(named_.c_str());
        errno = reason;
    }

    int descriptor() const { return descriptor_; }
    bool publish(const fs::path& target) {
        if (::fsync(descriptor_) != 0 || !give_name()) return false;
        const int descriptor = std::exchange(descriptor_, -1);
        if (::close(descriptor) != 0 || ::rename(named_.c_str(), target.c_str()) != 0) return false;
        named_.clear();
        return true;
    }

  private:
    // A link cannot replace the target, so that there is a name between for a moment.
    bool give_name() {
        if (!named_.empty()) return true;
        const std::string self = formatted("/proc/self/fd/{}", descriptor_);
        std::random_device random;
        constexpr int kAttempts = 100;
        for (int attempt = 0; attempt < kAttempts; ++attempt) {
            const std::string name = formatted("{}{:08x}", pattern_, random());
            if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
                named_ = name;
                return true;
            }
            if (errno != EEXIST) break;
        }
        return false;
    }

    std::string pattern_, named_;
    int descriptor_ = -1;
};

// Temporary files are private; the published one gets the mode an ordinary open would give.
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

Result<void> write_to(int descriptor, const fs::path& path,
                      std::span<const std::string_view> parts) {
    for (const std::string_view part : parts) {
        if (!write_all(descriptor, part.data(), part.size())) {
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

Result<void> write_whole_file(const std::string& path, std::span<const std::string_view> parts) {
    if (auto done = check_writable(path); !done) {
        return done;
    }
    const auto target = resolve(path);
    if (is_device_or_pipe(target)) {
        const int descriptor = ::open(target.c_str(), O_WRONLY | O_CLOEXEC);
        if (descriptor < 0) {
            return system_error(target);
        }
        auto done = write_to(descriptor, target, parts);
        ::close(descriptor);
        return done;
    }
    TemporaryFile temporary(target);
    if (temporary.descriptor() < 0) {
        return system_error(target);
    }
    if (auto done = write_to(temporary.descriptor(), target, parts); !done) {
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
