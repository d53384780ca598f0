#include "cache/entry_format.h"

#include <cstring>

namespace flexc::cache {

namespace {

// A text-mode copy would break the line ends, and the magic with them.
constexpr std::string_view kMagic("flexc\r\n\x1a", 8);

class Writer {
  public:
    explicit Writer(std::array<char, kHeaderSize>& bytes) : bytes_(bytes) {}
    void text(std::string_view value) {
        std::memcpy(bytes_.data() + at_, value.data(), value.size());
        at_ += value.size();
    }
    void number(std::uint64_t value, std::size_t size = 8) {
        for (std::size_t i = 0; i < size; ++i)
            bytes_[at_++] = static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
    }
    void digest(const Digest& value) {
        number(value.high);
        number(value.low);
    }

  private:
    std::array<char, kHeaderSize>& bytes_;
    std::size_t at_ = 0;
};

class Reader {
  public:
    explicit Reader(const std::array<char, kHeaderSize>& bytes) : bytes_(bytes) {}
    std::string_view text(std::size_t size) {
        at_ += size;
        return {bytes_.data() + at_ - size, size};
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
    const std::array<char, kHeaderSize>& bytes_;
    std::size_t at_ = 0;
};

Digest checksum(const EntryHeader& header, const Entry& entry) {
    return DigestBuilder()
        .field("version", header.version)
        .field("key", header.key)
        .field("source", header.source)
        .field("metadata size", header.metadata_size)
        .field("payload size", header.payload_size)
        .field("metadata", digest_of(entry.metadata))
        .field("payload", digest_of(entry.payload))
        .finish();
}

} // namespace

std::array<char, kHeaderSize> encode_header(const Digest& key, const Digest& source,
                                            const Entry& entry) {
    const EntryHeader header{kEntryVersion,        key, source, entry.metadata.size(),
                             entry.payload.size(), {}};
    std::array<char, kHeaderSize> bytes{};
    Writer writer(bytes);
    writer.text(kMagic);
    writer.number(header.version, 4);
    writer.number(kHeaderSize, 4);
    writer.digest(header.key);
    writer.digest(header.source);
    writer.number(header.metadata_size);
    writer.number(header.payload_size);
    writer.digest(checksum(header, entry));
    return bytes;
}

std::optional<EntryHeader> decode_header(const std::array<char, kHeaderSize>& bytes) {
    Reader reader(bytes);
    EntryHeader header;
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

bool checksum_matches(const EntryHeader& header, const Entry& entry) {
    return header.checksum == checksum(header, entry);
}

} // namespace flexc::cache
