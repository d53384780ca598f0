#include "cache/folder.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include <dirent.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include "support/text.h"

namespace flexc::cache {

namespace {

constexpr mode_t kFolderMode = 0700;
constexpr mode_t kFileMode = 0600;
constexpr mode_t kOthersMayWrite = S_IWGRP | S_IWOTH;

int make_folders(const std::string& path) {
    for (std::size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
        const std::string part = path.substr(0, slash);
        if (::mkdir(part.c_str(), kFolderMode) != 0 && errno != EEXIST) {
            const int error = errno;
            // Above a mount or an automounter the answer may be a refusal for a folder that exists.
            struct stat status{};
            if (::stat(part.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) return error;
        }
        if (slash == std::string::npos) return 0;
    }
}

Descriptor open_folder(const std::string& path) {
    return Descriptor(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

std::string objection(const struct stat& status) {
    if (status.st_uid != ::geteuid()) return "it belongs to another user";
    if ((status.st_mode & kOthersMayWrite) != 0)
        return "other users can write to it; run chmod go-w on it";
    return "";
}

std::string reason_not_opened(const std::string& path, int error) {
    struct stat status{};
    if (::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode))
        return "it is a symbolic link; name the folder itself";
    return system_message(error);
}

std::string unique_name() {
    static std::atomic<std::uint32_t> counter = 0;
    std::uint64_t random = 0;
    // Without a random number, the pid and the counter distinguish all but other machines on a
    // network folder, and for those O_EXCL does.
    if (::getrandom(&random, sizeof random, GRND_NONBLOCK) < 0) random = 0;
    return formatted("{}{}-{}-{:016x}", kTemporaryPrefix, ::getpid(), counter.fetch_add(1), random);
}

} // namespace

std::string system_message(int error) { return std::generic_category().message(error); }

Descriptor::~Descriptor() { close(); }

int Descriptor::close() {
    const int number = std::exchange(number_, -1);
    return number >= 0 && ::close(number) != 0 ? errno : 0;
}

FileStamp FileStamp::of(const struct stat& status) {
    return {status.st_dev, status.st_ino, static_cast<std::uint64_t>(status.st_size),
            status.st_mtim};
}

bool FileStamp::operator==(const FileStamp& other) const {
    return device == other.device && inode == other.inode && size == other.size &&
           modified.tv_sec == other.modified.tv_sec && modified.tv_nsec == other.modified.tv_nsec;
}

Folder::Opened Folder::open(const std::string& path, bool create) {
    Descriptor descriptor = open_folder(path);
    int error = descriptor ? 0 : errno;
    if (error == ENOENT) {
        if (!create) return {std::nullopt, true, ""};
        error = make_folders(path);
        if (error == 0) {
            descriptor = open_folder(path);
            error = descriptor ? 0 : errno;
        }
    }
    if (!descriptor) return {std::nullopt, false, reason_not_opened(path, error)};
    struct stat status{};
    if (::fstat(descriptor.number(), &status) != 0)
        return {std::nullopt, false, system_message(errno)};
    if (std::string problem = objection(status); !problem.empty())
        return {std::nullopt, false, std::move(problem)};
    return {Folder(std::move(descriptor)), false, ""};
}

Folder::File Folder::open_file(const std::string& name) const {
    File file;
    // O_NONBLOCK: a pipe in the place of a file must not hold us.
    file.descriptor = Descriptor(::openat(descriptor_.number(), name.c_str(),
                                          O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    if (!file.descriptor || ::fstat(file.descriptor.number(), &file.status) != 0) {
        file.error = errno;
        file.descriptor = Descriptor();
    }
    return file;
}

Folder::File Folder::create_temporary(std::string& name) const {
    File file;
    constexpr int kAttempts = 8;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
        name = unique_name();
        file.descriptor =
            Descriptor(::openat(descriptor_.number(), name.c_str(),
                                O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode));
        file.error = file.descriptor ? 0 : errno;
        if (file.error != EEXIST) break;
    }
    return file;
}

int Folder::publish(const std::string& temporary, const std::string& name, bool hard_links) const {
    const int folder = descriptor_.number();
    if (hard_links) {
        // A link never replaces: readers of an entry that is there keep it.
        if (::linkat(folder, temporary.c_str(), folder, name.c_str(), 0) == 0) {
            remove(temporary);
            return 0;
        }
        if (errno == EEXIST || errno == ENOENT) return errno;
    }
    return ::renameat(folder, temporary.c_str(), folder, name.c_str()) == 0 ? 0 : errno;
}

std::vector<FolderFile> Folder::files() const {
    // Opens another descriptor, as the read position of a shared one would be shared with other
    // threads.
    const int copy = ::openat(descriptor_.number(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* listing = copy < 0 ? nullptr : ::fdopendir(copy);
    if (listing == nullptr) {
        if (copy >= 0) ::close(copy);
        return {};
    }
    std::vector<FolderFile> result;
    while (const dirent* item = ::readdir(listing)) {
        const std::string name = item->d_name;
        if (const auto stamp = stamp_of(name)) result.push_back({name, *stamp});
    }
    ::closedir(listing);
    return result;
}

std::optional<FileStamp> Folder::stamp_of(const std::string& name) const {
    struct stat status{};
    if (::fstatat(descriptor_.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode))
        return std::nullopt;
    return FileStamp::of(status);
}

bool Folder::remove(const std::string& name) const {
    return ::unlinkat(descriptor_.number(), name.c_str(), 0) == 0;
}

void Folder::remove_if_unchanged(const std::string& name, const FileStamp& stamp) const {
    struct stat status{};
    if (::fstatat(descriptor_.number(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        FileStamp::of(status) == stamp)
        remove(name);
}

int read_all(int descriptor, char* bytes, std::size_t size, std::uint64_t offset) {
    while (size > 0) {
        const ssize_t count = ::pread(descriptor, bytes, size, static_cast<off_t>(offset));
        if (count == 0) return -1;
        if (count < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        bytes += count;
        size -= static_cast<std::size_t>(count);
        offset += static_cast<std::uint64_t>(count);
    }
    return 0;
}

int write_all(int descriptor, std::string_view bytes) {
    while (!bytes.empty()) {
        const ssize_t count = ::write(descriptor, bytes.data(), bytes.size());
        if (count < 0) {
            if (errno == EINTR) continue;
            return errno;
        }
        bytes.remove_prefix(static_cast<std::size_t>(count));
    }
    return 0;
}

} // namespace flexc::cache
