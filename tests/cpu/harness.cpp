#include "harness.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "front/compile_text.h"
#include "memory.h"
#include "passes/pipeline.h"

namespace flexc::test {

namespace {

using Kind = passes::ArgumentSlot::Kind;

std::uint64_t word_of(const ir::Param& param, const ir::Value<double>& value) {
    if (param.type == ir::Type::boolean) return value.boolean ? 1 : 0;
    if (param.type == ir::Type::integer) return std::bit_cast<std::uint64_t>(value.integer);
    return std::bit_cast<std::uint32_t>(static_cast<float>(value.real));
}

// Largest difference relative to 1 + |expected|; infinite where one is NaN or inf and not the
// other.
double error_of(const std::vector<double>& got, const std::vector<double>& expected) {
    double worst = 0;
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double x = got[i], y = expected[i];
        if (x == y || (std::isnan(x) && std::isnan(y))) continue;
        const double error = std::abs(x - y) / (1 + std::abs(y));
        worst =
            std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
    }
    return worst;
}

} // namespace

std::vector<float> Outcome::bits() const {
    std::vector<float> all;
    auto add = [&](const std::vector<double>& values) {
        for (double value : values)
            all.push_back(static_cast<float>(value));
    };
    for (const auto* values : {&answer.o, &answer.lse, &answer.dq, &answer.dk, &answer.dv})
        add(*values);
    for (const auto& [name, values] : answer.d_buffers)
        add(values);
    return all;
}

ir::Program program_of(const std::string& text) {
    front::Output output = front::compile_text({.source = dsl::Source("<test>", text)});
    INFO(output.rendered);
    REQUIRE(output.program.has_value());
    return *std::move(output.program);
}

passes::Mod mod_of(const ir::Program& program, const Problem& problem, const RunOptions& options) {
    auto mod = passes::lower(program, {.backward = options.backward,
                                       .report_out_of_range = options.report_out_of_range,
                                       .clamps_bands = !options.report_out_of_range,
                                       .head_dim = static_cast<int>(problem.head_dim),
                                       .head_dim_v = static_cast<int>(problem.head_dim_v)});
    INFO((mod ? std::string() : mod.error().message));
    REQUIRE(mod.has_value());
    return *std::move(mod);
}

Problem make_problem(const ir::Program& program, Problem shape, std::uint64_t seed,
                     const std::map<std::string, std::int64_t>& sizes) {
    std::mt19937_64 engine(seed);
    // Multiples of 1/16: exact in every element type.
    auto real = [&] { return static_cast<double>(static_cast<int>(engine() % 49) - 24) / 16; };
    auto fill = [&](std::vector<double>& values, std::int64_t count) {
        values.resize(static_cast<std::size_t>(count));
        for (double& value : values)
            value = real();
    };
    Problem p = std::move(shape);
    if (p.scale == 1) p.scale = 1 / std::sqrt(static_cast<double>(p.head_dim));
    fill(p.q, p.batch * p.heads * p.q_len * p.head_dim);
    fill(p.k, p.batch * p.kv_heads * p.kv_len * p.head_dim);
    fill(p.v, p.batch * p.kv_heads * p.kv_len * p.head_dim_v);
    fill(p.d_out, p.batch * p.heads * p.q_len * p.head_dim_v);
    p.sizes = {p.batch,    p.heads,     p.kv_heads, p.q_len + p.q_offset, p.kv_len + p.kv_offset,
               p.head_dim, p.head_dim_v};
    for (std::size_t i = ir::kStandardSizes; i < program.sizes.size(); ++i) {
        const auto given = sizes.find(program.sizes[i]);
        p.sizes.push_back(given == sizes.end() ? 7 : given->second);
    }
    for (const ir::Param& param : program.params)
        p.params.push_back({.boolean = param.default_value != 0,
                            .integer = static_cast<std::int64_t>(param.default_value),
                            .real = param.default_value});
    for (const ir::Buffer& buffer : program.buffers) {
        ir::BufferData data;
        std::int64_t count = 1;
        for (const ir::Dim& dim : buffer.dims) {
            data.extents.push_back(dim.is_constant() ? dim.constant : p.sizes[dim.size]);
            count *= data.extents.back();
        }
        for (std::int64_t i = 0; i < count; ++i) {
            if (ir::type_of(buffer.dtype) == ir::Type::real)
                data.reals.push_back(real());
            else if (buffer.dtype == DType::boolean)
                data.integers.push_back(static_cast<std::int64_t>(engine() % 2));
            else
                data.integers.push_back(static_cast<std::int64_t>(engine() % 5));
        }
        p.buffers.push_back(std::move(data));
    }
    return p;
}

std::shared_ptr<const cpu::Executable> compile_for(const passes::Mod& mod, const Problem& problem,
                                                   const RunOptions& options,
                                                   std::optional<std::string_view> object) {
    auto executable = cpu::compile(mod,
                                   {.dtype = options.dtype,
                                    .head_dim = static_cast<int>(problem.head_dim),
                                    .head_dim_v = static_cast<int>(problem.head_dim_v),
                                    .threads = options.threads},
                                   object);
    INFO((executable ? std::string() : executable.error().message));
    REQUIRE(executable.has_value());
    return *std::move(executable);
}

Outcome run(const passes::Mod& mod, const cpu::Executable& executable, const Problem& p,
            const RunOptions& options) {
    const ir::Program& program = mod.program;
    const MemoryLayout layout = options.layout;
    const bool f32_out = (options.output_flags & kOutputF32) != 0;
    const DType out_type = f32_out ? DType::f32 : options.dtype;
    Memory q({p.batch, p.heads, p.q_len, p.head_dim}, options.dtype, layout);
    Memory k({p.batch, p.kv_heads, p.kv_len, p.head_dim}, options.dtype, layout);
    Memory v({p.batch, p.kv_heads, p.kv_len, p.head_dim_v}, options.dtype, layout);
    Memory d_out({p.batch, p.heads, p.q_len, p.head_dim_v}, options.dtype, layout);
    Memory o({p.batch, p.heads, p.q_len, p.head_dim_v}, out_type, layout);
    Memory dq({p.batch, p.heads, p.q_len, p.head_dim}, out_type, layout);
    Memory dk({p.batch, p.kv_heads, p.kv_len, p.head_dim}, out_type, layout);
    Memory dv({p.batch, p.kv_heads, p.kv_len, p.head_dim_v}, out_type, layout);
    Memory lse({p.batch, p.heads, p.q_len, 1}, DType::f32, layout);
    Memory d_lse({p.batch, p.heads, p.q_len, 1}, DType::f32, layout);
    q.set(p.q);
    k.set(p.k);
    v.set(p.v);
    d_out.set(p.d_out);
    for (Memory* memory : {&o, &dq, &dk, &dv})
        memory->set(std::vector<double>(memory->count(), options.output_start));
    if (!p.d_lse.empty()) d_lse.set(p.d_lse);

    std::vector<Memory> buffers, gradients;
    for (std::size_t i = 0; i < program.buffers.size(); ++i) {
        const ir::BufferData& data = p.buffers[i];
        buffers.emplace_back(data.extents, program.buffers[i].dtype, layout);
        gradients.emplace_back(data.extents, DType::f32, layout);
        if (data.reals.empty())
            buffers.back().set(data.integers);
        else
            buffers.back().set(data.reals);
        gradients.back().set(std::vector<double>(gradients.back().count(), options.gradient_start));
    }
    std::int32_t outside = 0;
    std::vector<std::uint64_t> words;
    for (const passes::ArgumentSlot& slot : passes::argument_slots(mod)) {
        std::uint64_t word = 0;
        const auto index = slot.index;
        switch (slot.kind) {
        case Kind::buffer_data:
            word = std::bit_cast<std::uint64_t>(buffers[index].view().data);
            break;
        case Kind::buffer_extent:
            word = static_cast<std::uint64_t>(buffers[index].view().shape[slot.dim]);
            break;
        case Kind::buffer_stride:
            word = static_cast<std::uint64_t>(buffers[index].view().strides[slot.dim]);
            break;
        case Kind::param: word = word_of(program.params[index], p.params[index]); break;
        case Kind::size: word = static_cast<std::uint64_t>(p.sizes[index]); break;
        case Kind::out_of_range: word = std::bit_cast<std::uint64_t>(&outside); break;
        default: break;
        }
        words.push_back(word);
    }
    std::vector<TensorView> gradient_views;
    for (std::uint32_t buffer : executable.gradient_buffers())
        gradient_views.push_back(gradients[buffer].view());

    cpu::Call call;
    AttentionArguments& a = call.arguments;
    a = {};
    a.q = q.argument();
    a.k = k.argument();
    a.v = v.argument();
    a.o = o.argument();
    a.lse = lse.argument();
    a.batch = static_cast<int>(p.batch);
    a.heads = static_cast<int>(p.heads);
    a.kv_heads = static_cast<int>(p.kv_heads);
    a.q_len = static_cast<int>(p.q_len);
    a.kv_len = static_cast<int>(p.kv_len);
    a.q_offset = p.q_offset;
    a.kv_offset = p.kv_offset;
    a.scale = static_cast<float>(p.scale);
    a.o_flags = options.output_flags & kOutputF32;
    a.dq_flags = a.dk_flags = a.dv_flags = options.output_flags;
    call.words = words;
    call.gradients = gradient_views;
    auto in_workspace = [&](bool backward) {
        // Poison shows what is read before it is written; a guard shows writes past the end.
        const std::size_t bytes = executable.workspace_bytes(call, backward);
        constexpr std::size_t kGuard = 256;
        void* memory = std::aligned_alloc(64, (bytes + kGuard + 63) / 64 * 64);
        std::memset(memory, 0xff, bytes + kGuard);
        call.workspace = memory;
        auto done = backward ? executable.backward(call) : executable.forward(call);
        INFO((done ? std::string() : done.error().message));
        CHECK(done.has_value());
        const auto* end = static_cast<const unsigned char*>(memory) + bytes;
        CHECK(std::all_of(end, end + kGuard, [](unsigned char byte) { return byte == 0xff; }));
        std::free(memory);
    };
    in_workspace(false);
    Outcome outcome;
    outcome.answer.o = o.get();
    outcome.answer.lse = lse.get();
    if (options.backward) {
        std::vector<double> merged = outcome.answer.lse;
        for (double& value : merged)
            value += options.lse_added;
        lse.set(merged);
        a.d_out = d_out.argument();
        if (!p.d_lse.empty()) a.d_lse = d_lse.argument();
        a.dq = dq.argument();
        a.dk = dk.argument();
        a.dv = dv.argument();
        in_workspace(true);
        outcome.answer.dq = dq.get();
        outcome.answer.dk = dk.get();
        outcome.answer.dv = dv.get();
        for (std::size_t i = 0; i < program.buffers.size(); ++i)
            if (program.buffers[i].grad)
                outcome.answer.d_buffers[program.buffers[i].name] = gradients[i].get();
    }
    outcome.out_of_range = outside != 0;
    return outcome;
}

Outcome run(const ir::Program& program, const Problem& problem, const RunOptions& options) {
    const passes::Mod mod = mod_of(program, problem, options);
    return run(mod, *compile_for(mod, problem, options), problem, options);
}

void check_close(const Outcome& outcome, const Answer& expected, const RunOptions& options) {
    const bool rounds = options.dtype != DType::f32 && (options.output_flags & kOutputF32) == 0;
    const double sums = 2e-5;
    const double outputs = !rounds ? sums : options.dtype == DType::f16 ? 1e-3 : 8e-3;
    const double added = (options.output_flags & kOutputAccumulate) != 0 ? options.output_start : 0;
    auto plus = [&](std::vector<double> values) {
        for (double& value : values)
            value += added;
        return values;
    };
    const Answer& got = outcome.answer;
    CHECK(error_of(got.o, expected.o) < outputs);
    CHECK(error_of(got.lse, expected.lse) < sums);
    if (!options.backward) return;
    // The backward pass starts from o as the forward pass rounded it.
    const double gradients = rounds ? 4 * outputs : sums;
    CHECK(error_of(got.dq, plus(expected.dq)) < gradients);
    CHECK(error_of(got.dk, plus(expected.dk)) < gradients);
    CHECK(error_of(got.dv, plus(expected.dv)) < gradients);
    for (const auto& [name, values] : expected.d_buffers) {
        CAPTURE(name);
        CHECK(error_of(got.d_buffers.at(name), values) < 10 * gradients);
    }
}

void check(const std::string& text, const Problem& shape, const RunOptions& options,
           std::uint64_t seed, const std::map<std::string, std::int64_t>& sizes) {
    CAPTURE(text);
    const ir::Program program = program_of(text);
    const Problem problem = make_problem(program, shape, seed, sizes);
    check_close(run(program, problem, options), attention_oracle(program, problem), options);
}

} // namespace flexc::test
