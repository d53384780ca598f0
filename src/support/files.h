// Reads files that somebody else names: never a pipe that blocks, or a device that never ends.
#pragma once

#include <cstdint>
#include <string>

namespace flexc::support {

struct FileRead {
    std::string bytes;
    bool absent = false; // there is none of this name
    std::string problem; // otherwise, for the user; empty where `bytes` is the whole file
};

// Reads a regular file of at most `most_bytes`, or a link to one.
FileRead read_file(const std::string& path, std::uint64_t most_bytes);

// "a pipe", "a device", "a folder", "a socket"; empty for a regular file, or where there is none.
std::string special_file(const std::string& path);

} // namespace flexc::support
