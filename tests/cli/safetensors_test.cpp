#include "flexc/safetensors.h"
#include "support/text.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>

#include <sys/stat.h>
#include <unistd.h>

#include <doctest/doctest.h>

#include "temporary_folder.h"

using namespace flexc;
using namespace flexc::cli;

namespace {

namespace fs = std::filesystem;

struct Scratch : test::TemporaryFolder {
    std::string file(const char* name) const { return (path() / name).string(); }
    std::size_t entries() const {
        return static_cast<std::size_t>(
            std::distance(fs::directory_iterator(path()), fs::directory_iterator()));
    }
};

OutputTensor tensor(const char* name, DType dtype, std::vector<std::int64_t> shape,
                    std::size_t bytes) {
    OutputTensor result{name, dtype, std::move(shape), {}};
    for (std::size_t i = 0; i < bytes; ++i) {
        result.bytes.push_back(static_cast<std::byte>(i));
    }
    return result;
}

std::string contents(const std::string& path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

void write_text(const std::string& path, const std::string& text) {
    std::ofstream(path, std::ios::binary) << text;
}

std::string error_of(std::string_view header, std::uint64_t bytes) {
    auto result = parse_header(header, bytes);
    return result ? "accepted" : result.error().message;
}

} // namespace

TEST_CASE("what is written is read back, every type") {
    const Scratch scratch;
    const auto path = scratch.file("x.safetensors");
    const std::vector<OutputTensor> written{
        tensor("half", DType::bf16, {3}, 6),     tensor("wide", DType::f64, {2, 1}, 16),
        tensor("scalar", DType::f32, {}, 4),     tensor("empty", DType::i64, {0, 5}, 0),
        tensor("flags", DType::boolean, {3}, 3), tensor("a \"name\"\\", DType::u8, {1}, 1),
        tensor("fine", DType::e4m3, {2}, 2),     tensor("coarse", DType::e5m2, {3}, 3),
        tensor("i16", DType::i16, {2}, 4),       tensor("i8", DType::i8, {1, 1, 1}, 1),
        tensor("i32", DType::i32, {1}, 4),       tensor("f16", DType::f16, {1}, 2)};
    REQUIRE(write_tensors(path, written));
    auto file = TensorFile::open(path);
    REQUIRE_MESSAGE(file, file.error().message);
    CHECK(file->entries().size() == written.size());
    for (const auto& expected : written) {
        const auto* entry = file->find(expected.name);
        REQUIRE(entry != nullptr);
        CHECK(entry->dtype == expected.dtype);
        CHECK(entry->shape == expected.shape);
        auto bytes = file->read(*entry);
        REQUIRE(bytes);
        CHECK(*bytes == expected.bytes);
    }
    CHECK(file->find("other") == nullptr);
}

TEST_CASE("a header that does not hold is refused by the name of the tensor") {
    const auto one = [](const char* fields) { return formatted("{{\"x\": {{{}}}}}", fields); };
    struct Row {
        std::string header;
        std::uint64_t bytes;
        const char* expected;
    };
    const Row rows[] = {
        {"", 0, "not a JSON object"},
        {"[]", 0, "not a JSON object"},
        {"{\"x\": 3}", 0, "'x': the header gives no \"dtype\""},
        {one(R"("dtype":"F32","shape":[1])"), 4, "'x': the header gives no \"data_offsets\""},
        {one(R"("dtype":"F8_E8M0","shape":[1],"data_offsets":[0,1])"), 1, "'x': type \"F8_E8M0\""},
        {one(R"("dtype":7,"shape":[1],"data_offsets":[0,1])"), 1, "'x': type 7"},
        {one(R"("dtype":"F32","shape":4,"data_offsets":[0,4])"), 4, "'x': expected \"shape\""},
        {one(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])"), 4, "'x': shape holds -1"},
        {one(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])"), 4, "'x': shape holds 1.5"},
        {one(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"), 1,
         "'x': 9 dimensions"},
        {one(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])"), 4, "'x': 4 bytes of data"},
        {one(R"("dtype":"F32","shape":[1],"data_offsets":[4,0])"), 4, "'x': data_offsets"},
        {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])"), 4, "'x': data_offsets"},
        {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 3, "'x': its data ends"},
        {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,4])"), 5, "5 bytes of data"},
        {one(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0,
         "'x': 0 bytes of data"},
        {one(R"("dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615])"), 4,
         "'x': data_offsets"},
        {R"({"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},)"
         R"("y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
         3, "'y': its data overlaps that of 'x'"},
        {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
         R"("y":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
         3, "'y': its data begins at byte 2, expected 1"},
        {R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
         R"("x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
         1, "'x': the header names it twice"},
    };
    for (const auto& row : rows) {
        CAPTURE(row.header);
        const auto message = error_of(row.header, row.bytes);
        CAPTURE(message);
        CHECK(message.find(row.expected) != std::string::npos);
    }
    CHECK(error_of(R"({"__metadata__":{"format":"pt"}})", 0) == "accepted");
    CHECK(error_of(std::string(200'000, '['), 0).find("not a JSON object") != std::string::npos);
}

TEST_CASE("a file that is too short, or no file, is refused") {
    const Scratch scratch;
    const auto path = scratch.file("x");
    CHECK_FALSE(TensorFile::open(path));
    CHECK_FALSE(TensorFile::open(scratch.path().string()));
    write_text(path, "1234567");
    CHECK_FALSE(TensorFile::open(path));
    write_text(path, std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10));
    CHECK_FALSE(TensorFile::open(path));
    REQUIRE(::mkfifo(scratch.file("pipe").c_str(), 0600) == 0);
    CHECK_FALSE(TensorFile::open(scratch.file("pipe")));

    REQUIRE(write_tensors(path, {{tensor("x", DType::f32, {4}, 16)}}));
    const auto whole = contents(path);
    for (std::size_t length = 0; length < whole.size(); ++length) {
        write_text(path, whole.substr(0, length));
        CAPTURE(length);
        CHECK_FALSE(TensorFile::open(path));
    }
}

TEST_CASE("damaged files are refused or read, never more") {
    const Scratch scratch;
    const auto path = scratch.file("x");
    REQUIRE(
        write_tensors(path, {{tensor("x", DType::f32, {4}, 16), tensor("y", DType::i8, {3}, 3)}}));
    const auto whole = contents(path);
    const auto seed = std::random_device{}();
    CAPTURE(seed);
    std::mt19937 random(seed);
    for (int round = 0; round < 500; ++round) {
        auto damaged = whole;
        for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
            damaged[random() % damaged.size()] = static_cast<char>(random());
        }
        write_text(path, damaged);
        auto file = TensorFile::open(path);
        if (!file) {
            continue;
        }
        for (const auto& entry : file->entries()) {
            auto bytes = file->read(entry);
            REQUIRE(bytes);
            CHECK(bytes->size() <= 19);
        }
    }
}

TEST_CASE("a failed write leaves the old file and no other") {
    const Scratch scratch;
    const auto path = scratch.file("out");
    CHECK_FALSE(write_tensors(scratch.file("no/such/folder"), {}));
    CHECK_FALSE(write_tensors(scratch.path().string(), {}));
    CHECK(scratch.entries() == 0);
    write_text(path, "old");
    REQUIRE(::chmod(path.c_str(), 0640) == 0);
    REQUIRE(write_tensors(path, {{tensor("x", DType::u8, {1}, 1)}}));
    CHECK(scratch.entries() == 1);
    CHECK((fs::status(path).permissions() & fs::perms::all) == fs::perms(0640));
}

TEST_CASE("writing through a link keeps the link") {
    const Scratch scratch;
    fs::create_symlink("target", scratch.path() / "link");
    REQUIRE(write_tensors(scratch.file("link"), {{tensor("x", DType::u8, {1}, 1)}}));
    CHECK(fs::is_symlink(scratch.path() / "link"));
    CHECK(TensorFile::open(scratch.file("target")));
}

TEST_CASE("time to read a header grows with its length, not with the square of its tensors") {
    const auto seconds = [](int count) {
        std::string header = "{";
        for (int i = 0; i < count; ++i)
            header += (i ? "," : "") + std::string("\"t") + std::to_string(i) +
                      R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
        const auto start = std::chrono::steady_clock::now();
        const auto entries = parse_header(header + "}", 0);
        REQUIRE(entries);
        CHECK(entries->size() == static_cast<std::size_t>(count));
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    // The square of 40,000 was 51 s; ten times the length takes about ten times as long.
    const double small = std::min(seconds(4000), seconds(4000));
    CHECK(seconds(40000) < 40 * small + 0.2);
}
