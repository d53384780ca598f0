#include "cache/entry_format.h"

#include "support/text.h"

namespace flexc::cache {

namespace {

// A text-mode copy would break the line ends, and the magic with them.
constexpr std::string_view kMagic("flexc\r\n\x1a", 8);

struct Header {
    std::uint32_t version = kEntryVersion;
    Digest key;
    Digest source;
    std::uint64_t metadata_size = 0;
    std::uint64_t payload_size = 0;
    Digest checksum;
};

void write_number(std::string& bytes, std::uint64_t value, std::size_t size = 8) {
    for (std::size_t i = 0; i < size; ++i)
        bytes += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

void write_digest(std::string& bytes, const Digest& value) {
    write_number(bytes, value.high);
    write_number(bytes, value.low);
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
    Digest digest() {
        const std::uint64_t high = number();
        return {high, number()};
    }

  private:
    std::string_view bytes_;
    std::size_t at_ = 0;
};

Digest checksum(const Header& header, std::string_view metadata, std::string_view payload) {
    return DigestBuilder()
        .field("version", header.version)
        .field("key", header.key)
        .field("source", header.source)
        .field("metadata size", header.metadata_size)
        .field("payload size", header.payload_size)
        .field("metadata", digest_of(metadata))
        .field("payload", digest_of(payload))
        .finish();
}

// Nothing when the magic or the version is another's.
std::optional<Header> decode_header(std::string_view bytes) {
    if (bytes.size() < kHeaderSize) return std::nullopt;
    Reader reader(bytes);
    Header header;
    if (reader.text(kMagic.size()) != kMagic) return std::nullopt;
    header.version = static_cast<std::uint32_t>(reader.number(4));
    if (header.version != kEntryVersion || reader.number(4) != kHeaderSize) return std::nullopt;
    header.key = reader.digest();
    header.source = reader.digest();
    header.metadata_size = reader.number();
    header.payload_size = reader.number();
    header.checksum = reader.digest();
    return header;
}

} // namespace

std::string encode_entry(const Digest& key, const Digest& source, const Entry& entry) {
    const Header header{kEntryVersion,        key, source, entry.metadata.size(),
                        entry.payload.size(), {}};
    std::string bytes;
    bytes.reserve(kHeaderSize + entry.metadata.size() + entry.payload.size());
    bytes += kMagic;
    write_number(bytes, header.version, 4);
    write_number(bytes, kHeaderSize, 4);
    write_digest(bytes, header.key);
    write_digest(bytes, header.source);
    write_number(bytes, header.metadata_size);
    write_number(bytes, header.payload_size);
    write_digest(bytes, checksum(header, entry.metadata, entry.payload));
    return bytes + entry.metadata + entry.payload;
}

std::optional<Entry> decode_entry(std::string_view bytes, const Digest& key, const Digest& source) {
    const auto header = decode_header(bytes);
    if (!header || header->key != key || header->source != source) return std::nullopt;
    const std::string_view body = bytes.substr(kHeaderSize);
    if (header->metadata_size > body.size() ||
        header->payload_size != body.size() - header->metadata_size)
        return std::nullopt;
    const std::string_view metadata = body.substr(0, header->metadata_size);
    const std::string_view payload = body.substr(header->metadata_size);
    if (header->checksum != checksum(*header, metadata, payload)) return std::nullopt;
    return Entry{std::string(metadata), std::string(payload)};
}

std::string entry_name(const Digest& key) {
    return formatted("{}{}{}", key.hex(), kEntrySuffix, kEntryVersion);
}

} // namespace flexc::cache
