#include "api/frontend.h"

#include <limits>

#include "front/compile_text.h"
#include "passes/part.h"
#include "passes/pipeline.h"
#include "support/key_layout.h"
#include "support/log.h"
#include "support/text.h"

namespace flexc::api {

Result<CompileOptions> complete(CompileOptions options) {
    auto invalid = [](std::string message) {
        return Error{ErrorCode::invalid_option, std::move(message)};
    };
    if (options.head_dim_v == 0) options.head_dim_v = options.head_dim;
    for (const int dim : {options.head_dim, options.head_dim_v})
        if (dim < 1 || dim > kMaxHeadDim)
            return invalid(formatted("head dim {} is not between 1 and {}", dim, kMaxHeadDim));
    if (options.dtype != DType::f32 && options.dtype != DType::f16 && options.dtype != DType::bf16)
        return invalid(formatted("q, k and v of type {} are not supported; use f32, f16 or bf16",
                                 name(options.dtype)));
    if (options.kv_dtype == options.dtype) options.kv_dtype.reset();
    if (options.kv_dtype && *options.kv_dtype != DType::e4m3 && *options.kv_dtype != DType::e5m2 &&
        *options.kv_dtype != DType::i8)
        return invalid(
            formatted("k and v of type {} are not supported beside q of type {}; use {}, "
                      "e4m3, e5m2 or i8",
                      name(*options.kv_dtype), name(options.dtype), name(options.dtype)));
    if (const support::KeyLayout& layout = support::key_layout(options.query_layout);
        !layout.is_in_order)
        return invalid(formatted("queries are dense or ragged: {} are for keys", layout.things));
    if (options.one_sequence != OneSequence::no &&
        (options.query_layout != Layout::dense || options.key_layout != Layout::dense))
        return invalid("requests of one sequence lie in tensors of dense layouts");
    if (options.count_visible || !support::key_layout(options.key_layout).is_in_order ||
        options.kv_dtype)
        options.backward = false;
    return options;
}

Result<Front> read_program(std::string_view text, const CompileOptions& options) {
    const dsl::Source source(options.source_name, std::string(text));
    const bool is_sequence = options.one_sequence != OneSequence::no;
    front::Output output =
        front::compile_text({.source = source,
                             .buffers = options.buffers,
                             .params = options.params,
                             .query_layout = is_sequence ? Layout::ragged : options.query_layout,
                             .key_layout = is_sequence ? Layout::ragged : options.key_layout,
                             .mask_mod = options.mask_mod,
                             .sink = options.sink});
    if (!output.program) return Error{ErrorCode::syntax, std::move(output.rendered)};
    return Front{source, std::move(*output.program), std::move(output.rendered)};
}

namespace {

// Whether prefixes and padding are converted to ranges of keys.
bool takes_ranges(const CompileOptions& options) {
    if (options.report_out_of_range)
        return false; // a length may hide the elements that would report its read
    // On a GPU, the order of additions to dq is computed for bands only.
    if (options.deterministic && options.device.kind != Device::Kind::cpu) return false;
    return options.tile_source != TileSource::block_mask;
}

// Whether the type in which kernels keep dS between two products has the range of floats.
bool has_range_of_floats(const CompileOptions& options) {
    return options.device.kind != Device::Kind::cpu && options.dtype == DType::bf16;
}

void count_visible(ir::Program& program) {
    ir::Graph& graph = program.graph;
    const ir::NodeId hidden = graph.real(-std::numeric_limits<double>::infinity());
    const ir::NodeId is_hidden = graph.apply(ir::Op::feq, {program.score, hidden});
    program.score = graph.apply(ir::Op::fselect, {is_hidden, hidden, graph.real(0)});
    program.sink = ir::kNoNode;
}

} // namespace

Result<passes::Mod> lower_program(Front front, const CompileOptions& options) {
    if (auto made = passes::make_part(front.program, options); !made) return made.error();
    if (options.count_visible) count_visible(front.program);
    const support::Log log(options.log);
    passes::PipelineOptions pipeline{.backward = options.backward,
                                     .report_out_of_range = options.report_out_of_range,
                                     .deterministic = options.deterministic,
                                     .clamps_bands = takes_ranges(options),
                                     .divides_by_derivative = has_range_of_floats(options),
                                     .rows_are_whole = options.sink_use != SinkUse::absent,
                                     .source = &front.source,
                                     .head_dim = options.head_dim,
                                     .head_dim_v = options.head_dim_v,
                                     .trace = {}};
    if (log.enabled(LogLevel::debug))
        pipeline.trace = [&log](std::string_view pass, std::string_view ir, double ms) {
            log.debug("{} ({:.3f} ms)\n{}", pass, ms, ir);
        };
    return passes::lower(std::move(front.program), pipeline);
}

Result<passes::Mod> lower_text(std::string_view text, const CompileOptions& options) {
    auto front = read_program(text, options);
    if (!front) return front.error();
    return lower_program(std::move(*front), options);
}

} // namespace flexc::api
