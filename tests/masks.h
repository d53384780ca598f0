// Masks that people use, with data for the arrays that they capture.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "analysis/tile_class.h"
#include "ir/interp.h"
#include "program_of.h"

namespace flexc::test {

// The lengths that a program sees.
struct MaskSizes {
    std::int64_t q_len = 0, kv_len = 0;
};

struct MaskCase {
    std::string text;
    analysis::MaskTier tier;
    // Of a buffer's element at its flat position; the default is position * 7 % 5.
    std::map<std::string, std::function<std::int64_t(std::int64_t)>> integers = {};
};

// Seven values of a query and of a key: more than a lane of Hopper's kernels holds for all words.
inline const char* const kMaskOfManyValues =
    "mask_mod = abs(q_idx // 50 - kv_idx // 50) <= 2 and abs(q_idx % 50 - kv_idx % 50) <= 30 and "
    "(q_idx % 11 + kv_idx % 13 < 17 or q_idx % 3 == kv_idx % 5 or q_idx % 17 <= kv_idx % 19) and "
    "(q_idx // 3 % 23 != kv_idx // 5 % 21 or q_idx // 6 % 7 == kv_idx // 4 % 9)";

// Documents of growing length: 0, 0, 0, 1, 1, 1, 1, 1, ...
inline std::int64_t document(std::int64_t position) {
    std::int64_t index = 0, length = 5;
    for (std::int64_t start = 0; position >= start + length; ++index, length += 6)
        start += length;
    return index;
}
inline std::int64_t document_start(std::int64_t index) {
    std::int64_t start = 0;
    for (std::int64_t i = 0; i < index; ++i)
        start += 5 + 6 * i;
    return start;
}

// Prefixes, padding, and what these give with bands: each query sees one range of keys.
inline std::vector<MaskCase> clamped_cases() {
    constexpr auto kTier = analysis::MaskTier::closed_form;
    // The first batch has a length beyond the end, the second a negative one.
    const std::map<std::string, std::function<std::int64_t(std::int64_t)>> extremes = {
        {"lens", [](std::int64_t i) { return i == 0 ? 1000 : -3; }}};
    const std::string lens = "buffer lens: i32[B]\nmask_mod = ";
    return {
        {"mask_mod = kv_idx < 21 or q_idx >= kv_idx", kTier},
        {"param n: int = 37\nmask_mod = kv_idx <= n or q_idx >= kv_idx", kTier},
        {"param n: int = -5\nmask_mod = kv_idx < n or q_idx >= kv_idx", kTier},
        {lens + "kv_idx < lens[b] * 9 or q_idx >= kv_idx", kTier},
        {lens + "kv_idx < lens[b] or q_idx >= kv_idx", kTier, extremes},
        {lens + "kv_idx < lens[b]", kTier, extremes},
        {lens + "kv_idx < lens[b] * 9 + 20", kTier},
        {lens + "kv_idx >= lens[b] * 9 and q_idx >= kv_idx", kTier},
        {lens + "q_idx < lens[b] * 9 + 20 and kv_idx < lens[b] * 9 + 20", kTier},
        {lens + "q_idx < lens[b] * 9 + 20 and q_idx >= kv_idx", kTier},
        {lens + "(kv_idx < 30 or q_idx >= kv_idx) and kv_idx < lens[b] * 9 + 20", kTier},
        {lens + "kv_idx < lens[b] or q_idx >= kv_idx and kv_idx < 40", kTier},
        {lens + "max(q_idx - 12, lens[b] * 5) <= kv_idx and kv_idx <= min(q_idx + 3, 61)", kTier},
        {"mask_mod = 3 * kv_idx < 100 and 2 * q_idx >= 9 and -2 * kv_idx <= -7", kTier},
        {"mask_mod = q_idx < 37", kTier},
        {"mask_mod = kv_idx == 17 and q_idx >= 4", kTier},
        {"mask_mod = kv_idx < 70 and kv_idx >= 70", kTier},
    };
}

// Causal and windows first, then what needs arrays, then what no interval decides.
inline std::vector<MaskCase> mask_cases() {
    using enum analysis::MaskTier;
    const auto with_documents = [](std::string text, analysis::MaskTier tier = tile_tests) {
        return MaskCase{"buffer doc: i32[N]\nbuffer off: i32[M]\n" + std::move(text),
                        tier,
                        {{"doc", document}, {"off", document_start}}};
    };
    // The last tokens belong to no document.
    const auto with_padding = [](std::string text) {
        return MaskCase{
            "buffer doc: i32[N]\n" + std::move(text),
            tile_tests,
            {{"doc", [](std::int64_t i) { return i % 64 > 50 ? -1 : document(i % 64); }}}};
    };
    return {
        {"mask_mod = true", constant},
        {"mask_mod = q_idx >= kv_idx and not (q_idx >= kv_idx)", closed_form},
        {"mask_mod = q_idx >= kv_idx", closed_form},
        {"mask_mod = q_idx <= kv_idx", closed_form},
        {"param W: int = 9\nmask_mod = q_idx - kv_idx <= W and q_idx >= kv_idx", closed_form},
        {"mask_mod = abs(q_idx - kv_idx) <= 11", closed_form},
        {"mask_mod = q_idx >= kv_idx and q_idx <= kv_idx + 32", closed_form},
        {"mask_mod = q_idx + KV_LEN - Q_LEN >= kv_idx", closed_form},
        {"buffer off: i32[B]\nmask_mod = q_idx + off[b] * 16 >= kv_idx", closed_form},
        {"mask_mod = q_idx - kv_idx <= 24 and q_idx >= kv_idx or kv_idx - q_idx < 0", tile_tests},
        {"mask_mod = kv_idx < 21 or q_idx >= kv_idx", tile_tests},
        {"buffer prefix: i32[B]\nmask_mod = kv_idx <= prefix[b] * 6 or q_idx >= kv_idx",
         tile_tests},
        {"mask_mod = abs(q_idx - kv_idx) <= 24 and abs(q_idx - kv_idx) % 3 == 0", tile_tests},
        {"buffer g: bool[N]\nmask_mod = abs(q_idx - kv_idx) <= 8 or g[q_idx] or g[kv_idx]",
         tile_tests,
         {{"g", [](std::int64_t i) { return i % 37 == 0; }}}},
        with_documents("mask_mod = doc[q_idx] == doc[kv_idx]"),
        with_documents("mask_mod = doc[q_idx] == doc[kv_idx] and q_idx >= kv_idx"),
        with_documents("mask_mod = q_idx >= kv_idx or doc[q_idx] == doc[kv_idx]"),
        with_documents("mask_mod = doc[q_idx] == doc[kv_idx] and "
                       "q_idx - off[doc[q_idx]] >= kv_idx - off[doc[kv_idx]]"),
        with_documents("mask_mod = kv_idx >= off[doc[q_idx]] and q_idx >= kv_idx"),
        with_documents("mask_mod = doc[q_idx] == doc[kv_idx] and "
                       "(q_idx >= kv_idx or kv_idx - off[doc[kv_idx]] < 3)"),
        with_documents("fn d() = doc[q_idx]\nfn p() = d() // 2\n"
                       "mask_mod = (kv_idx >= off[d()] and q_idx >= kv_idx) or "
                       "(d() != p() and kv_idx >= off[p()] and kv_idx < off[p() + 1])"),
        with_documents("mask_mod = doc[clamp(q_idx, 0, 40)] == doc[clamp(kv_idx, 0, 40)]"),
        with_padding("mask_mod = doc[q_idx] == doc[kv_idx]"),
        with_padding("mask_mod = doc[q_idx] == doc[kv_idx] and doc[q_idx] >= 0"),
        {"buffer doc: i32[B, N]\nmask_mod = doc[b, q_idx] == doc[b, kv_idx] and doc[b, q_idx] != "
         "-1",
         tile_tests,
         {{"doc", [](std::int64_t i) { return i % 13 == 0 ? -1 : i / 29; }}}},
        // Of no order: ranges overlap where sets do not.
        {"buffer doc: i32[N]\nmask_mod = doc[q_idx] == doc[kv_idx]",
         tile_tests,
         {{"doc", [](std::int64_t i) { return i / 16 * 7 % 5; }}}},
        // Block diffusion, trees, batches in one sequence.
        {"const S = 40\nconst L = 8\n"
         "fn qb() = q_idx % S // L\nfn kb() = kv_idx % S // L\n"
         "fn qn() = q_idx < S\nfn kn() = kv_idx < S\n"
         "mask_mod = (qb() == kb() and qn() == kn()) or (qb() > kb() and qn() and not kn()) or "
         "(qb() >= kb() and not qn() and not kn())",
         tile_tests},
        {"const P = 12\nconst L = 8\n"
         "mask_mod = kv_idx < P or (kv_idx >= P and q_idx // L == (kv_idx - P) // L and "
         "(kv_idx - P) % L <= q_idx % L)",
         tile_tests},
        {"mask_mod = q_idx // 16 == kv_idx // 16", tile_tests},
        {"mask_mod = q_idx // 20 == kv_idx // 20 and q_idx % 20 >= kv_idx % 20", tile_tests},
        // Neighbourhoods of images.
        {"const W = 9\nconst K = 2\n"
         "fn near(a, c) = abs(clamp(a, K, W - 1 - K) - c) <= K\n"
         "mask_mod = near(q_idx // W, kv_idx // W) and near(q_idx % W, kv_idx % W)",
         tile_tests},
        {"const W = 8\nmask_mod = abs(q_idx // W - kv_idx // W) <= 2 and "
         "abs(q_idx % W - kv_idx % W) <= 1",
         tile_tests},
        {"fn bits(i) = (i & 1) | (i >> 1 & 2) | (i >> 2 & 4)\n"
         "mask_mod = abs(bits(q_idx) - bits(kv_idx)) <= 1 and "
         "abs(bits(q_idx >> 1) - bits(kv_idx >> 1)) <= 1",
         tile_tests},
        {kMaskOfManyValues, tile_tests},
        {"param width: f32 = 0.3\nconst T = 20\nmask_mod = kv_idx < 6 or q_idx < 6 or "
         "abs(q_idx - kv_idx) < int(round(width * T))",
         tile_tests},
        {"buffer lens: i32[B]\nmask_mod = q_idx < lens[b] * 9 + 20 and kv_idx < lens[b] * 9 + 20",
         tile_tests},
        {"buffer lens: i32[B]\nmask_mod = q_idx < lens[b] * 9 + 20 and q_idx >= kv_idx",
         tile_tests},
        {"mask_mod = (q_idx - kv_idx <= 10 or kv_idx < 4) and q_idx >= kv_idx", tile_tests},
        {"mask_mod = q_idx < 37", tile_tests},
        {"mask_mod = kv_idx < 16 or kv_idx >= 48", tile_tests},
        {"mask_mod = q_idx >= kv_idx and b % 2 == 0", tile_tests},
        {"buffer keep: bool[B, N]\nmask_mod = not keep[b, q_idx]",
         tile_tests,
         {{"keep", [](std::int64_t i) { return i % 3 == 0; }}}},
        {"buffer val: f32[]\nmask_mod = abs(q_idx - kv_idx) < val * 20", tile_tests},
        {"mask_mod = not (q_idx - kv_idx <= 17)", closed_form},
        {"buffer interval: i32[N, 2]\nbuffer img: i32[N]\n"
         "mask_mod = interval[img[kv_idx], 0] <= q_idx and q_idx < interval[img[kv_idx], 1]",
         tile_tests,
         {{"interval", [](std::int64_t i) { return i / 2 * 15 + i % 2 * 18; }}, {"img", document}}},
        {"buffer page: i32[N]\n"
         "mask_mod = page[kv_idx] >= 0 and q_idx >= page[kv_idx] * 8 + kv_idx % 8",
         tile_tests,
         {{"page", [](std::int64_t i) { return i / 8 % 3 == 0 ? -1 : i / 8 * 5 % 7; }}}},
        {"buffer seen: bool[B, Q_LEN, KV_LEN]\nmask_mod = seen[b, q_idx, kv_idx]",
         exhaustive,
         {{"seen", [](std::int64_t i) { return i / 700 % 2 == 0; }}}},
        {"buffer tree: bool[N, 16]\n"
         "mask_mod = kv_idx < 20 or (kv_idx < 36 and tree[q_idx, clamp(kv_idx - 20, 0, 15)])",
         tile_tests,
         {{"tree", [](std::int64_t i) { return i / 16 % 16 >= i % 16; }}}},
        {"mask_mod = (q_idx * 31 + kv_idx * 17) % 5 == 0", exhaustive},
        {"mask_mod = (q_idx + kv_idx) % 2 == 0 and h % 2 == 1", tile_tests},
    };
}

// A mask of a call: its program and the values of everything but q_idx and kv_idx.
class MaskInstance {
  public:
    MaskInstance(const MaskCase& one, MaskSizes sizes, bool clamps_bands = false,
                 bool backward = false)
        : mod_(lowered(one.text, {.backward = backward, .clamps_bands = clamps_bands})) {
        const ir::Program& program = mod_.program;
        environment_.sizes = {kBatch, kHeads, kHeads, sizes.q_len, sizes.kv_len, 64, 64};
        environment_.sizes.resize(program.sizes.size(), std::max(sizes.q_len, sizes.kv_len));
        for (const ir::Param& param : program.params)
            environment_.params.push_back(
                {.integer = static_cast<std::int64_t>(param.default_value),
                 .real = param.default_value});
        for (const ir::Buffer& buffer : program.buffers) {
            auto data = std::make_unique<ir::BufferData>();
            std::int64_t count = 1;
            for (const ir::Dim& dim : buffer.dims) {
                data->extents.push_back(dim.is_constant() ? dim.constant
                                                          : environment_.sizes[dim.size]);
                count *= data->extents.back();
            }
            const auto rule = one.integers.find(buffer.name);
            for (std::int64_t i = 0; i < count; ++i) {
                const std::int64_t value = rule == one.integers.end() ? i * 7 % 5 : rule->second(i);
                data->integers.push_back(value);
                data->reals.push_back(static_cast<double>(value) + 0.5);
            }
            environment_.buffers.push_back(data.get());
            data_.push_back(std::move(data));
        }
    }
    static constexpr std::int64_t kBatch = 2, kHeads = 2;

    const passes::Mod& mod() const { return mod_; }
    const ir::Environment& move(std::int64_t b, std::int64_t h) {
        environment_.b = b;
        environment_.h = environment_.h_kv = h;
        return environment_;
    }
    bool visible(std::int64_t q, std::int64_t kv) {
        environment_.q_idx = q;
        environment_.kv_idx = kv;
        values_.resize(mod_.program.graph.size());
        if (order_.empty()) order_ = ir::reachable(mod_.program.graph, std::span(&mod_.mask, 1));
        ir::evaluate_nodes(mod_.program, order_, environment_, values_);
        return values_[mod_.mask].boolean;
    }

  private:
    passes::Mod mod_;
    ir::Environment environment_;
    std::vector<std::unique_ptr<ir::BufferData>> data_;
    std::vector<ir::NodeId> order_;
    std::vector<ir::Value<double>> values_;
};

} // namespace flexc::test
