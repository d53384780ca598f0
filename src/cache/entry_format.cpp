#include "cache/entry_format.h"

#include <algorithm>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "support/text.h"

namespace flexc::cache {

namespace {

// A text-mode copy would break the line ends, and the magic with them.
constexpr std::string_view kMagic("flexc\r\n\x1a", 8);

// Protects against accidents, not attacks: whoever can write to the folder can write any code into
// it.
struct Checksum {
    std::uint64_t high = 0, low = 0;
    bool operator==(const Checksum&) const = default;
};

struct Header {
    Digest digest;
    std::uint64_t text_size = 0;
    std::uint64_t metadata_size = 0;
    std::uint64_t payload_size = 0;
    Checksum checksum;
};

constexpr std::size_t kChecksumSize = 16;

void write_number(std::string& bytes, std::uint64_t value, std::size_t size = 8) {
    for (std::size_t i = 0; i < size; ++i)
        bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

class Reader {
  public:
    explicit Reader(std::string_view bytes) : bytes_(bytes) {}
    std::string_view text(std::size_t size) {
        at_ += size;
        return bytes_.substr(at_ - size, size);
    }
    std::uint64_t number(std::size_t size = 8) {
        std::uint64_t value = 0;
        for (std::size_t i = 0; i < size; ++i)
            value |= std::uint64_t{static_cast<unsigned char>(bytes_[at_++])} << (8 * i);
        return value;
    }

  private:
    std::string_view bytes_;
    std::size_t at_ = 0;
};

// The checksum of a whole file except the checksum itself, which ends the header.
Checksum checksum_of(std::string_view file) {
    XXH3_state_t state;
    XXH3_128bits_reset(&state);
    XXH3_128bits_update(&state, file.data(), kHeaderSize - kChecksumSize);
    XXH3_128bits_update(&state, file.data() + kHeaderSize, file.size() - kHeaderSize);
    const XXH128_hash_t hash = XXH3_128bits_digest(&state);
    return {hash.high64, hash.low64};
}

// Nothing if the magic or the version does not match.
std::optional<Header> decode_header(std::string_view bytes) {
    if (bytes.size() < kHeaderSize) return std::nullopt;
    Reader reader(bytes);
    Header header;
    if (reader.text(kMagic.size()) != kMagic) return std::nullopt;
    if (reader.number(4) != kEntryVersion || reader.number(4) != kHeaderSize) return std::nullopt;
    const std::string_view digest = reader.text(Digest::kSize);
    std::ranges::copy(digest, header.digest.bytes.begin());
    header.text_size = reader.number();
    header.metadata_size = reader.number();
    header.payload_size = reader.number();
    header.checksum.high = reader.number();
    header.checksum.low = reader.number();
    return header;
}

} // namespace

std::string encode_entry(const Key& key, const Entry& entry) {
    std::string file;
    file.reserve(kHeaderSize + key.text.size() + entry.metadata.size() + entry.payload.size());
    file += kMagic;
    write_number(file, kEntryVersion, 4);
    write_number(file, kHeaderSize, 4);
    file += key.digest.view();
    write_number(file, key.text.size());
    write_number(file, entry.metadata.size());
    write_number(file, entry.payload.size());
    file.append(kChecksumSize, '\0');
    file += key.text;
    file += entry.metadata;
    file += entry.payload;
    const Checksum checksum = checksum_of(file);
    std::string bytes;
    write_number(bytes, checksum.high);
    write_number(bytes, checksum.low);
    file.replace(kHeaderSize - kChecksumSize, kChecksumSize, bytes);
    return file;
}

std::optional<Entry> decode_entry(std::string_view bytes, const Key& key) {
    const auto header = decode_header(bytes);
    if (!header || header->digest != key.digest || header->text_size != key.text.size())
        return std::nullopt;
    const std::string_view body = bytes.substr(kHeaderSize);
    if (header->text_size > body.size() ||
        header->metadata_size > body.size() - header->text_size ||
        header->payload_size != body.size() - header->text_size - header->metadata_size)
        return std::nullopt;
    if (body.substr(0, header->text_size) != key.text || header->checksum != checksum_of(bytes))
        return std::nullopt;
    return Entry{std::string(body.substr(header->text_size, header->metadata_size)),
                 std::string(body.substr(header->text_size + header->metadata_size))};
}

// Versions before 3 had digests of half as many digits.
bool is_entry_name(std::string_view name, std::optional<std::uint32_t> version) {
    const std::size_t digits = name.find_first_not_of("0123456789abcdef");
    if (digits != Digest::kDigits && digits != Digest::kDigits / 2) return false;
    std::string_view rest = name.substr(digits);
    if (!rest.starts_with(kEntrySuffix)) return false;
    rest.remove_prefix(kEntrySuffix.size());
    return version ? rest == std::to_string(*version)
                   : !rest.empty() && rest.find_first_not_of("0123456789") == rest.npos;
}

std::string entry_name(const Digest& digest) {
    return formatted("{}{}{}", digest.hex(), kEntrySuffix, kEntryVersion);
}

} // namespace flexc::cache
