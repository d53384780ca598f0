#include "support/files.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/text.h"

namespace flexc::support {

namespace {

std::string kind(mode_t mode) {
    if (S_ISREG(mode)) return "";
    if (S_ISDIR(mode)) return "a folder";
    if (S_ISFIFO(mode)) return "a pipe";
    if (S_ISSOCK(mode)) return "a socket";
    return "a device";
}

FileRead failed(int error) {
    return {.absent = error == ENOENT || error == ENOTDIR,
            .problem = std::generic_category().message(error)};
}

FileRead read_open_file(int descriptor, std::uint64_t most_bytes) {
    struct stat status{};
    if (::fstat(descriptor, &status) != 0) return failed(errno);
    if (const std::string what = kind(status.st_mode); !what.empty())
        return {.problem = formatted("it is {}, not a file", what)};
    const auto size = static_cast<std::uint64_t>(status.st_size);
    if (size > most_bytes)
        return {.problem = formatted("{} bytes; at most {} are read", size, most_bytes)};
    FileRead result;
    result.bytes.resize(static_cast<std::size_t>(size));
    std::size_t filled = 0;
    while (filled < result.bytes.size()) {
        const ssize_t count =
            ::read(descriptor, result.bytes.data() + filled, result.bytes.size() - filled);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return failed(errno);
        if (count == 0) return {.problem = "it became shorter while it was read"};
        filled += static_cast<std::size_t>(count);
    }
    return result;
}

} // namespace

FileRead read_file(const std::string& path, std::uint64_t most_bytes) {
    // O_NONBLOCK: a pipe that nobody writes to must not hold us before it can be refused.
    const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (descriptor < 0) return failed(errno);
    FileRead result = read_open_file(descriptor, most_bytes);
    ::close(descriptor);
    return result;
}

std::string special_file(const std::string& path) {
    struct stat status{};
    return ::stat(path.c_str(), &status) == 0 ? kind(status.st_mode) : "";
}

} // namespace flexc::support
