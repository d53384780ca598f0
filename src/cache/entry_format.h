// The bytes of one cache file: header, metadata, payload. Every bit is under the checksum.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cache/digest.h"

namespace flexc::cache {

// What is kept for one key. Metadata and payload share a file, so that they can never come from two
// different compiles.
struct Entry {
    std::string metadata; // small, the caller's own format
    std::string payload;  // a cubin or an object file
};

// Part of the file name too, so that versions of flexc that share a folder leave each other alone.
inline constexpr std::uint32_t kEntryVersion = 1;
inline constexpr std::size_t kHeaderSize = 80;

struct EntryHeader {
    std::uint32_t version = kEntryVersion;
    Digest key;
    Digest source;
    std::uint64_t metadata_size = 0;
    std::uint64_t payload_size = 0;
    Digest checksum;
};

std::array<char, kHeaderSize> encode_header(const Digest& key, const Digest& source,
                                            const Entry& entry);
// Nothing when the magic or the version is another's.
std::optional<EntryHeader> decode_header(const std::array<char, kHeaderSize>& bytes);
bool checksum_matches(const EntryHeader& header, const Entry& entry);

} // namespace flexc::cache
