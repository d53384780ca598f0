#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>
#include <vector>

#include <doctest/doctest.h>

#include "compile/matrix.h"
#include "cuda/nvrtc.h"
#include "flexc/compile.h"
#include "front/library.h"
#include "support/text.h"

namespace {

using namespace flexc;

const std::string kRecordPath = FLEXC_SOURCE_DIR "/tests/compile/registers.txt";

// Why there is no kernel; logs of compilers are long.
std::string message_of(const Result<api::CompiledKernel>& outcome) {
    return outcome ? std::string() : outcome.error().message.substr(0, 4000);
}

// The test ends here where it does not compile.
api::CompiledKernel must_compile(const test::KernelCase& one) {
    auto outcome = test::compile_case(one);
    REQUIRE_MESSAGE(outcome.has_value(), message_of(outcome));
    return *std::move(outcome);
}

using Outcome = std::optional<Result<api::CompiledKernel>>;

std::vector<Outcome> compile_all(const std::vector<test::KernelCase>& cases) {
    std::vector<Outcome> outcomes(cases.size());
    std::atomic<std::size_t> next = 0;
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
        threads.emplace_back([&] {
            for (std::size_t at = next++; at < cases.size(); at = next++)
                outcomes[at] = test::compile_case(cases[at]);
        });
    for (std::thread& thread : threads)
        thread.join();
    return outcomes;
}

// visit(case, its name, kernel), for those that compile; the others fail the test.
template <typename Visit>
void visit_compiled(const std::vector<test::KernelCase>& cases, Visit visit) {
    const std::vector<Outcome> outcomes = compile_all(cases);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        const std::string name = test::name_of(cases[i]);
        CAPTURE(name);
        const Result<api::CompiledKernel>& outcome = *outcomes[i];
        CHECK_MESSAGE(outcome.has_value(), message_of(outcome));
        if (outcome) visit(cases[i], name, *outcome);
    }
}

} // namespace

TEST_CASE(
    "every template compiles for every architecture, with no more spills than are tolerated") {
    const auto info = cuda::nvrtc_info();
    REQUIRE(info);
    test::Record now;
    now.version = formatted("{}.{}", info->major, info->minor);
    const test::Record before = test::read_record(kRecordPath);
    const bool update = std::getenv("FLEXC_UPDATE_REGISTERS") != nullptr;
    const bool same_compiler = before.version == now.version;
    if (!same_compiler && !update)
        MESSAGE("NVRTC is ", now.version, ", registers.txt is of ", before.version,
                ": registers are not compared");

    std::vector<test::KernelCase> cases = test::compile_matrix();
    // A version of NVRTC knows the GPUs of its time.
    std::erase_if(cases, [&](const test::KernelCase& one) {
        const bool unknown = !info->architectures.empty() &&
                             std::ranges::find(info->architectures, plan::arch_number(one.arch)) ==
                                 info->architectures.end();
        if (unknown) MESSAGE("this NVRTC cannot compile for ", one.arch);
        return unknown;
    });
    visit_compiled(cases, [&](const test::KernelCase&, const std::string& name,
                              const api::CompiledKernel& compiled) {
        const KernelInfo& kernel = compiled.kernel.info;
        const test::Usage usage{.registers = kernel.registers,
                                .shared_bytes = kernel.shared_bytes,
                                .spill_bytes = kernel.spill_bytes};
        now.kernels[name] = usage;
        CHECK_MESSAGE(usage.spill_bytes <= compiled.kernel.config.spills.tolerated,
                      usage.spill_bytes, " bytes spilled");
        CHECK(kernel.helper_spill_bytes == 0);
        if (update || !same_compiler) return;
        const auto recorded = before.kernels.find(name);
        CHECK_MESSAGE(recorded != before.kernels.end(), "not in registers.txt");
        if (recorded == before.kernels.end()) return;
        CHECK(usage.registers == recorded->second.registers);
        CHECK(usage.shared_bytes == recorded->second.shared_bytes);
        CHECK(usage.spill_bytes == recorded->second.spill_bytes);
    });
    if (update) CHECK(test::write_record(kRecordPath, now));
}

// Takes most of an hour on two cores: test_compile --no-skip -tc='every mod*'.
TEST_CASE("every mod of the library compiles, and which ones spill" * doctest::skip()) {
    visit_compiled(test::library_matrix(), [](const test::KernelCase&, const std::string& name,
                                              const api::CompiledKernel& compiled) {
        if (compiled.kernel.info.spill_bytes == 0) return;
        MESSAGE(name, ": ", compiled.kernel.info.spill_bytes, " bytes in ",
                std::string(compiled.kernel.config.template_path));
    });
}

TEST_CASE("every buffer type and every builtin compiles, forward and backward") {
    const std::string program = R"(
        buffer doubles: f64[H] grad
        buffer halves: f16[Q_LEN] grad
        buffer brains: bf16[KV_LEN, N] grad
        buffer longs: i64[Q_LEN]
        buffer shorts: i16[KV_LEN]
        buffer chars: i8[KV_LEN]
        buffer bytes: u8[B]
        buffer flags: bool[B, KV_LEN]
        param cap: f32 = 2.0
        score_mod {
            x = score + doubles[h] * halves[q_idx] + brains[kv_idx, longs[q_idx] % N]
            y = sin(x) + cos(x) + tan(x) + tanh(x) + sigmoid(x) + softplus(x) + erf(x) + gelu(x)
            z = exp(y) + exp2(y) + expm1(y) + log(abs(x) + 1) + log2(y) + log1p(abs(y)) + silu(x)
            w = sqrt(abs(z)) + rsqrt(abs(z) + 1) + pow(abs(x), y) + fma(x, y, z) + relu(x)
            i = shorts[kv_idx] * chars[kv_idx] // bytes[b] + (longs[q_idx] << 2) - (q_idx >> 1)
            j = i ** 2 % 7 + abs(i) + sign(i) + min(i, q_idx) + max(i, kv_idx) + (i & 3 | ~i ^ 5)
            s = floor(w) + ceil(w) + round(w) + trunc(w) + w // cap + w % cap + int(w) + sign(w)
            clamp(w / cap, -1, 1) + min(x, y) + max(y, z) + s + j
        }
        mask_mod = flags[b, kv_idx] or (q_idx >= kv_idx and not shorts[kv_idx] == 3)
    )";
    for (const auto kind : {plan::KernelKind::forward, plan::KernelKind::backward_fused}) {
        const auto outcome =
            test::compile_case({.mod = "all", .text = program, .kind = kind, .arch = "sm_80"});
        CHECK_MESSAGE(outcome.has_value(), message_of(outcome));
    }
}

TEST_CASE("kernels of short sequences and few queries compile, and spill no more than they may") {
    for (const int head_dim : {32, 40, 64}) {
        CAPTURE(head_dim);
        const test::PlannedProgram planned("buffer t: f32[H, N, N]\nmask_mod = q_idx >= kv_idx\n"
                                           "score_mod = score + t[h, q_idx // 2, kv_idx]\n",
                                           head_dim);
        int count = 0;
        for (const auto* variants : {&planned.plan.forward, &planned.plan.backward})
            for (const plan::Variant& variant : *variants) {
                if (!plan::is_by_size(variant.calls)) continue;
                const auto one = planned.compile(variant);
                REQUIRE_MESSAGE(one, message_of(one));
                CHECK(one->kernel.info.spill_bytes <= one->kernel.config.spills.tolerated);
                ++count;
            }
        CHECK(count == (head_dim == 32 ? 14 : 11));
    }
}

TEST_CASE("kernels of ragged and paged tensors compile, and spill nothing") {
    struct Layouts {
        Layout queries, keys;
        int head_dim;
        bool has_block_mask = false;
    };
    for (const auto& [queries, keys, head_dim, has_block_mask] :
         {Layouts{Layout::ragged, Layout::ragged, 128},
          {Layout::ragged, Layout::paged, 64},
          {Layout::ragged, Layout::paged, 128},
          {Layout::dense, Layout::paged, 256},
          {Layout::ragged, Layout::ragged, 64, true},
          {Layout::ragged, Layout::paged, 128, true},
          {Layout::dense, Layout::ragged, 64, true}}) {
        CAPTURE(name(keys));
        CAPTURE(head_dim);
        const std::string mod =
            has_block_mask
                ? "buffer doc: i32[N]\nmask_mod = doc[q_row] == doc[kv_row]"
                : "buffer t: f32[N] grad\nscore_mod = score + t[kv_row] * Q_LEN + q_row\n"
                  "mask_mod = q_idx >= kv_idx\nsink = t[q_row]";
        const auto made = compile_offline(mod,
                                          {.head_dim = head_dim,
                                           .query_layout = queries,
                                           .key_layout = keys,
                                           .cache = {.memory = false, .disk = false}},
                                          "sm_90a");
        REQUIRE_MESSAGE(made.has_value(), made.error().message);
        for (const Cubin& kernel : made->kernels)
            CHECK_MESSAGE(kernel.info.spill_bytes == 0, kernel.info.name);
        CHECK(std::ranges::any_of(made->kernels, [](const Cubin& kernel) {
                  return kernel.info.name == "flexc_block_mask_tiles";
              }) == has_block_mask);
    }
}

TEST_CASE("kernels of keys of eight bits compile, and spill nothing") {
    struct Kind {
        const char* arch;
        DType dtype, kv_dtype;
        Layout keys;
        int head_dim;
    };
    for (const auto& [arch, dtype, kv_dtype, keys, head_dim] :
         {Kind{"sm_80", DType::bf16, DType::e4m3, Layout::paged, 128},
          {"sm_80", DType::f16, DType::e4m3, Layout::dense, 256},
          {"sm_90a", DType::bf16, DType::e4m3, Layout::paged, 128},
          {"sm_90a", DType::bf16, DType::e5m2, Layout::paged, 256},
          {"sm_90a", DType::bf16, DType::i8, Layout::paged, 128},
          {"sm_90a", DType::f16, DType::i8, Layout::ragged, 64},
          {"sm_90a", DType::f16, DType::e5m2, Layout::ragged, 40},
          {"sm_120", DType::bf16, DType::i8, Layout::dense, 33}}) {
        CAPTURE(arch);
        CAPTURE(name(kv_dtype));
        CAPTURE(head_dim);
        const auto made =
            compile_offline("mask_mod = q_idx >= kv_idx\nscore_mod = 20 * tanh(score / 20)",
                            {.dtype = dtype,
                             .kv_dtype = kv_dtype,
                             .head_dim = head_dim,
                             .query_layout = keys == Layout::dense ? Layout::dense : Layout::ragged,
                             .key_layout = keys,
                             .cache = {.memory = false, .disk = false}},
                            arch);
        REQUIRE_MESSAGE(made.has_value(), made.error().message);
        for (const Cubin& kernel : made->kernels)
            if (kernel.info.name.starts_with("flexc_forward"))
                CHECK_MESSAGE(kernel.info.spill_bytes == 0, kernel.info.name);
    }
}

TEST_CASE("Hopper's forward of ragged tensors has the tiles of dense ones, and spills nothing") {
    for (const char* text :
         {"score", "mask_mod = q_idx >= kv_idx", "mask_mod = 0 <= q_idx - kv_idx < 256",
          "param cap: f32 = 20.0\nscore_mod = cap * tanh(score / cap)",
          "buffer slopes: f32[H]\nscore_mod = score + slopes[h] * (kv_idx - q_idx)\n"
          "mask_mod = q_idx >= kv_idx"})
        for (const int head_dim : {64, 128}) {
            CAPTURE(text);
            CAPTURE(head_dim);
            const auto first_kernel = [&](Layout layout) {
                const auto made = compile_offline(text,
                                                  {.head_dim = head_dim,
                                                   .query_layout = layout,
                                                   .key_layout = layout,
                                                   .backward = false,
                                                   .cache = {.memory = false, .disk = false}},
                                                  "sm_90a");
                REQUIRE_MESSAGE(made.has_value(), made.error().message);
                return made->kernels.front().info;
            };
            const KernelInfo ragged = first_kernel(Layout::ragged);
            CHECK(ragged.name == "flexc_forward_sm90");
            CHECK(ragged.spill_bytes == 0);
            const auto tiles = [](const KernelInfo& info) {
                return info.schedule.substr(0, info.schedule.find(" overlap"));
            };
            CHECK(tiles(ragged) == tiles(first_kernel(Layout::dense)));
        }
}

TEST_CASE("Hopper's forward whose threads copy keys spills nothing") {
    struct Kind {
        Layout queries, keys;
        int head_dim;
    };
    for (const char* text :
         {"score", "mask_mod = q_idx >= kv_idx",
          "buffer slopes: f32[H]\nscore_mod = score + slopes[h] * (kv_idx - q_idx)\n"
          "mask_mod = q_idx >= kv_idx"})
        for (const auto& [queries, keys, head_dim] : {Kind{Layout::ragged, Layout::paged, 64},
                                                      {Layout::ragged, Layout::paged, 128},
                                                      {Layout::ragged, Layout::ragged, 104},
                                                      {Layout::dense, Layout::dense, 104}}) {
            CAPTURE(text);
            CAPTURE(name(keys));
            CAPTURE(head_dim);
            const auto made = compile_offline(text,
                                              {.head_dim = head_dim,
                                               .query_layout = queries,
                                               .key_layout = keys,
                                               .backward = false,
                                               .cache = {.memory = false, .disk = false}},
                                              "sm_90a");
            REQUIRE_MESSAGE(made.has_value(), made.error().message);
            const KernelInfo& info = made->kernels.front().info;
            CHECK(info.name == "flexc_forward_sm90");
            CHECK(info.reason.find("keys copied by threads") != std::string::npos);
            CHECK(info.spill_bytes == 0);
        }
}

TEST_CASE("a program that is long for each element has Hopper's kernels, which call it") {
    std::string text = "buffer t: f32[Q_LEN] grad\nscore_mod {\n  x = score + t[q_idx]\n";
    for (int i = 0; i < 10; ++i)
        text += "  x = log(x * x + 1.0) + sin(x) * score\n";
    text += "  x\n}\n";
    for (const auto kind : {plan::KernelKind::forward, plan::KernelKind::backward_fused}) {
        const auto compiled = must_compile({.mod = "long",
                                            .text = text,
                                            .kind = kind,
                                            .forward_kernel = ForwardKernel::automatic,
                                            .backward_kernel = BackwardKernel::automatic,
                                            .head_dim = 128,
                                            .head_dim_v = 128});
        const plan::KernelConfig& config = compiled.kernel.config;
        CHECK(config.family == "sm90");
        CHECK(compiled.kernel.info.spill_bytes <= config.spills.tolerated);
    }
}

TEST_CASE("what is written once for all tiles of a window spills nothing in its first form") {
    const auto compiled = must_compile(
        {.mod = "written_once",
         .text = "score_mod = score + max(0.5, score) * log1p(abs(1.5 + score + score + score))\n"
                 "mask_mod = q_idx >= kv_idx and q_idx - kv_idx < 512\n",
         .kind = plan::KernelKind::backward_fused,
         .backward_kernel = BackwardKernel::automatic,
         .head_dim = 128,
         .head_dim_v = 128});
    CHECK(compiled.kernel.config.form.writes_scores_once);
    CHECK(compiled.refused == 0);
    CHECK(compiled.kernel.info.spill_bytes == 0);
}

TEST_CASE("what reads much for each element spills nothing, nor does its forward at first") {
    for (const int head_dim : {64, 128})
        for (const auto kind : {plan::KernelKind::forward, plan::KernelKind::backward_fused}) {
            CAPTURE(head_dim);
            const auto compiled =
                must_compile({.mod = "graphormer",
                              .text = std::string(front::find_library_mod("graphormer")->text),
                              .kind = kind,
                              .forward_kernel = ForwardKernel::automatic,
                              .backward_kernel = BackwardKernel::automatic,
                              .head_dim = head_dim,
                              .head_dim_v = head_dim});
            CHECK(compiled.kernel.info.spill_bytes == 0);
            if (kind == plan::KernelKind::forward) {
                CHECK(compiled.refused == 0);
                CHECK(compiled.kernel.config.decomposition.stages_tables());
            }
        }
}

TEST_CASE("what spills in every form keeps the least, and is generic where it is large") {
    const std::string wide_integers = "buffer t: f32[KV_LEN] grad\n"
                                      "score_mod = score + (score if h_kv >= int(score) else score "
                                      "+ rsqrt(t[kv_idx] * t[kv_idx] + 1))\n";
    const std::string large =
        "buffer a: f32[N, H]\nbuffer bias: f32[Q_LEN, KV_LEN] grad\nbuffer c: bf16[KV_LEN] grad\n"
        "score_mod = score * where(int(H_KV <= q_idx) > 0, clamp(float(int(H_KV <= q_idx)) ** 0.5, "
        "-20.0, 20.0), clamp(exp(2.0 * tanh(bias[q_idx, kv_idx] / 2.0)) * (c[q_idx] + score), "
        "-20.0, 20.0)) * 0.125\n";
    for (const bool is_large : {false, true}) {
        const std::string& text = is_large ? large : wide_integers;
        CAPTURE(text);
        const auto compiled = must_compile({.mod = "none",
                                            .text = text,
                                            .kind = plan::KernelKind::backward_fused,
                                            .backward_kernel = BackwardKernel::automatic,
                                            .head_dim = 128,
                                            .head_dim_v = 128});
        CHECK(compiled.kernel.config.family == (is_large ? "sm80" : "sm90"));
        CHECK(compiled.kernel.info.spill_bytes <= compiled.kernel.config.spills.tolerated);
    }
}

TEST_CASE("a forward that spills little in every form is Hopper's all the same") {
    for (const int head_dim : {64, 128, 192}) {
        CAPTURE(head_dim);
        const auto compiled = must_compile(
            {.mod = "none",
             .text = "buffer s: f32[H]\nbuffer c: f32[B, KV_LEN]\n"
                     "score_mod = score - abs(s[h]) * abs(q_idx - kv_idx) + c[b, kv_idx]\n"
                     "mask_mod = q_idx >= kv_idx\n",
             .kind = plan::KernelKind::forward,
             .forward_kernel = ForwardKernel::automatic,
             .head_dim = head_dim,
             .head_dim_v = head_dim});
        CHECK(compiled.kernel.config.family == "sm90");
        CHECK(compiled.kernel.config.schedule->overlaps);
        CHECK(compiled.kernel.info.spill_bytes <= 8);
    }
}

TEST_CASE("gradients go where the score says, for every architecture") {
    for (const char* arch : {"sm_80", "sm_90a"}) {
        CAPTURE(arch);
        const auto compiled = must_compile(
            {.mod = "at_scores",
             .text = "buffer t: f32[4] grad\nbuffer u: f32[4, 4] grad\n"
                     "score_mod = t[int(sin(score * 1e18) + 2.0)] + sum(i in 0..4: u[i, "
                     "int(score)] * t[i])\n",
             .kind = plan::KernelKind::backward_fused,
             .arch = arch,
             .backward_kernel = BackwardKernel::automatic});
        CHECK(compiled.kernel.config.family == "sm80");
    }
}

TEST_CASE("deterministic kernels compile, with no more spills than are tolerated") {
    const std::string text = "buffer slopes: f32[H] grad\nbuffer t: f32[33] grad\n"
                             "buffer c: bf16[KV_LEN] grad\nscore_mod = score + c[kv_idx] + "
                             "slopes[h] * kv_idx + t[clamp(q_idx - kv_idx, 0, 32)]\n"
                             "mask_mod = q_idx >= kv_idx\n";
    const std::string dense = "buffer bias: f32[Q_LEN, KV_LEN] grad\n"
                              "score_mod = score + bias[q_idx, kv_idx]\n";
    using plan::KernelKind;
    std::vector<test::KernelCase> cases;
    const auto add = [&](KernelKind kind, const std::string& program, const char* arch) {
        cases.push_back({.mod = "deterministic",
                         .text = program,
                         .kind = kind,
                         .arch = arch,
                         .backward_kernel = BackwardKernel::fused,
                         .head_dim = 128,
                         .head_dim_v = 128,
                         .deterministic = true});
    };
    for (const char* arch : {"sm_80", "sm_90a"}) {
        add(KernelKind::backward_dkdv, text, arch);
        add(KernelKind::backward_dkdv, dense, arch);
        add(KernelKind::round_sums, text, arch);
        add(KernelKind::round_gradients, text, arch);
    }
    for (const KernelKind kind :
         {KernelKind::backward_fused, KernelKind::tabulate, KernelKind::fold})
        add(kind, text, "sm_90a");
    visit_compiled(cases, [](const test::KernelCase& one, const std::string&,
                             const api::CompiledKernel& compiled) {
        CHECK(compiled.kernel.info.spill_bytes <= compiled.kernel.config.spills.tolerated);
        const bool is_hopper = one.kind == KernelKind::backward_fused;
        if (is_hopper) CHECK(compiled.kernel.config.family == "sm90");
    });
}

TEST_CASE("an error of the compiler carries its log and the name of the file") {
    const cuda::Translation broken{
        .main = {"broken.cu", "#include \"part.cuh\"\nint f() { return missing; }\n"},
        .headers = {{"part.cuh", "struct Part {};\n"}}};
    const auto output = cuda::compile_cubin(broken, "sm_80");
    REQUIRE(!output);
    CHECK(output.error().code == ErrorCode::compile_failed);
    CHECK(output.error().message.find("broken.cu(2)") != std::string::npos);
    CHECK(output.error().message.find("missing") != std::string::npos);
}

TEST_CASE("the same text gives the same bytes") {
    const cuda::Translation one{
        .main = {"one.cu", "extern \"C\" __global__ void one(float* x) { x[threadIdx.x] *= 2; }\n"},
        .headers = {}};
    const auto first = cuda::compile_cubin(one, "sm_90a");
    const auto second = cuda::compile_cubin(one, "sm_90a");
    REQUIRE(first);
    REQUIRE(second);
    CHECK(first->cubin == second->cubin);
    REQUIRE(first->kernels.size() == 1);
    CHECK(first->kernels[0].name == "one");
    CHECK(first->kernels[0].registers > 0);
}
