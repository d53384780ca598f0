// Tensor files: a header of any JSON, any lengths, any bytes.
#include "flexc/safetensors.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <sys/mman.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "tensor_files.h"

namespace flexc::fuzz {

namespace {

using nlohmann::json;

constexpr std::size_t kLengthBytes = 8;

// What follows the header, if the length of that is right.
std::string_view data_of(std::string_view file) {
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i)
        length |= std::uint64_t{static_cast<unsigned char>(file[i])} << (8 * i);
    return file.substr(kLengthBytes + std::min<std::uint64_t>(length, file.size() - kLengthBytes));
}

Corpus tensor_corpus() {
    const std::vector<std::pair<json, std::size_t>> files = {
        {json::object(), 0},
        {{{"q", tensor_entry("F32", {1, 2, 3, 4}, 0, 96)}}, 96},
        {{{"q", tensor_entry("BF16", {2, 2}, 0, 8)}, {"scalar", tensor_entry("F64", {}, 8, 16)}},
         16},
        {{{"__metadata__", {{"format", "pt"}}}, {"empty", tensor_entry("I64", {0, 5}, 0, 0)}}, 0},
        {{{"a", tensor_entry("BOOL", {3}, 0, 3)},
          {"b", tensor_entry("U8", {1}, 3, 4)},
          {"c", tensor_entry("I16", {2, 1, 1, 1, 1, 1, 1, 1}, 4, 8)},
          {"d", tensor_entry("I32", {1}, 8, 12)},
          {"e", tensor_entry("I8", {4}, 12, 16)}},
         16}};
    Corpus result;
    for (const auto& [header, bytes] : files)
        result.push_back(file_of(header.dump(), std::string(bytes, 'x')));
    return result;
}

// A number, a name or a value of the wrong kind.
json hostile_value(Random& random) {
    switch (random.integer(0, 5)) {
    case 0: {
        const json number = json::parse(hostile_number(random), nullptr, false);
        return number.is_discarded() ? json("F32") : number;
    }
    case 1: return random.integer(0, 1'000);
    case 2: return std::uint64_t{1} << random.integer(0, 63);
    case 3:
        return random.pick(std::array{"F64", "BF16", "U8", "BOOL", "F8_E4M3", "", "dtype", "shape",
                                      "data_offsets", "__metadata__"});
    case 4: return random.pick(std::array{json(), json(true), json::array(), json::object()});
    default: return json::array({random.integer(-1, 9), random.integer(-1, 9)});
    }
}

// One change somewhere below `value`.
void change_value(json& value, Random& random) {
    if (!value.is_structured() || value.empty() || random.chance(10)) {
        if (value.is_array() && random.chance(50))
            value.insert(value.end(), static_cast<std::size_t>(random.integer(1, 9)),
                         hostile_value(random));
        else
            value = hostile_value(random);
        return;
    }
    const auto at = random.integer(0, static_cast<std::int64_t>(value.size()) - 1);
    auto item = value.begin();
    std::advance(item, at);
    if (value.is_object() && random.chance(15)) {
        // Another name for the same tensor, beside it or alone.
        json copy = *item;
        if (random.chance(50)) value.erase(item);
        value[std::string(hostile_number(random))] = std::move(copy);
    } else if (random.chance(10)) {
        value.erase(item);
    } else {
        change_value(*item, random);
    }
}

} // namespace

json tensor_entry(const char* type, std::vector<std::uint64_t> shape, std::uint64_t begin,
                  std::uint64_t end) {
    return {{"dtype", type}, {"shape", std::move(shape)}, {"data_offsets", {begin, end}}};
}

std::string file_of(const std::string& header, const std::string& data) {
    std::string bytes;
    for (std::size_t i = 0; i < kLengthBytes; ++i)
        bytes += static_cast<char>(header.size() >> (8 * i) & 0xff);
    return bytes + header + data;
}

std::string mutate_file(const std::string& input, const Corpus& corpus, Random& random) {
    if (random.chance(30) || input.size() < kLengthBytes)
        return mutate_bytes(input, corpus, random);
    const std::string_view given = data_of(input);
    json header = json::parse(
        input.substr(kLengthBytes, input.size() - kLengthBytes - given.size()), nullptr, false);
    if (header.is_discarded()) return mutate_bytes(input, corpus, random);
    for (auto changes = random.integer(1, 3); changes > 0; --changes)
        change_value(header, random);
    std::string text = header.dump(-1, ' ', false, json::error_handler_t::replace);
    if (random.chance(20)) text = mutate_text(text, corpus, random);
    std::string data(given);
    if (random.chance(20)) data.resize(static_cast<std::size_t>(random.integer(0, 200)), 'y');
    return file_of(text, data);
}

MemoryFile::MemoryFile(std::string_view bytes) : descriptor_(::memfd_create("tensors", 0)) {
    require(descriptor_ >= 0 && ::write(descriptor_, bytes.data(), bytes.size()) ==
                                    static_cast<ssize_t>(bytes.size()),
            "the file cannot be written");
}
MemoryFile::~MemoryFile() { ::close(descriptor_); }

namespace {

void run_tensors(std::string_view input) {
    const MemoryFile memory(input);
    auto file = cli::TensorFile::open(memory.path());
    if (!file) {
        require(!file.error().message.empty(), "an error says nothing");
        return;
    }
    count_accepted();
    std::uint64_t total = 0;
    for (const cli::TensorEntry& entry : file->entries()) {
        std::uint64_t bytes = size_of(entry.dtype);
        for (const std::int64_t extent : entry.shape) {
            require(extent >= 0, "a shape is negative");
            require(!__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(extent), &bytes),
                    "a tensor of more than 2^64 bytes is accepted");
        }
        require(file->find(entry.name) == &entry, "a tensor is not found under its name");
        const auto data = file->read(entry);
        require(data.has_value(), "a tensor that the header has cannot be read");
        require(data->size() == bytes, "a tensor has not the bytes of its shape");
        const std::string_view expected = data_of(input).substr(entry.begin, bytes);
        require(bytes == 0 || std::memcmp(data->data(), expected.data(), bytes) == 0,
                "a tensor has other bytes than the file");
        total += bytes;
    }
    require(total <= input.size(), "the tensors are larger than the file");
}

} // namespace

const Target kTensors = {.name = "tensors",
                         .meaning = "tensor files of the command",
                         .cpu_seconds = 1,
                         .corpus = tensor_corpus,
                         .mutate = mutate_file,
                         .run = run_tensors};

} // namespace flexc::fuzz
