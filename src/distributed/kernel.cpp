// Compiles a program for many ranks: the kernels of its parts.
#include <algorithm>
#include <utility>

#include "distributed/cuda_work.h"
#include "distributed/state.h"
#include "ir/print.h"
#include "runtime/buffers.h"
#include "support/guarded.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc {

namespace {

// Checks what the mask reads, because every rank plans the work of all ranks from it.
Result<void> check_sharded(const detail::KernelState& kernel) {
    const ir::Program& program = kernel.mod.program;
    for (const ir::NodeId id : ir::reachable(program.graph, std::span(&kernel.mod.mask, 1))) {
        const ir::Node& node = program.graph[id];
        if (node.op != ir::Op::read) continue;
        const std::string& name = program.buffers[node.symbol].name;
        if (std::ranges::find(kernel.options.sharded, name, &ShardedBuffer::buffer) !=
            kernel.options.sharded.end())
            return runtime::invalid(formatted(
                "buffer '{}' is sharded, and the mask reads it: have it whole on every rank",
                name));
    }
    return {};
}

} // namespace

const Kernel& DistributedKernel::kernel() const { return state_->kernel; }

Result<DistributedKernel> compile_distributed(std::string_view text, const CompileOptions& given) {
    return guarded([&]() -> Result<DistributedKernel> {
        CompileOptions options = given;
        if (options.device.kind == Device::Kind::automatic) options.device = Device::cpu();
        if (options.query_layout != options.key_layout ||
            !support::key_layout(options.key_layout).is_in_order)
            return Error{ErrorCode::unsupported,
                         formatted("attention across ranks is of queries and keys that are both "
                                   "dense or both ragged, not of {} queries and {} keys",
                                   name(options.query_layout), name(options.key_layout))};
        if (options.query_layout == Layout::ragged) {
            options.query_layout = options.key_layout = Layout::dense;
            options.one_sequence = OneSequence::of_any_lengths;
        }
        if (options.kv_dtype.value_or(options.dtype) != options.dtype)
            return Error{ErrorCode::unsupported,
                         "attention across ranks is for k and v of the type of q: leave kv_dtype "
                         "out"};
        if (options.max_scores)
            return Error{ErrorCode::unsupported,
                         "attention across ranks gives no largest scores: leave max_scores out"};
        options.gradient_type = GradientType::f32;
        auto state = std::make_shared<detail::DistributedKernelState>();
        state->text = text;
        state->options = options;
        state->options.log = {}; // the caller's sink may be destroyed before the kernel
        state->options.cancel = {};
        state->gradient_type = given.gradient_type;
        // The sink is added once, after all keys.
        const auto signature = check(text, options);
        if (!signature) return signature.error();
        if (!signature->sink_depends_on.empty() && options.sink_use == SinkUse::joins) {
            options.sink_use = SinkUse::alone;
            auto sink = compile(text, options);
            if (!sink) return sink.error();
            state->sink_kernel = std::move(*sink);
        }
        options.sink_use = SinkUse::absent;
        auto kernel = compile(text, options);
        if (!kernel) return kernel.error();
        state->kernel = std::move(*kernel);
        if (auto checked = check_sharded(state->kernel.state()); !checked) return checked.error();
        if (options.device.kind == Device::Kind::cuda) {
            auto code = distributed::load_device_code(options.device.index, options);
            if (!code) return code.error();
            state->device_code = std::move(*code);
        }
        const CompileOptions& full = state->kernel.options();
        state->program = ir::print(state->kernel.state().mod.program);
        if (state->sink_kernel)
            state->program += ir::print(state->sink_kernel->state().mod.program);
        state->program +=
            formatted("{} {} {} {} {}", name(full.dtype), full.head_dim, full.head_dim_v,
                      full.backward, options.device.kind == Device::Kind::cuda ? "cuda" : "cpu");
        return DistributedKernel(std::move(state));
    });
}

} // namespace flexc
