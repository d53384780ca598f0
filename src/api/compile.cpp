// The whole pipeline: text to program to mod to machine code to handle.
#include "flexc/compile.h"

#include <chrono>

#include "api/backend.h"
#include "api/context.h"
#include "api/frontend.h"
#include "cache/digest.h"
#include "flexc/version.h"
#include "passes/describe.h"
#include "support/env.h"
#include "support/log.h"
#include "support/text.h"

namespace flexc {

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point start) {
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

// The key of a compile's inputs, not of the generated code, so that a repeated compile() is one
// look-up without parsing. It contains the whole text, so no two inputs share a key.
std::string key_of(std::string_view text, const CompileOptions& options) {
    cache::KeyBuilder key;
    key.field("text", text).field("mask_mod", options.mask_mod).field("sink", options.sink);
    for (const BufferDeclaration& buffer : options.buffers) {
        key.field("buffer", buffer.name).field("type", name(buffer.type));
        for (const std::string& dim : buffer.dims)
            key.field("dim", dim);
        key.field("grad", std::uint64_t{buffer.grad});
    }
    for (const ParamDeclaration& param : options.params)
        key.field("param", param.name)
            .field("type", name(param.type))
            .field("value", formatted("{}", param.value));
    for (const ShardedBuffer& sharded : options.sharded)
        key.field("sharded", sharded.buffer).field("along", sharded.dim);
    return key.field("dtype", name(options.dtype))
        .field("kv_dtype", name(options.kv_dtype.value_or(options.dtype)))
        .field("head_dim", static_cast<std::uint64_t>(options.head_dim))
        .field("head_dim_v", static_cast<std::uint64_t>(options.head_dim_v))
        .field("device", static_cast<std::uint64_t>(options.device.kind))
        .field("index", static_cast<std::uint64_t>(options.device.index))
        .field("query_layout", static_cast<std::uint64_t>(options.query_layout))
        .field("key_layout", static_cast<std::uint64_t>(options.key_layout))
        .field("backward", std::uint64_t{options.backward})
        .field("forward_kernel", static_cast<std::uint64_t>(options.forward_kernel))
        .field("backward_kernel", static_cast<std::uint64_t>(options.backward_kernel))
        .field("tile_source", static_cast<std::uint64_t>(options.tile_source))
        .field("gradient_type", static_cast<std::uint64_t>(options.gradient_type))
        .field("schedule", options.schedule)
        .field("deterministic", std::uint64_t{options.deterministic})
        .field("batch_invariant", std::uint64_t{options.batch_invariant})
        .field("max_scores", std::uint64_t{options.max_scores})
        .field("count_visible", std::uint64_t{options.count_visible})
        .field("sink_use", static_cast<std::uint64_t>(options.sink_use))
        .field("one_sequence", static_cast<std::uint64_t>(options.one_sequence))
        .field("part_of_heads", std::uint64_t{options.part_of_heads})
        .field("report", std::uint64_t{options.report_out_of_range})
        .text();
}

Result<cache::Modules<detail::KernelState>::Made>
make_kernel(std::string_view text, const CompileOptions& options, const support::Watch& watch) {
    const auto start = Clock::now();
    auto front = api::read_program(text, options);
    if (!front) return front.error();
    return api::make_kernel(std::move(*front), options, watch, start);
}

std::vector<std::string> sizes_read(const ir::Program& program, std::span<const ir::NodeId> roots) {
    std::vector<bool> is_read(program.sizes.size(), false);
    for (const ir::NodeId node : ir::reachable(program.graph, roots))
        if (program.graph[node].op == ir::Op::size) is_read[program.graph[node].symbol] = true;
    std::vector<std::string> sizes;
    for (std::size_t i = 0; i < program.sizes.size(); ++i)
        if (is_read[i]) sizes.push_back(program.sizes[i]);
    return sizes;
}

} // namespace

Result<cache::Modules<detail::KernelState>::Made> api::make_kernel(Front front,
                                                                   const CompileOptions& options,
                                                                   const support::Watch& watch,
                                                                   Clock::time_point start) {
    const support::Log log(options.log);
    if (!front.warnings.empty()) log.warn("{}", front.warnings);
    for (const std::string& problem : support::environment_problems())
        log.warn("{}; it has no effect", problem);
    auto mod = lower_program(std::move(front), options);
    if (!mod) return mod.error();
    if (auto checked = watch.check(); !checked) return checked.error();

    const auto store = Context::instance().stores.get(options.cache);
    auto built = options.device.kind == Device::Kind::cuda
                     ? build_cuda(*mod, options, options.device.index, *store, watch)
                     : build_cpu(*mod, options, *store, watch);
    if (!built) return built.error();

    auto state = std::make_shared<detail::KernelState>();
    state->options = options;
    state->options.log = {}; // the caller's sink may die before the kernel
    state->options.cancel = {};
    state->device = options.device;
    state->slots = passes::argument_slots(*mod);
    state->mod = std::move(*mod);
    state->executable = std::move(built->executable);
    state->from_cache = built->from_cache;
    state->compile_ms = milliseconds_since(start);
    log.info("compiled for {} in {:.1f} ms{}",
             options.device.kind == Device::Kind::cuda ? "cuda" : "cpu", state->compile_ms,
             state->from_cache ? ", from the disk cache" : "");
    return cache::Modules<detail::KernelState>::Made{.value = std::move(state),
                                                     .bytes = built->bytes};
}

Result<Kernel> compile(std::string_view text, const CompileOptions& given) {
    return guarded([&]() -> Result<Kernel> {
        auto options = api::complete(given);
        if (!options) return options.error();
        if (options->device.kind == Device::Kind::automatic) options->device = default_device();
        api::Context& context = api::Context::instance();
        const support::Watch watch = context.watch(*options);
        if (!options->cache.memory) {
            auto made = make_kernel(text, *options, watch);
            if (!made) return made.error();
            return Kernel(made->value);
        }
        const std::string key = key_of(text, *options);
        while (true) {
            if (auto failed = context.failures.find(key, options->limits)) return *failed;
            bool is_mine = false;
            auto state = context.kernels.get(
                key,
                [&] {
                    is_mine = true;
                    auto made = make_kernel(text, *options, watch);
                    if (!made &&
                        (watch.has_stopped() || made.error().code == ErrorCode::compile_failed))
                        context.failures.remember(key, made.error(), options->limits);
                    return made;
                },
                [&] { return watch.check(); });
            if (state) return Kernel(*state);
            // Another caller's compile may have been cancelled, or had less time.
            const ErrorCode code = state.error().code;
            const bool was_stopped = code == ErrorCode::cancelled || code == ErrorCode::limit;
            if (is_mine || !was_stopped || !watch.check()) return state.error();
        }
    });
}

Result<OfflineResult> compile_offline(std::string_view text, const CompileOptions& given,
                                      std::string_view arch, OfflineCalls calls) {
    return guarded([&]() -> Result<OfflineResult> {
        const auto start = Clock::now();
        auto options = api::complete(given);
        if (!options) return options.error();
        auto mod = api::lower_text(text, *options);
        if (!mod) return mod.error();
        api::Context& context = api::Context::instance();
        const auto store = context.stores.get(options->cache);
        auto result =
            api::build_cubins(*mod, *options, arch, calls, *store, context.watch(*options));
        if (!result) return result.error();
        result->compile_ms = milliseconds_since(start);
        return result;
    });
}

Result<Signature> check(std::string_view text, const CompileOptions& given) {
    return guarded([&]() -> Result<Signature> {
        auto options = api::complete(given);
        if (!options) return options.error();
        auto front = api::read_program(text, *options);
        if (!front) return front.error();
        const ir::Program& program = front->program;
        Signature signature;
        for (const ir::Buffer& buffer : program.buffers) {
            BufferInfo info{.name = buffer.name, .dtype = buffer.dtype, .grad = buffer.grad};
            for (const ir::Dim& dim : buffer.dims)
                info.dims.push_back(dim.is_constant() ? std::to_string(dim.constant)
                                                      : program.sizes[dim.size]);
            signature.buffers.push_back(std::move(info));
        }
        for (const ir::Param& param : program.params)
            signature.params.push_back({.name = param.name,
                                        .type = std::string(name(param.type)),
                                        .default_value = param.default_value,
                                        .has_default = param.has_default});
        const std::array roots = {program.score, program.sink, program.mask};
        signature.sizes = sizes_read(program, roots);
        signature.mask_sizes = sizes_read(program, std::span(roots).subspan(2));
        const auto dependence = analysis::dependences(program.graph);
        signature.score_depends_on = analysis::describe(dependence[program.score]);
        if (program.graph[program.mask].op != ir::Op::const_bool)
            signature.mask_depends_on = analysis::describe(dependence[program.mask]);
        if (program.sink != ir::kNoNode)
            signature.sink_depends_on = analysis::describe(dependence[program.sink]);
        if (!front->warnings.empty()) signature.warnings.push_back(front->warnings);
        // Errors that only the passes find, such as a derivative beyond the limits.
        const dsl::Source source = front->source;
        const auto mod = api::lower_program(std::move(*front), *options);
        if (!mod) return mod.error();
        if (const dsl::Diagnostics hints = passes::read_hints(*mod); !hints.empty())
            signature.warnings.push_back(dsl::render(source, hints));
        return signature;
    });
}

Result<void> supports(std::string_view text, const CompileOptions& given, std::string_view arch) {
    return guarded([&]() -> Result<void> {
        auto options = api::complete(given);
        if (!options) return options.error();
        if (options->device.kind == Device::Kind::automatic && arch.empty())
            options->device = default_device();
        auto mod = api::lower_text(text, *options);
        if (!mod) return mod.error();
        if (arch.empty() && options->device.kind != Device::Kind::cuda)
            return api::check_cpu(*options);
        const auto store = api::Context::instance().stores.get(options->cache);
        return api::check_cuda(*mod, *options, arch, *store);
    });
}

std::string_view version() { return FLEXC_VERSION; }

} // namespace flexc
