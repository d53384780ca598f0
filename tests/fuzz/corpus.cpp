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

// Reads whose indices join query and key: shifted, clamped, of several axes, by kinds of positions,
// and rows of packed tensors; some are scaled by params.
constexpr auto kReads = std::to_array<const char*>(
    {"buffer t: bf16[H, N] grad\nscore_mod = score + t[h, q_idx - kv_idx + 64]\n",
     "buffer t: f32[B, H, Q_LEN, N] grad\n"
     "score_mod = score + t[b, h, q_idx, kv_idx - q_idx + Q_LEN - 1]\n",
     "buffer t: f32[Q_LEN, N]\nbuffer u: f32[KV_LEN, N] grad\nparam scale: f32 = 0.5\nscore_mod {\n"
     "  far = clamp(q_idx - kv_idx + 7, 0, N - 1)\n"
     "  (score + t[q_idx, far] + u[kv_idx, far]) * scale\n}\n",
     "buffer t: f32[H, 7, 5] grad\nscore_mod = score + t[h, clamp(q_idx // 8 - kv_idx // 8 + 3, 0, "
     "6), "
     "clamp(q_idx % 8 - kv_idx % 8 + 2, 0, 4)]\n",
     "buffer kind: i32[N]\nbuffer t: f32[4, 4] grad\n"
     "score_mod = score + t[kind[q_idx], kind[kv_idx]]\nmask_mod = kind[q_idx] != 2 or kv_idx < "
     "9\n",
     "param cap: f32\nparam slope: f32 = 0.5\nbuffer t: f32[32] grad\nscore_mod {\n"
     "  bucket = int(min(log2(1.0 + abs(q_idx - kv_idx)) * slope, 31.0))\n"
     "  cap * tanh((score + t[bucket]) / cap)\n}\n",
     "buffer t: f32[N] grad\nbuffer doc: i32[N]\nscore_mod = score + t[kv_row] * t[q_row]\n"
     "mask_mod = doc[q_row] == doc[kv_row] and q_idx >= kv_idx\n",
     "buffer s: f32[H] grad\nbuffer t: f32[N] grad\nscore_mod = score * t[min(KV_LEN - kv_idx, N - "
     "1)]\n"
     "mask_mod = kv_idx < KV_LEN - 2\nsink = s[h] + tanh(q_idx * 0.1)\n"});

} // namespace

Corpus program_corpus() {
    Corpus corpus;
    for (int times = 0; times < 4; ++times) { // so that they are changed more often than others
        corpus.insert(corpus.end(), kChains.begin(), kChains.end());
        corpus.insert(corpus.end(), kReads.begin(), kReads.end());
    }
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
