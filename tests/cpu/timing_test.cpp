// Milliseconds of the CPU backend, by the clock and of processor time per thread (which other work
// on the machine disturbs less); skipped unless asked for: test_cpu -tc="timing*" --no-skip;
// FLEXC_TEST_ONLY=none,alibi picks rows.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <string>
#include <vector>

#include "harness.h"
#include "memory.h"

using namespace flexc;
using namespace flexc::test;

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

struct Cost {
    double wall = 1e30, processor = 1e30;
};
struct Timing {
    Cost compile, reload, forward, backward;
};

constexpr int kThreads = 2;

std::string text_of(const Cost& cost, int threads) {
    char text[64];
    std::snprintf(text, sizeof(text), "%8.2f (%8.2f)", cost.wall, cost.processor / threads);
    return text;
}

double processor_milliseconds() { return 1e3 * static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

// Best of a few: other work on the machine only adds.
template <typename Work> Cost best_of(int repeats, const Work& work) {
    Cost best;
    for (int i = 0; i < repeats; ++i) {
        const auto start = Clock::now();
        const double processor = processor_milliseconds();
        work();
        best.processor = std::min(best.processor, processor_milliseconds() - processor);
        best.wall = std::min(best.wall, milliseconds_since(start));
    }
    return best;
}

// One call's memory, with made-up values.
class Prepared {
  public:
    Prepared(const passes::Mod& mod, const Problem& p, DType dtype) {
        using Kind = passes::ArgumentSlot::Kind;
        const ir::Program& program = mod.program;
        const std::int64_t sizes[] = {p.batch,  p.heads,    p.kv_heads,  p.q_len,
                                      p.kv_len, p.head_dim, p.head_dim_v};
        for (const ir::Buffer& buffer : program.buffers) {
            std::vector<std::int64_t> shape;
            for (const ir::Dim& dim : buffer.dims)
                shape.push_back(dim.is_constant() ? dim.constant : sizes[dim.size]);
            add(shape, buffer.dtype);
            if (buffer.grad) gradients_.emplace_back(shape, DType::f32, MemoryLayout::contiguous);
        }
        for (const Memory& gradient : gradients_)
            views_.push_back(gradient.view());
        for (const passes::ArgumentSlot& slot : passes::argument_slots(mod)) {
            const bool is_buffer = slot.kind == Kind::buffer_data ||
                                   slot.kind == Kind::buffer_extent ||
                                   slot.kind == Kind::buffer_stride;
            const TensorView view = is_buffer ? memory_[slot.index].view() : TensorView{};
            words_.push_back(
                slot.kind == Kind::buffer_data ? reinterpret_cast<std::uint64_t>(view.data)
                : slot.kind == Kind::buffer_extent
                    ? static_cast<std::uint64_t>(view.shape[slot.dim])
                : slot.kind == Kind::buffer_stride
                    ? static_cast<std::uint64_t>(view.strides[slot.dim])
                : slot.kind == Kind::size ? static_cast<std::uint64_t>(sizes[slot.index])
                                          : 0);
        }
        const std::vector<std::int64_t> q{p.batch, p.heads, p.q_len, p.head_dim};
        const std::vector<std::int64_t> k{p.batch, p.kv_heads, p.kv_len, p.head_dim};
        AttentionArguments& a = call_.arguments;
        a = {};
        for (TensorArgument* tensor : {&a.q, &a.o, &a.d_out, &a.dq})
            *tensor = add(q, dtype);
        for (TensorArgument* tensor : {&a.k, &a.v, &a.dk, &a.dv})
            *tensor = add(k, dtype);
        a.lse = add({p.batch, p.heads, p.q_len, 1}, DType::f32);
        a.batch = static_cast<int>(p.batch);
        a.heads = static_cast<int>(p.heads);
        a.kv_heads = static_cast<int>(p.kv_heads);
        a.q_len = static_cast<int>(p.q_len);
        a.kv_len = static_cast<int>(p.kv_len);
        a.scale = static_cast<float>(p.scale);
        call_.words = words_;
        call_.gradients = views_;
    }
    ~Prepared() { std::free(call_.workspace); }
    Prepared(const Prepared&) = delete;
    Prepared& operator=(const Prepared&) = delete;

    void run(const cpu::Executable& executable, bool backward) {
        const std::size_t bytes = executable.workspace_bytes(call_, backward);
        if (bytes > workspace_bytes_) {
            std::free(call_.workspace);
            call_.workspace = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
            workspace_bytes_ = bytes;
        }
        CHECK((backward ? executable.backward(call_) : executable.forward(call_)).has_value());
    }

  private:
    TensorArgument add(const std::vector<std::int64_t>& shape, DType dtype) {
        memory_.emplace_back(shape, dtype, MemoryLayout::contiguous);
        std::vector<double> values(memory_.back().count());
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] =
                static_cast<double>(i * 2654435761u % 97) / 32 - (is_float(dtype) ? 1.5 : 0);
        memory_.back().set(values);
        return memory_.back().argument();
    }

    std::deque<Memory> memory_, gradients_;
    std::vector<TensorView> views_;
    std::vector<std::uint64_t> words_;
    cpu::Call call_;
    std::size_t workspace_bytes_ = 0;
};

Timing time_of(const std::string& text, const Problem& shape, DType dtype) {
    const ir::Program program = program_of(text);
    const passes::Mod mod = mod_of(program, shape, {});
    const RunOptions options{.dtype = dtype, .threads = kThreads};
    Timing timing{};
    std::shared_ptr<const cpu::Executable> executable;
    timing.compile = best_of(1, [&] { executable = compile_for(mod, shape, options); });
    timing.reload = best_of(3, [&] {
        (void)cpu::compile(mod,
                           {.dtype = dtype,
                            .head_dim = static_cast<int>(shape.head_dim),
                            .head_dim_v = static_cast<int>(shape.head_dim_v),
                            .threads = kThreads},
                           executable->object_bytes());
    });
    Prepared prepared(mod, shape, dtype);
    timing.forward = best_of(7, [&] { prepared.run(*executable, false); });
    timing.backward = best_of(3, [&] { prepared.run(*executable, true); });
    return timing;
}

} // namespace

TEST_CASE("timing" * doctest::skip()) {
    struct Row {
        const char* name;
        const char* text;
    };
    const Row rows[] = {
        {"none", "score_mod = score"},
        {"alibi", "buffer slopes: f32[H]\nscore_mod = score + slopes[h] * (kv_idx - q_idx)"},
        {"alibi learned",
         "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx)"},
        {"causal", "mask_mod = q_idx >= kv_idx"},
        {"softcap", "score_mod = 20.0 * tanh(score / 20.0)"},
        {"dense bias",
         "buffer bias: f32[Q_LEN, KV_LEN] grad\nscore_mod = score + bias[q_idx, kv_idx]"},
        {"document", "buffer doc: i32[KV_LEN]\nmask_mod = doc[q_idx] == doc[kv_idx]"},
        {"t5",
         "buffer table: f32[32, H] grad\nscore_mod {\n d = max(q_idx - kv_idx, 0)\n far = 16 + "
         "int(log(max(d, 1) / 16) / log(128 / 16) * 16)\n bucket = d if d < 16 else min(far, 31)\n "
         "score + table[bucket, h]\n}"},
        {"sam", "const KW = 32\nbuffer rel_h: f32[B, H, Q_LEN, 64] grad\nbuffer rel_w: f32[B, H, "
                "Q_LEN, 32] "
                "grad\nscore_mod = score + rel_h[b, h, q_idx, kv_idx // KW] + rel_w[b, h, q_idx, "
                "kv_idx % KW]"},
    };
    const Problem shape{.batch = 1,
                        .heads = 16,
                        .kv_heads = 16,
                        .q_len = 2048,
                        .kv_len = 2048,
                        .head_dim = 64,
                        .head_dim_v = 64,
                        .scale = 0.125};
    for (DType dtype : {DType::f32, DType::bf16})
        for (const Row& row : rows) {
            const char* only = std::getenv("FLEXC_TEST_ONLY");
            if (only != nullptr && std::string(only).find(row.name) == std::string::npos) continue;
            const Timing timing = time_of(row.text, shape, dtype);
            const std::string what = std::string(name(dtype)) + " (1, 16, 2048, 64) " + row.name;
            MESSAGE(what, ": forward ", text_of(timing.forward, kThreads), " backward ",
                    text_of(timing.backward, kThreads), " compile ", text_of(timing.compile, 1),
                    " from object ", text_of(timing.reload, 1));
        }
}
