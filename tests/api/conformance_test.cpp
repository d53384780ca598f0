// The cases of tests/conformance/cases.jsonl on the CPU, against attention by its definition. A
// line is a case: a mod as it is written for PyTorch, and what it captures. Where it names a mod of
// the library, that mod has to mean the same. tests/gpu/conformance.py reads the same table.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "api/case.h"
#include "support/text.h"

using namespace flexc;
using flexc::test::Case;
using nlohmann::json;

namespace {

struct Line {
    std::string name, library, score, mask, sink, error;
    std::map<std::string, std::string> buffers; // "f32[H] grad", "i32[B] list:4:9"
    std::map<std::string, json> params;
    std::map<std::string, std::int64_t> sizes;
    bool d_lse = false;
};

std::vector<Line> table() {
    std::ifstream file(FLEXC_SOURCE_DIR "/tests/conformance/cases.jsonl");
    std::vector<Line> lines;
    for (std::string text; std::getline(file, text);) {
        const json read = json::parse(text);
        lines.push_back({.name = read.at("name"),
                         .library = read.value("library", ""),
                         .score = read.value("score", ""),
                         .mask = read.value("mask", ""),
                         .sink = read.value("sink", ""),
                         .error = read.value("error", ""),
                         .buffers = read.value("buffers", decltype(Line::buffers){}),
                         .params = read.value("params", decltype(Line::params){}),
                         .sizes = read.value("sizes", decltype(Line::sizes){}),
                         .d_lse = read.value("d_lse", false)});
    }
    return lines;
}

std::string param_type(const json& value) {
    return value.is_boolean() ? "bool" : value.is_number_integer() ? "i32" : "f32";
}

// The declarations and bodies of a line as a program.
std::string program_of(const Line& line) {
    std::string text;
    for (const auto& [name, words] : line.buffers)
        text += formatted("buffer {}: {}{}\n", name, words.substr(0, words.find(']') + 1),
                          words.ends_with(" grad") ? " grad" : "");
    for (const auto& [name, value] : line.params)
        text += formatted("param {}: {}\n", name, param_type(value));
    if (!line.score.empty()) text += formatted("score_mod = {}\n", line.score);
    if (!line.mask.empty()) text += formatted("mask_mod = {}\n", line.mask);
    if (!line.sink.empty()) text += formatted("sink = {}\n", line.sink);
    return text;
}

std::string text_of_library(const std::string& name) {
    for (const LibraryEntry& entry : library())
        if (entry.name == name) return entry.text;
    return "";
}

// What "segments:6", "mod:5", "const:1" or "list:1:2" puts at a flat position. Segments start anew
// in every `row`.
double filled(const std::string& fill, std::int64_t position, std::int64_t row) {
    std::istringstream stream(fill);
    std::string word;
    std::getline(stream, word, ':');
    std::vector<double> numbers;
    for (std::string number; std::getline(stream, number, ':');)
        numbers.push_back(std::stod(number));
    const std::int64_t first = std::max<std::int64_t>(1, std::llround(numbers.at(0)));
    std::int64_t counted = position % first;
    if (word == "segments") counted = position % row / first;
    if (word == "segments" || word == "mod") return static_cast<double>(counted);
    return numbers[static_cast<std::size_t>(position) % numbers.size()];
}

Case case_of(const Line& line) {
    Case one{.batch = 2, .heads = 4, .kv_heads = 2, .q_len = 19, .kv_len = 23, .head_dim = 16};
    one.text = program_of(line);
    if (!line.library.empty()) {
        one.reference = one.text;
        one.text = text_of_library(line.library);
    }
    const std::map<std::string, std::int64_t*> standard = {{"B", &one.batch},
                                                           {"H", &one.heads},
                                                           {"H_KV", &one.kv_heads},
                                                           {"Q_LEN", &one.q_len},
                                                           {"KV_LEN", &one.kv_len}};
    for (const auto& [name, value] : line.sizes) {
        if (name == "D")
            one.head_dim = static_cast<int>(value);
        else if (name == "DV")
            one.head_dim_v = static_cast<int>(value);
        else if (const auto known = standard.find(name); known != standard.end())
            *known->second = value;
        else
            one.dims[name] = value;
    }
    for (const auto& [name, value] : line.params)
        one.params[name] = value.is_boolean() ? (value ? 1.0 : 0.0) : value.get<double>();
    for (const auto& [name, words] : line.buffers) {
        const std::string last = words.substr(words.rfind(' ') + 1);
        if (last.find(':') == std::string::npos) continue;
        const auto rule = [last, row = one.kv_len](std::int64_t i) { return filled(last, i, row); };
        if (words.front() == 'f')
            one.reals[name] = rule;
        else
            one.integers[name] = [rule](std::int64_t i) {
                return static_cast<std::int64_t>(rule(i));
            };
    }
    one.with_d_lse = line.d_lse;
    return one;
}

} // namespace

TEST_CASE("conformance: mods mean on the CPU what they mean in PyTorch" * doctest::skip()) {
    int count = 0;
    for (const Line& line : table()) {
        CAPTURE(line.name);
        ++count;
        const std::string outcome = test::run_case(case_of(line), Device::cpu(), 1);
        if (line.error.empty())
            CHECK(outcome == "");
        else
            CHECK_MESSAGE(outcome.find(line.error) != std::string::npos, outcome);
    }
    CHECK(count >= 230);
    MESSAGE(count, " cases");
}

TEST_CASE("conformance: every mod of the library has a case") {
    std::set<std::string> tested;
    for (const Line& line : table())
        tested.insert(line.library);
    for (const LibraryEntry& entry : library())
        CHECK_MESSAGE(tested.contains(entry.name), entry.name);
}
