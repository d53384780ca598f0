// The bytes of one cache file: header, question, metadata, payload. Every bit is under the
// checksum.
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
inline constexpr std::uint32_t kEntryVersion = 3;
inline constexpr std::string_view kEntrySuffix = ".v";
inline constexpr std::size_t kHeaderSize = 88;
// No kernel comes near it. A larger file is damaged, and is not read.
inline constexpr std::uint64_t kMaxEntryBytes = 1ull << 28;

// The whole file of an entry.
std::string encode_entry(const Key& key, const Entry& entry);
// Nothing unless the bytes are whole, of this version, and the answer to this very text.
std::optional<Entry> decode_entry(std::string_view bytes, const Key& key);

// An entry's file in any folder that holds some.
std::string entry_name(const Digest& digest);
// Whether a file is an entry, of `version` or, where none is asked for, of any.
bool is_entry_name(std::string_view name, std::optional<std::uint32_t> version = {});

} // namespace flexc::cache
