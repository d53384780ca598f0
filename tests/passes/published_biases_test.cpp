// Learned biases as published models write them, and how Hopper's backward sums their gradients. An
// element's own addition to memory, "element", is none of them: where elements share an entry they
// wait for each other.
#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "passes/gradient_sum.h"
#include "passes/table_gradient.h"
#include "program_of.h"

using namespace flexc;

namespace {

passes::Mod lowered(const std::string& program) {
    return test::lowered(program, {.divides_by_derivative = true});
}

// Of each gradient, in the order of the reads.
std::string sums_of(const passes::Mod& mod, const passes::TileSums& tile) {
    std::string text;
    for (const passes::ReadGradient& gradient : mod.gradients)
        text += (text.empty() ? "" : ", ") + std::string(gradient.is_weighted ? "weighted " : "") +
                std::string(name(passes::gradient_sum(mod, gradient, tile)));
    return text;
}

// The same of kernels that share the gradients: "head, table | distance" if there are two.
std::string sums_of_kernels(const std::vector<passes::Mod>& kernels) {
    std::string text;
    for (const passes::Mod& kernel : kernels)
        text += (&kernel == &kernels.front() ? "" : " | ") +
                sums_of(kernel, passes::usual_sums(kernel));
    return text;
}
std::string sums_of_kernels(const passes::Mod& mod) {
    return mod.gradient_passes.empty() ? sums_of(mod, passes::usual_sums(mod))
                                       : sums_of_kernels(mod.gradient_passes);
}

struct Published {
    const char *name, *buffers, *score, *sums;
};
// clang-format off
const Published kPublished[] = {
    {"ALiBi, slopes learned",
     "buffer s: f32[H] grad",
     "score + s[h] * (kv_idx - q_idx)",
     "head"},
    {"ALiBi of an encoder",
     "buffer s: f32[H] grad",
     "score - s[h] * abs(q_idx - kv_idx)",
     "head"},
    {"T5, decoder",
     "buffer t: f32[32, H] grad",
     "score + t[min(max(q_idx - kv_idx, 0), 31), h]",
     "distance"},
    {"T5, encoder",
     "buffer t: f32[32, H] grad",
     "score + t[min(abs(kv_idx - q_idx), 15) + (16 if kv_idx > q_idx else 0), h]",
     "distance"},
    {"T5, one table for each sign",
     "buffer a: f32[H, 64] grad\nbuffer c: f32[H, 64] grad",
     "score + where(q_idx >= kv_idx, a[h, min(q_idx - kv_idx, 63)], c[h, min(kv_idx - q_idx, 63)])",
     "distance, distance"},
    {"WavLM",
     "buffer t: f32[H, 64] grad\nbuffer g: f32[B, H, Q_LEN] grad",
     "score + g[b, h, q_idx] * t[h, clamp(kv_idx - q_idx, -31, 32) + 31]",
     "query, weighted distance"},
    {"DeBERTa's buckets",
     "buffer t: f32[H, 512] grad",
     "score + t[h, clamp((q_idx - kv_idx) if abs(q_idx - kv_idx) < 128 else (1 if q_idx > kv_idx "
     "else -1) * int(log(abs(q_idx - kv_idx)) * 40), -256, 255) + 256]",
     "distance"},
    {"Music Transformer, skewed",
     "buffer r: f32[B, H, Q_LEN, N] grad",
     "score + r[b, h, q_idx, q_idx - kv_idx]\nmask_mod = q_idx >= kv_idx",
     "shifted"},
    {"Shaw, clamped",
     "buffer r: f32[B, H, Q_LEN, 129] grad",
     "score + r[b, h, q_idx, clamp(kv_idx - q_idx, -64, 64) + 64]",
     "shifted"},
    {"Kerple",
     "buffer a: f32[H] grad\nbuffer p: f32[H] grad",
     "score - a[h] * log(1 + p[h] * abs(q_idx - kv_idx))",
     "distance, distance"},
    {"Sandwich",
     "buffer r: f32[H] grad",
     "score + r[h] * sum(i in 0..8: cos((q_idx - kv_idx) / 10000 ** (i / 8)))",
     "distance"},
    {"a table between whose entries is interpolated",
     "buffer t: f32[H, 65] grad",
     "score + (1 - (abs(q_idx - kv_idx) / 16 - abs(q_idx - kv_idx) // 16)) * t[h, min(abs(q_idx "
     "- kv_idx) // 16, 63)]",
     "distance"},
    {"mixtures of tables",
     "buffer a: f32[H, 4] grad\nbuffer t: f32[4, 257] grad",
     "score + sum(i in 0..4: a[h, i] * t[i, min(abs(q_idx - kv_idx), 256)])",
     "distance, distance, distance, distance, distance, distance, distance, distance"},
    {"a gate between content and position",
     "buffer a: f32[H] grad\nbuffer t: f32[H, 257] grad",
     "(1 - sigmoid(a[h])) * score + sigmoid(a[h]) * t[h, min(abs(q_idx - kv_idx), 256)]",
     "head, distance"},
    {"learned decay of the future",
     "buffer d: f32[H] grad",
     "score * where(q_idx >= kv_idx, 1.0, d[h])",
     "head"},
    {"a factor for each distance",
     "buffer t: f32[H, 257] grad",
     "score * t[h, min(abs(q_idx - kv_idx), 256)]",
     "weighted distance"},
    {"distances of one document",
     "buffer doc: i32[B, Q_LEN]\nbuffer t: f32[H, 128] grad",
     "score + where(doc[b, q_idx] == doc[b, kv_idx], t[h, min(abs(q_idx - kv_idx), 127)], 0.0)",
     "weighted distance"},
    {"distances but for a token",
     "buffer t: f32[H, 257] grad\nbuffer c: f32[H] grad",
     "score + where(q_idx == 0 or kv_idx == 0, c[h], t[h, clamp(q_idx - kv_idx, -128, 127) + 128])",
     "head, weighted distance"},
    {"distances of position ids",
     "buffer pos: i32[B, Q_LEN]\nbuffer t: f32[H, 257] grad",
     "score + t[h, clamp(pos[b, kv_idx] - pos[b, q_idx], -128, 128) + 128]",
     "table"},
    {"TiSASRec",
     "buffer ts: i32[B, Q_LEN]\nbuffer t: f32[H, 257] grad",
     "score + t[h, min(abs(ts[b, q_idx] - ts[b, kv_idx]), 256)]",
     "table"},
    {"distances by level",
     "buffer lv: i32[Q_LEN]\nbuffer t: f32[H, 4, 257] grad",
     "score + t[h, lv[q_idx], clamp(q_idx - kv_idx, -128, 128) + 128]",
     "table"},
    {"Swin",
     "buffer t: f32[H, 27, 27] grad",
     "score + t[h, q_idx // 14 - kv_idx // 14 + 13, q_idx % 14 - kv_idx % 14 + 13]",
     "distance"},
    {"Swin, second version",
     "buffer t: f32[H, 27, 27] grad",
     "score + 16 * sigmoid(t[h, q_idx // 14 - kv_idx // 14 + 13, q_idx % 14 - kv_idx % 14 + 13])",
     "weighted table"},
    {"BEiT, with a token",
     "buffer t: f32[H, 732] grad",
     "score + t[h, where(q_idx == 0, where(kv_idx == 0, 731, 729), where(kv_idx == 0, 730, "
     "((q_idx - 1) // 14 - (kv_idx - 1) // 14 + 13) * 27 + (q_idx - 1) % 14 - (kv_idx - 1) % 14 "
     "+ 13))]",
     "table"},
    {"a table read through a tensor of indices",
     "buffer e: i32[Q_LEN, KV_LEN]\nbuffer t: f32[732, H] grad",
     "score + t[e[q_idx, kv_idx], h]",
     "table"},
    {"ConViT",
     "buffer a: f32[H] grad\nbuffer c: f32[H, 2] grad",
     "score - abs(a[h]) * ((q_idx % 14 - kv_idx % 14 - c[h, 0]) ** 2 + (q_idx // 14 - kv_idx // "
     "14 - c[h, 1]) ** 2)",
     "head, head, head"},
    {"Video Swin, frames and places apart",
     "buffer t: f32[H, 63] grad\nbuffer s: f32[H, 27, 27] grad",
     "score + t[h, q_idx // 196 - kv_idx // 196 + 31] + s[h, q_idx % 196 // 14 - kv_idx % 196 // "
     "14 + 13, q_idx % 14 - kv_idx % 14 + 13]",
     "distance, distance"},
    {"TUPE",
     "buffer p: f32[H, Q_LEN, KV_LEN] grad\nbuffer a: f32[H, 2] grad",
     "score + where(q_idx == 0, a[h, 0], where(kv_idx == 0, a[h, 1], p[h, q_idx, kv_idx]))",
     "row, head, dense_bias"},
    {"XLNet's segments",
     "buffer seg: i32[B, Q_LEN]\nbuffer s: f32[B, H, Q_LEN, 2] grad",
     "score + where(seg[b, q_idx] == seg[b, kv_idx], s[b, h, q_idx, 0], s[b, h, q_idx, 1])",
     "query, query"},
    {"kinds of tokens",
     "buffer g: i32[B, Q_LEN]\nbuffer t: f32[H, 8, 8] grad",
     "score + t[h, g[b, q_idx], g[b, kv_idx]]",
     "table"},
    {"kinds of tokens, flat",
     "buffer g: i32[B, Q_LEN]\nbuffer t: f32[H, 64] grad",
     "score + t[h, g[b, q_idx] * 8 + g[b, kv_idx]]",
     "table"},
    {"kinds that multiply",
     "buffer g: i32[B, Q_LEN]\nbuffer t: f32[H, 8, 8] grad",
     "score * t[h, g[b, q_idx], g[b, kv_idx]]",
     "weighted table"},
    {"blocks of keys and queries",
     "buffer t: f32[H, 64, 64] grad",
     "score + t[h, q_idx // 64, kv_idx // 64]",
     "table"},
    {"Graphormer",
     "buffer e: i32[B, Q_LEN, KV_LEN]\nbuffer t: f32[H, 20] grad\nbuffer v: f32[H] grad",
     "score + where(q_idx == 0 or kv_idx == 0, v[h], t[h, e[b, q_idx, kv_idx]])",
     "head, table"},
    {"Forgetting Transformer",
     "buffer c: f32[B, H, Q_LEN] grad",
     "score + c[b, h, q_idx] - c[b, h, kv_idx]\nmask_mod = q_idx >= kv_idx",
     "row, key"},
    {"factors of keys and queries",
     "buffer g: f32[B, H, KV_LEN] grad\nbuffer r: f32[B, H, Q_LEN] grad",
     "score * g[b, h, kv_idx] * r[b, h, q_idx]",
     "key, query"},
    {"a bias of low rank",
     "buffer u: f32[H, Q_LEN, 2] grad\nbuffer v: f32[H, KV_LEN, 2] grad",
     "score + sum(i in 0..2: u[h, q_idx, i] * v[h, kv_idx, i])",
     "query, key, query, key"},
    {"AlphaFold's pair bias",
     "buffer p: f32[H, Q_LEN, KV_LEN] grad",
     "score + p[h, q_idx, kv_idx]",
     "dense_bias"},
    {"a pair bias near the diagonal",
     "buffer p: f32[H, Q_LEN, KV_LEN] grad",
     "score + where(abs(q_idx - kv_idx) < 64, p[h, q_idx, kv_idx], 0.0)",
     "dense_bias"},
};
// clang-format on

bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Returns the text with another text for each occurrence of a name.
std::string replaced(const std::string& text, std::string_view name, const std::string& by) {
    std::string result;
    for (std::size_t at = 0; at < text.size();) {
        const bool starts = at == 0 || !is_of_name(text[at - 1]);
        const std::size_t end = at + name.size();
        if (starts && text.compare(at, name.size(), name) == 0 &&
            (end >= text.size() || !is_of_name(text[end]))) {
            result += by;
            at = end;
        } else {
            result += text[at++];
        }
    }
    return result;
}

// A program in two parts: the score mod, and the mask, if there is any.
std::pair<std::string, std::string> parts_of(const Published& one) {
    const std::string text = one.score;
    const std::size_t end = text.find("\nmask_mod");
    return {text.substr(0, end), end == std::string::npos ? "" : text.substr(end)};
}

// The program whose second bias takes what the first makes of the score.
std::string composed(const Published& first, const Published& second) {
    std::string buffers = second.buffers;
    auto [score, mask] = parts_of(second);
    // Names of its buffers: words before a colon.
    for (std::size_t colon = buffers.find(':'); colon != std::string::npos;
         colon = buffers.find(':', colon + 1)) {
        std::size_t start = colon;
        while (is_of_name(buffers[start - 1]))
            --start;
        const std::string name = buffers.substr(start, colon - start);
        buffers.insert(start, "z");
        ++colon;
        score = replaced(score, name, "z" + name);
    }
    const auto [before, mask_before] = parts_of(first);
    score = replaced(score, "score", "(" + before + ")");
    return std::string(first.buffers) + "\n" + buffers + "\nscore_mod = " + score +
           (mask.empty() ? mask_before : mask);
}

// Whether each element has an address of its own.
bool is_apart(const passes::CapturedRead& read) {
    if (read.read_class == passes::ReadClass::dense_bias) return true;
    return read.read_class == passes::ReadClass::shifted &&
           std::ranges::none_of(read.decisive().shifts, &passes::ShiftedIndex::is_clamped);
}

// Whether elements that share an address add to it one by one in some kernel.
bool adds_to_shared_addresses(const passes::Mod& kernel) {
    return std::ranges::any_of(kernel.gradients, [&](const passes::ReadGradient& gradient) {
        return passes::gradient_sum(kernel, gradient, passes::usual_sums(kernel)) ==
                   passes::GradientSum::element &&
               !is_apart(*passes::captured_read(kernel, gradient.read));
    });
}

} // namespace

TEST_CASE("gradients of published biases are summed before they are added to memory") {
    for (const Published& one : kPublished) {
        CAPTURE(std::string(one.name));
        const std::string program = std::string(one.buffers) + "\nscore_mod = " + one.score;
        const passes::Mod mod = lowered(program);
        CHECK(sums_of(mod, passes::fused_sums(mod)) == std::string(one.sums));
        CHECK(mod.gradient_passes.empty());
    }
}

const Published& published(std::string_view name) {
    return *std::ranges::find(kPublished, name, &Published::name);
}

TEST_CASE("which kernel sums which gradient of two published biases") {
    struct Pair {
        const char *first, *second, *sums;
    };
    for (const auto& [first, second, sums] :
         {Pair{"T5, decoder", "a factor for each distance", "distance | weighted distance"},
          {"a factor for each distance", "T5, decoder", "weighted distance | weighted distance"},
          {"T5, decoder", "Shaw, clamped", "distance | shifted"},
          {"Shaw, clamped", "TiSASRec", "shifted | table"},
          {"distances of position ids", "a factor for each distance", "table | weighted distance"},
          {"kinds that multiply", "distances of one document",
           "weighted table | weighted distance"},
          {"factors of keys and queries", "Shaw, clamped", "key, query | shifted"},
          // Each element of a pair bias has an address of its own.
          {"AlphaFold's pair bias", "kinds that multiply", "element, weighted table"},
          {"T5, decoder", "TiSASRec", "table, table"},
          {"ALiBi, slopes learned", "Swin", "head, distance"}}) {
        CAPTURE(std::string(first));
        CAPTURE(std::string(second));
        CHECK(sums_of_kernels(lowered(composed(published(first), published(second)))) ==
              std::string(sums));
    }
}

TEST_CASE("which tables may have a kernel of their own, and which prefer it") {
    const auto kernels = [](const passes::Mod& mod) {
        return sums_of_kernels(mod.entry_passes) +
               (passes::has_sums_beside_entries(mod) ? ", preferred" : "");
    };
    const auto of_one = [&](std::string_view name) {
        const Published& one = published(name);
        return kernels(lowered(std::string(one.buffers) + "\nscore_mod = " + one.score));
    };
    for (const char* name :
         {"distances of position ids", "TiSASRec", "distances by level", "BEiT, with a token",
          "a table read through a tensor of indices", "kinds of tokens, flat"}) {
        CAPTURE(std::string(name));
        CHECK(of_one(name) == " | table");
    }
    CHECK(of_one("Graphormer") == "head | table");
    CHECK(of_one("Swin") == "");
    CHECK(
        lowered(
            "buffer t: f32[H, 27, 27] grad\nscore_mod = score + where(kv_idx == 0, 0, t[h, (q_idx "
            "- 1) // 14 - (kv_idx - 1) // 14 + 13, (q_idx - 1) % 14 - (kv_idx - 1) % 14 + 13])")
            .entry_passes.empty());
    CHECK(of_one("kinds of tokens") == "");
    CHECK(of_one("Swin, second version") == "");
    struct Pair {
        const char *first, *second, *sums;
    };
    for (const auto& [first, second, sums] :
         {Pair{"T5, decoder", "TiSASRec", "distance | table, preferred"},
          {"mixtures of tables", "BEiT, with a token",
           "distance, distance, distance, distance, distance, distance, distance, distance | "
           "table, preferred"},
          {"a gate between content and position", "distances of position ids",
           "head, distance | table, preferred"},
          {"kinds of tokens, flat", "distances by level", " | table, table"},
          {"TiSASRec", "blocks of keys and queries", "table | table"},
          {"AlphaFold's pair bias", "TiSASRec", "dense_bias | table, preferred"},
          {"Swin", "TiSASRec", "distance | table"}}) {
        CAPTURE(std::string(first));
        CAPTURE(std::string(second));
        CHECK(kernels(lowered(composed(published(first), published(second)))) == std::string(sums));
    }
}

TEST_CASE("gradients of two published biases are summed by kernels that share them") {
    for (const Published& first : kPublished)
        for (const Published& second : kPublished) {
            const passes::Mod mod = lowered(composed(first, second));
            CAPTURE(std::string(first.name));
            CAPTURE(std::string(second.name));
            CAPTURE(sums_of_kernels(mod));
            CHECK((!mod.gradient_passes.empty() || !adds_to_shared_addresses(mod)));
            CHECK(std::ranges::none_of(mod.gradient_passes, adds_to_shared_addresses));
            CHECK(std::ranges::none_of(mod.entry_passes, adds_to_shared_addresses));
        }
}
