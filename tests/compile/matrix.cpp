#include "compile/matrix.h"

#include <array>
#include <fstream>
#include <span>
#include <sstream>
#include <utility>

#include "front/library.h"
#include "support/text.h"

namespace flexc::test {

namespace {

using plan::KernelKind;

constexpr std::array kKinds = {KernelKind::forward,        KernelKind::delta,
                               KernelKind::backward_dq,    KernelKind::backward_dkdv,
                               KernelKind::backward_fused, KernelKind::convert};

std::string_view kind_name(KernelKind kind) {
    switch (kind) {
    case KernelKind::forward: return "forward";
    case KernelKind::delta: return "delta";
    case KernelKind::backward_dq: return "dq";
    case KernelKind::backward_dkdv: return "dkdv";
    case KernelKind::backward_fused: return "fused";
    case KernelKind::convert: return "convert";
    case KernelKind::tabulate: return "tabulate";
    case KernelKind::fold: return "fold";
    case KernelKind::block_mask: return "block_mask";
    case KernelKind::lengths: return "lengths";
    case KernelKind::round_sums: return "round_sums";
    case KernelKind::round_gradients: return "round_gradients";
    }
    return "unknown";
}

constexpr std::string_view kLearnedAlibi = "buffer slopes: f32[H] grad\n"
                                           "score_mod = score + slopes[h] * (kv_idx - q_idx)\n"
                                           "mask_mod = q_idx >= kv_idx\n";

KernelCase learned(KernelKind kind) {
    return {.mod = "learned_alibi", .text = std::string(kLearnedAlibi), .kind = kind};
}

// One of each way in which the library's mods use the kernels. The others compile when asked for.
constexpr std::array<std::string_view, 11> kWatched = {
    "causal",         "dilated", "document",   "neighborhood_2d",   "padding", "prefix_lm",
    "sliding_window", "alibi",   "dense_bias", "relative_position", "softcap"};
// Those that ask most of the generic kernels.
constexpr std::array<std::string_view, 5> kHeavy = {"causal", "document", "neighborhood_2d",
                                                    "dense_bias", "softcap"};

std::vector<KernelCase> generic(const front::LibraryMod& mod, std::span<const int> head_dims) {
    std::vector<KernelCase> cases;
    for (const int head_dim : head_dims)
        for (const KernelKind kind : {KernelKind::forward, KernelKind::backward_fused})
            cases.push_back({.mod = std::string(mod.name),
                             .text = std::string(mod.text),
                             .kind = kind,
                             .head_dim = head_dim,
                             .head_dim_v = head_dim});
    return cases;
}

KernelCase hopper_backward(KernelKind kind, std::string_view mod, std::string_view text,
                           int head_dim, int head_dim_v) {
    return {.mod = std::string(mod),
            .text = std::string(text),
            .kind = kind,
            .backward_kernel = BackwardKernel::fused,
            .head_dim = head_dim,
            .head_dim_v = head_dim_v};
}

// The program with gradients of all of its buffers.
std::string all_learned(std::string_view text) {
    std::string learned(text);
    for (std::size_t at = 0; (at = learned.find("]\n", at)) != std::string::npos;)
        learned.insert(at + 1, " grad");
    return learned;
}

KernelCase hopper(std::string_view mod, std::string_view text, int head_dim, int head_dim_v) {
    return {.mod = std::string(mod),
            .text = std::string(text),
            .forward_kernel = ForwardKernel::specialized,
            .head_dim = head_dim,
            .head_dim_v = head_dim_v};
}

} // namespace

std::vector<KernelCase> compile_matrix() {
    std::vector<KernelCase> cases;
    for (const char* arch : {"sm_80", "sm_90a", "sm_100", "sm_120"})
        for (const KernelKind kind : kKinds) {
            cases.push_back(learned(kind));
            cases.back().arch = arch;
        }
    for (const DType dtype : {DType::f16, DType::f32})
        for (const KernelKind kind : kKinds) {
            cases.push_back(learned(kind));
            cases.back().dtype = dtype;
        }
    constexpr std::array<std::array<int, 2>, 7> kHeadDims = {
        {{1, 1}, {80, 80}, {112, 112}, {128, 128}, {64, 128}, {192, 128}, {256, 256}}};
    for (const auto& [head_dim, head_dim_v] : kHeadDims)
        for (const KernelKind kind : {KernelKind::forward, KernelKind::backward_fused}) {
            cases.push_back(learned(kind));
            cases.back().head_dim = head_dim;
            cases.back().head_dim_v = head_dim_v;
        }
    constexpr std::array kWide = {128}; // where registers are short
    for (const std::string_view mod : kHeavy)
        for (KernelCase& one : generic(*front::find_library_mod(mod), kWide))
            cases.push_back(std::move(one));
    // Maps: a mask of arrays, and one of numbers alone.
    constexpr std::string_view kDocuments = "buffer doc: i32[B, KV_LEN]\n"
                                            "mask_mod = doc[b, q_idx] == doc[b, kv_idx]\n";
    constexpr std::string_view kTiles = "mask_mod = abs(q_idx // 16 - kv_idx // 16) <= 2\n";
    for (const char* arch : {"sm_80", "sm_90a"})
        for (const auto& [mod, text] : {std::pair{"documents", kDocuments}, {"tiles", kTiles}})
            cases.push_back({.mod = mod,
                             .text = std::string(text),
                             .kind = KernelKind::block_mask,
                             .arch = arch});
    for (const KernelKind kind : {KernelKind::backward_dq, KernelKind::backward_dkdv})
        cases.push_back({.mod = "documents", .text = std::string(kDocuments), .kind = kind});
    cases.push_back(hopper("documents", kDocuments, 128, 128));
    // Hopper's forward, whose registers are fewest for the narrowest heads.
    for (const int head_dim : {80, 96, 112, 128, 192, 256})
        cases.push_back(hopper("learned_alibi", kLearnedAlibi, head_dim, head_dim));
    cases.push_back(hopper("learned_alibi", kLearnedAlibi, 64, 128));
    cases.push_back(hopper("learned_alibi", kLearnedAlibi, 192, 128));
    // What is computed before it for keys and distances takes registers too.
    constexpr std::string_view kKeyBias = "buffer c: bf16[KV_LEN]\nscore_mod = score + c[kv_idx]\n";
    constexpr std::string_view kTable = "buffer t: bf16[H, N]\n"
                                        "score_mod = score + t[h, q_idx - kv_idx + Q_LEN]\n"
                                        "mask_mod = q_idx >= kv_idx\n";
    for (const int head_dim : {64, 128, 256}) {
        cases.push_back(hopper("key_bias", kKeyBias, head_dim, head_dim));
        cases.push_back(hopper("distance_table", kTable, head_dim, head_dim));
    }
    // Which comes with the products, beside what rows have and what products are added to.
    const std::string key_and_row = "buffer r: f32[Q_LEN]\nbuffer c: bf16[KV_LEN]\n"
                                    "score_mod = score + r[q_idx] + c[kv_idx]\n";
    const std::string key_and_dense =
        "buffer bias: bf16[H, Q_LEN, KV_LEN]\nbuffer c: bf16[KV_LEN]\n"
        "score_mod = score + bias[h, q_idx, kv_idx] + c[kv_idx]\n";
    for (const int head_dim : {64, 128}) {
        cases.push_back(hopper("key_and_row_bias", key_and_row, head_dim, head_dim));
        cases.push_back(hopper("key_and_dense_bias", key_and_dense, head_dim, head_dim));
    }
    // Sums of some elements at once, with what these bring, or with addresses of what terms read.
    constexpr std::string_view kFire =
        "buffer c: f32[H]\nbuffer w: f32[H, 16]\nbuffer m: f32[H, 16]\nbuffer n: f32[H, 16]\n"
        "score_mod = score + sum(i in 0..16: w[h, i] * relu(m[h, i] * (log(abs(c[h]) * max(q_idx - "
        "kv_idx, 0) + 1) / log(abs(c[h]) * max(q_idx, 512) + 1)) + n[h, i]))\n";
    constexpr std::string_view kLowRank =
        "buffer u: f32[H, Q_LEN, 32]\nbuffer v: f32[H, KV_LEN, 32]\n"
        "score_mod = score + sum(i in 0..32: u[h, q_idx, i] * v[h, kv_idx, i])\n";
    for (const int head_dim : {64, 128}) {
        cases.push_back(hopper("fire", kFire, head_dim, head_dim));
        cases.push_back(hopper("low_rank", kLowRank, head_dim, head_dim));
    }
    cases.push_back(hopper_backward(KernelKind::backward_fused, "fire", kFire, 64, 64));
    cases.push_back(hopper_backward(KernelKind::backward_fused, "low_rank", kLowRank, 128, 128));
    // The same with gradients of terms, which the generic backward sums over its tiles.
    for (const auto& [mod, text] :
         {std::pair{"learned_fire", kFire}, {"learned_low_rank", kLowRank}})
        for (const int head_dim : {64, 128})
            cases.push_back({.mod = mod,
                             .text = all_learned(text),
                             .kind = KernelKind::backward_fused,
                             .arch = "sm_80",
                             .head_dim = head_dim,
                             .head_dim_v = head_dim});
    for (const std::string_view mod : kWatched)
        cases.push_back(hopper(mod, front::find_library_mod(mod)->text, 64, 64));
    for (const KernelKind kind : {KernelKind::delta, KernelKind::convert})
        cases.push_back(hopper_backward(kind, "learned_alibi", kLearnedAlibi, 128, 128));
    constexpr std::array<std::array<int, 2>, 7> kBackwardHeadDims = {
        {{40, 72}, {64, 64}, {64, 128}, {80, 80}, {128, 128}, {160, 160}, {192, 128}}};
    for (const auto& [head_dim, head_dim_v] : kBackwardHeadDims)
        cases.push_back(hopper_backward(KernelKind::backward_fused, "learned_alibi", kLearnedAlibi,
                                        head_dim, head_dim_v));
    for (const int head_dim : {192, 256})
        for (const auto& [mod, text] : {std::pair{"noop", std::string_view("score_mod = score\n")},
                                        {"causal", front::find_library_mod("causal")->text},
                                        {"learned_alibi", kLearnedAlibi},
                                        {"softcap", front::find_library_mod("softcap")->text},
                                        {"documents", kDocuments}})
            cases.push_back(
                hopper_backward(KernelKind::backward_fused, mod, text, head_dim, head_dim));
    for (const std::string_view mod : {"sliding_window", "dense_bias", "softcap"})
        cases.push_back(hopper_backward(KernelKind::backward_fused, mod,
                                        front::find_library_mod(mod)->text, 128, 128));
    // Derivatives folded into P in a persistent kernel, which has the fewest registers: softcap
    // subtracts references apart, gelu keeps the form that spilled least.
    constexpr std::string_view kWindow = "mask_mod = 0 <= q_idx - kv_idx < 140\n";
    for (const auto& [mod, text] :
         {std::pair{"softcap_window", "score_mod = 3 * tanh(score / 3)\n"},
          {"gelu_window", "score_mod = gelu(score)\n"}})
        cases.push_back(hopper_backward(KernelKind::backward_fused, mod,
                                        std::string(text) + std::string(kWindow), 128, 128));
    // Gradients from sums over whole rows.
    const std::string row_bias = "buffer bias: bf16[Q_LEN] grad\nbuffer offset: i64[Q_LEN]\n"
                                 "score_mod = score + bias[offset[q_idx]]\n";
    const std::string gate = "buffer g: f32[H, Q_LEN] grad\nscore_mod = score * g[h, q_idx]\n";
    // Rows and sums of queries that take all the memory they may.
    const std::string gates = "buffer g: f32[H, Q_LEN] grad\nbuffer at: i64[Q_LEN]\n"
                              "score_mod = score * tanh(g[h, q_idx] + g[0, at[q_idx]])\n";
    const std::string temperature = "buffer t: f32[B, H] grad\nscore_mod = score * t[b, h]\n";
    cases.push_back(hopper_backward(KernelKind::delta, "row_bias", row_bias, 128, 128));
    cases.push_back(hopper_backward(KernelKind::convert, "gate", gate, 128, 128));
    for (const int head_dim : {64, 128})
        for (const auto& [mod, text] :
             {std::pair{"gate", gate}, {"gates", gates}, {"temperature", temperature}})
            cases.push_back(
                hopper_backward(KernelKind::backward_fused, mod, text, head_dim, head_dim));
    // Biases as floats, with as much for each query as is staged: all of one stage of dS.
    const std::string floats_and_rows =
        "buffer bias: f32[H, Q_LEN, KV_LEN] grad\nbuffer a: f32[Q_LEN]\nbuffer c: f32[Q_LEN]\n"
        "buffer d: f32[Q_LEN]\nscore_mod = score + bias[h, q_idx, kv_idx] + a[q_idx] * kv_idx + "
        "c[q_idx] * (kv_idx % 7) + d[q_idx] * (kv_idx % 5)\n";
    for (const int head_dim : {80, 128})
        cases.push_back(hopper_backward(KernelKind::backward_fused, "floats_and_rows",
                                        floats_and_rows, head_dim, head_dim));
    // A 2-D key index, beside sums of queries.
    const std::string index_2d_and_rows =
        "buffer s: bf16[B, H, Q_LEN, ROWS] grad\nbuffer t: bf16[B, H, Q_LEN, 16] grad\n"
        "buffer r: f32[Q_LEN] grad\nbuffer c: f32[KV_LEN]\nscore_mod = score + "
        "s[b, h, q_idx, kv_idx // 16] + t[b, h, q_idx, kv_idx % 16] + r[q_idx] * c[kv_idx]\n";
    cases.push_back(
        hopper_backward(KernelKind::backward_fused, "2d_and_rows", index_2d_and_rows, 128, 128));
    // Whose rows are whole tiles and are not.
    for (const char* width : {"64", "14"}) {
        const std::string name = std::string("decomposed_") + width;
        const std::string text = std::string("buffer rel_h: bf16[B, H, Q_LEN, ROWS] grad\n"
                                             "buffer rel_w: bf16[B, H, Q_LEN, ") +
                                 width +
                                 "] grad\nscore_mod = score + rel_h[b, h, q_idx, kv_idx // " +
                                 width + "] + rel_w[b, h, q_idx, kv_idx % " + width + "]\n";
        cases.push_back(hopper(name, text, 80, 80));
        for (const int head_dim : {64, 80, 128})
            cases.push_back(
                hopper_backward(KernelKind::backward_fused, name, text, head_dim, head_dim));
    }
    for (const int head_dim : {64, 128})
        for (const auto& [mod, type] :
             {std::pair{"learned_bias", "bf16"}, {"learned_floats", "f32"}})
            cases.push_back(
                hopper_backward(KernelKind::backward_fused, mod,
                                formatted("buffer bias: {}[H, Q_LEN, KV_LEN] grad\n"
                                          "score_mod = score + bias[h, q_idx, kv_idx]\n",
                                          type),
                                head_dim, head_dim));
    for (const int head_dim : {64, 128})
        for (const auto& [mod, text] : {std::pair{"documents", kDocuments}, {"tiles", kTiles}}) {
            cases.push_back(
                hopper_backward(KernelKind::backward_fused, mod, text, head_dim, head_dim));
            cases.back().backward_kernel = BackwardKernel::specialized;
        }
    // Pairs of kinds, of as many keys as products take, and of more.
    const auto kinds = [](int count, std::string_view grad) {
        return formatted("buffer g: i32[B, Q_LEN]\nbuffer k: i32[B, KV_LEN]\nbuffer t: f32[{}, {}, "
                         "H]{}\nscore_mod = score + t[g[b, q_idx], k[b, kv_idx], h]\n",
                         count, count, grad);
    };
    for (const int head_dim : {64, 128}) {
        cases.push_back(hopper("kinds", kinds(head_dim / 8, ""), head_dim, head_dim));
        cases.push_back(hopper("many_kinds", kinds(32, ""), head_dim, head_dim));
        cases.push_back(hopper("kinds_of_pairs",
                               "buffer d: i32[B, Q_LEN, KV_LEN]\nbuffer t: f32[H, 64]\n"
                               "score_mod = score + t[h, d[b, q_idx, kv_idx]]\n",
                               head_dim, head_dim));
        cases.push_back(hopper_backward(KernelKind::backward_fused, "learned_kinds",
                                        kinds(32, " grad"), head_dim, head_dim));
    }
    // Tables by row and column of an image, and of one after a token that has no part.
    for (const int head_dim : {64, 128})
        for (const auto& [mod, read] :
             {std::pair{"learned_image",
                        "t[h, q_idx // 64 - kv_idx // 64 + 63, q_idx % 64 - kv_idx "
                        "% 64 + 63]"},
              {"learned_image_14", "where(q_idx == 0 or kv_idx == 0, 0, t[h, (q_idx - 1) // 14 - "
                                   "(kv_idx - 1) // 14 + 13, (q_idx - 1) % 14 - (kv_idx - 1) % 14 "
                                   "+ 13])"}})
            cases.push_back(hopper_backward(KernelKind::backward_fused, mod,
                                            formatted("buffer t: f32[H, 127, 127] grad\nscore_mod "
                                                      "= score + {}\n",
                                                      read),
                                            head_dim, head_dim));
    // Masks that need the most registers: of numbers, of reads for each element.
    for (const int head_dim : {64, 128})
        for (const std::string_view mod : {"neighborhood_2d", "block_map", "draft_tree"}) {
            cases.push_back(hopper_backward(KernelKind::backward_fused, mod,
                                            front::find_library_mod(mod)->text, head_dim,
                                            head_dim));
            cases.back().backward_kernel = BackwardKernel::specialized;
        }
    return cases;
}

std::vector<KernelCase> library_matrix() {
    std::vector<KernelCase> cases;
    for (const front::LibraryMod& mod : front::library())
        for (KernelCase& one : generic(mod, std::array{64, 128})) {
            cases.push_back(one);
            cases.back().arch = "sm_80";
            one.forward_kernel = ForwardKernel::automatic;
            one.backward_kernel = BackwardKernel::automatic;
            cases.push_back(std::move(one));
        }
    return cases;
}

std::string name_of(const KernelCase& one) {
    const bool hopper = one.kind == KernelKind::forward
                            ? one.forward_kernel != ForwardKernel::generic
                            : one.backward_kernel != BackwardKernel::generic;
    std::string kernel(kind_name(one.kind));
    if (hopper) kernel = one.kind == KernelKind::forward ? "hopper" : "hopper_" + kernel;
    return formatted("{} {} {} {}x{} {}", kernel, one.arch, name(one.dtype), one.head_dim,
                     one.head_dim_v, one.mod);
}

Record read_record(const std::string& path) {
    Record record;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
        std::istringstream words(line);
        if (line.starts_with("# NVRTC ")) record.version = line.substr(8);
        if (line.empty() || line[0] == '#') continue;
        std::string key;
        for (int i = 0; i < 5; ++i) {
            std::string word;
            words >> word;
            key += (i == 0 ? "" : " ") + word;
        }
        Usage usage;
        words >> usage.registers >> usage.shared_bytes >> usage.spill_bytes;
        record.kernels[key] = usage;
    }
    return record;
}

bool write_record(const std::string& path, const Record& record) {
    std::ofstream file(path);
    file << "# What each kernel of the compile test needs. A change here is a change of speed: "
            "look\n"
            "# at it. Written by test_compile with FLEXC_UPDATE_REGISTERS=1.\n"
            "# NVRTC "
         << record.version
         << "\n# kernel, architecture, type, head dims, mod, registers, shared bytes, spilled "
            "bytes\n";
    for (const auto& [key, usage] : record.kernels)
        file << formatted("{:<48} {:>3} {:>6} {:>4}\n", key, usage.registers, usage.shared_bytes,
                          usage.spill_bytes);
    return static_cast<bool>(file.flush());
}

} // namespace flexc::test
