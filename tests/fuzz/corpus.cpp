#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <nlohmann/json.hpp>

#include "front/library.h"
#include "fuzz.h"

namespace flexc::fuzz {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string contents(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void add_folder(const fs::path& folder, Corpus& corpus) {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(folder))
        if (entry.path().extension() == ".flex") paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end()); // the same order on every machine
    for (const fs::path& path : paths)
        corpus.push_back(contents(path));
}

std::string param_type(const json& value) {
    return value.is_boolean() ? "bool" : value.is_number_integer() ? "i32" : "f32";
}

// A line of the conformance table as a program; its params have what it gives as defaults.
std::string program_of(const json& line) {
    std::string text;
    const json buffers = line.value("buffers", json::object());
    const json params = line.value("params", json::object());
    for (const auto& [name, given] : buffers.items()) {
        const auto words = given.get<std::string>();
        text += "buffer " + name + ": " + words.substr(0, words.find(']') + 1) +
                (words.ends_with(" grad") ? " grad\n" : "\n");
    }
    for (const auto& [name, value] : params.items())
        text += "param " + name + ": " + param_type(value) + " = " + value.dump() + "\n";
    for (const char* mod : {"score", "mask"})
        if (line.contains(mod))
            text += std::string(mod) + "_mod = " + line[mod].get<std::string>() + "\n";
    return text;
}

// Each value is used twice by the next: repeated, their lines ask a pass whether it looks at a node
// once.
constexpr auto kChains = std::to_array<const char*>(
    {"score_mod {\n  x = score\n  x = x * x + h\n  x = tanh(x) * x\n  x\n}\n",
     "score_mod {\n  x = score\n  x = where(x > q_idx, sin(x) * x, x / (abs(x) + 1.0))\n"
     "  x = max(x, min(x * 0.5, x + h))\n  x\n}\n",
     "score_mod {\n  g = sin(score)\n  g = where(score > 1, g, where(score < 2, 0.0, g))\n  g\n}\n",
     "mask_mod {\n  c = q_idx >= kv_idx\n  c = (c and q_idx != 3) and (c and kv_idx != 5)\n  "
     "c\n}\n",
     "buffer t: i8[Q_LEN]\nscore_mod {\n  x = t[q_idx] + t[kv_idx]\n  x = x + x\n"
     "  s = score\n  s = s + float(x - 1)\n  s\n}\n",
     "buffer t: f32[N] grad\nscore_mod {\n  i = q_idx\n  i = where(i > kv_idx, i - 1, i + i)\n"
     "  i = i // 2 + i % 7\n  score + t[i]\n}\n",
     "mask_mod {\n  m = q_idx >= kv_idx\n  i = kv_idx\n  i = max(i, min(i + q_idx, 64 - i)) % 64\n"
     "  m = (m and i < q_idx) or (not m and i > 3)\n  m\n}\n",
     "buffer t: f32[N] grad\nscore_mod {\n  x = score + t[h]\n  x = x + t[q_idx - kv_idx + 3] * x\n"
     "  x\n}\n",
     "fn f0(x) = x * h + x\nfn f1(x) = f0(f0(x) + nothing)\nfn f2(x) = f1(f1(x))\n"
     "score_mod = f2(f2(score))\n"});

} // namespace

Corpus program_corpus() {
    Corpus corpus;
    for (int times = 0; times < 4; ++times) // so that they are changed more often than others
        corpus.insert(corpus.end(), kChains.begin(), kChains.end());
    for (const front::LibraryMod& mod : front::library())
        corpus.emplace_back(mod.text);
    std::istringstream table(contents(FLEXC_SOURCE_DIR "/tests/conformance/cases.jsonl"));
    for (std::string line; std::getline(table, line);)
        corpus.push_back(program_of(json::parse(line)));
    add_folder(FLEXC_SOURCE_DIR "/tests/golden/cases", corpus);
    add_folder(FLEXC_SOURCE_DIR "/tests/error", corpus);
    return corpus;
}

} // namespace flexc::fuzz
