#include <algorithm>
#include <array>

#include "fuzz.h"

namespace flexc::fuzz {

namespace {

constexpr std::array<std::uint64_t, 14> kNumbersOfBytes = {0,
                                                           1,
                                                           0x7f,
                                                           0x80,
                                                           0xff,
                                                           0x7fff,
                                                           0xffff,
                                                           0x7fffffff,
                                                           0x80000000,
                                                           0xffffffff,
                                                           0x20000000000000,
                                                           0x4000000000000000,
                                                           0x7fffffffffffffff,
                                                           0xffffffffffffffff};

std::size_t place(const std::string& text, Random& random) {
    return static_cast<std::size_t>(random.integer(0, static_cast<std::int64_t>(text.size())));
}

std::string_view run_of(const std::string& text, Random& random) {
    const std::size_t begin = place(text, random);
    return std::string_view(text).substr(
        begin, static_cast<std::size_t>(random.integer(1, random.chance(80) ? 16 : 4096)));
}

void change(std::string& text, const Corpus& corpus, Random& random) {
    const std::size_t at = place(text, random);
    switch (random.integer(0, 7)) {
    case 0:
        if (at < text.size())
            text[at] = static_cast<char>(static_cast<unsigned char>(text[at]) ^
                                         (1u << random.integer(0, 7)));
        return;
    case 1:
        if (at < text.size()) text[at] = static_cast<char>(random.integer(0, 255));
        return;
    case 2: {
        // A number of 1, 2, 4 or 8 bytes, the lowest first, in the place of what is there.
        const std::size_t size = std::size_t{1} << random.integer(0, 3);
        std::uint64_t value =
            random.pick(kNumbersOfBytes) + static_cast<std::uint64_t>(random.integer(-1, 1));
        for (std::size_t i = at; i < std::min(at + size, text.size()); ++i, value >>= 8)
            text[i] = static_cast<char>(value & 0xff);
        return;
    }
    case 3: text.erase(at, run_of(text, random).size()); return;
    case 4: text.resize(at); return;
    case 5: text.insert(at, std::string(run_of(text, random))); return;
    case 6:
        text.insert(at, static_cast<std::size_t>(random.integer(1, random.chance(90) ? 8 : 2000)),
                    static_cast<char>(random.integer(0, 255)));
        return;
    default: {
        const std::string_view other = run_of(random.pick(corpus), random);
        text.replace(at, std::min(other.size(), text.size() - at), other);
        return;
    }
    }
}

} // namespace

std::string mutate_bytes(const std::string& input, const Corpus& corpus, Random& random) {
    std::string text = input;
    for (std::int64_t changes = random.integer(1, 4); changes > 0; --changes)
        change(text, corpus, random);
    if (text.size() > kMostBytes) text.resize(kMostBytes);
    return text;
}

std::uint64_t seed_of(std::string_view input) {
    std::uint64_t hash = 0xcbf29ce484222325ULL; // FNV-1a
    for (const char byte : input)
        hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3ULL;
    return hash;
}

} // namespace flexc::fuzz
