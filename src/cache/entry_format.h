// The bytes of one cache file: header, metadata, payload. Every bit is under the checksum.
#pragma once

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
inline constexpr std::uint32_t kEntryVersion = 2;
inline constexpr std::string_view kEntrySuffix = ".v";
inline constexpr std::size_t kHeaderSize = 80;

// The whole file of an entry.
std::string encode_entry(const Digest& key, const Digest& source, const Entry& entry);
// Nothing unless the bytes are whole, of this version, and of this key and source.
std::optional<Entry> decode_entry(std::string_view bytes, const Digest& key, const Digest& source);

// An entry's file in any folder that holds some.
std::string entry_name(const Digest& key);

} // namespace flexc::cache
