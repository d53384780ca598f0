#include <doctest/doctest.h>

#include <set>

#include "cache/digest.h"

using flexc::cache::Digest;
using flexc::cache::digest_of;
using flexc::cache::DigestBuilder;

TEST_CASE("hex is 32 digits and reads back") {
    const Digest digest{0x0123456789abcdefull, 0xfedcba9876543210ull};
    CHECK(digest.hex() == "0123456789abcdeffedcba9876543210");
    CHECK(Digest::parse(digest.hex()) == digest);
    CHECK_FALSE(Digest::parse("0123456789abcdeffedcba987654321"));
    CHECK_FALSE(Digest::parse("0123456789abcdeffedcba98765432100"));
    CHECK_FALSE(Digest::parse("0123456789ABCDEFFEDCBA9876543210"));
    CHECK_FALSE(Digest::parse("0123456789abcdeffedcba987654321/"));
}

TEST_CASE("the digest of a file written today must be the digest of tomorrow") {
    CHECK(digest_of("").hex() == "99aa06d3014798d86001c324468d497f");
}

TEST_CASE("labels, lengths and order keep fields apart") {
    std::set<Digest> seen;
    seen.insert(DigestBuilder().finish());
    seen.insert(DigestBuilder().field("a", "bc").finish());
    seen.insert(DigestBuilder().field("ab", "c").finish());
    seen.insert(DigestBuilder().field("", "abc").finish());
    seen.insert(DigestBuilder().field("a", "b").field("c", "").finish());
    seen.insert(DigestBuilder().field("a", "b").field("", "c").finish());
    seen.insert(DigestBuilder().field("x", "1").field("y", "2").finish());
    seen.insert(DigestBuilder().field("y", "2").field("x", "1").finish());
    seen.insert(DigestBuilder().field("x", "2").field("y", "1").finish());
    seen.insert(DigestBuilder().field("a", std::uint64_t{1}).finish());
    seen.insert(DigestBuilder().field("a", "1").finish());
    CHECK(seen.size() == 11);
}

TEST_CASE("a zero byte and what follows it count") {
    using namespace std::string_view_literals;
    CHECK(DigestBuilder().field("a", "x\0y"sv).finish() !=
          DigestBuilder().field("a", "x\0z"sv).finish());
}
