#include <doctest/doctest.h>

#include <set>

#include "cache/digest.h"
#include "support/embedded.h"

using flexc::cache::Digest;
using flexc::cache::digest_of;
using flexc::cache::KeyBuilder;

TEST_CASE("hex is 64 digits and reads back") {
    const Digest digest = digest_of("x");
    const std::string hex = digest.hex();
    CHECK(hex.size() == 64);
    CHECK(Digest::parse(hex) == digest);
    CHECK_FALSE(Digest::parse(hex.substr(1)));
    CHECK_FALSE(Digest::parse(hex + "0"));
    CHECK_FALSE(Digest::parse("A" + hex.substr(1)));
    CHECK_FALSE(Digest::parse(hex.substr(1) + "/"));
    CHECK_FALSE(Digest::parse(hex.substr(1) + ":"));
}

// The examples of FIPS 180-4, and a length of many blocks.
TEST_CASE("the digest is SHA-256") {
    CHECK(digest_of("").hex() ==
          "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(digest_of("abc").hex() ==
          "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(digest_of(std::string(1000000, 'a')).hex() ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("files inside flexc carry their digests") {
    using namespace flexc::embedded;
    for (const auto& file : library()) {
        CAPTURE(file.path);
        CHECK(digest_of(file.text).hex() == file.digest);
    }
}

TEST_CASE("labels, lengths and order keep fields apart") {
    std::set<std::string> seen;
    seen.insert(KeyBuilder().text());
    seen.insert(KeyBuilder().field("a", "bc").text());
    seen.insert(KeyBuilder().field("ab", "c").text());
    seen.insert(KeyBuilder().field("", "abc").text());
    seen.insert(KeyBuilder().field("a", "b").field("c", "").text());
    seen.insert(KeyBuilder().field("a", "b").field("", "c").text());
    seen.insert(KeyBuilder().field("x", "1").field("y", "2").text());
    seen.insert(KeyBuilder().field("y", "2").field("x", "1").text());
    seen.insert(KeyBuilder().field("x", "2").field("y", "1").text());
    seen.insert(KeyBuilder().field("a", std::uint64_t{1}).text());
    seen.insert(KeyBuilder().field("a", "1").text());
    CHECK(seen.size() == 11);
}

TEST_CASE("a zero byte and what follows it count") {
    using namespace std::string_view_literals;
    CHECK(KeyBuilder().field("a", "x\0y"sv).text() != KeyBuilder().field("a", "x\0z"sv).text());
}
