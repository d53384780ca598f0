#include "api/frontend.h"

#include "front/compile_text.h"
#include "passes/pipeline.h"
#include "support/log.h"
#include "support/text.h"

namespace flexc::api {

Result<CompileOptions> complete(CompileOptions options) {
    auto invalid = [](std::string message) {
        return Error{ErrorCode::invalid_option, std::move(message)};
    };
    if (options.head_dim_v == 0) options.head_dim_v = options.head_dim;
    for (const int dim : {options.head_dim, options.head_dim_v})
        if (dim < 1 || dim > 256)
            return invalid(formatted("head dim {} is not between 1 and 256", dim));
    if (options.dtype != DType::f32 && options.dtype != DType::f16 && options.dtype != DType::bf16)
        return invalid(formatted("q, k and v of type {} are not supported; use f32, f16 or bf16",
                                 name(options.dtype)));
    return options;
}

Result<Front> read_program(std::string_view text, const CompileOptions& options) {
    front::Output output =
        front::compile_text({.source = dsl::Source(options.source_name, std::string(text)),
                             .buffers = options.buffers,
                             .params = options.params,
                             .mask_mod = options.mask_mod});
    if (!output.program) return Error{ErrorCode::syntax, std::move(output.rendered)};
    return Front{std::move(*output.program), std::move(output.rendered)};
}

namespace {

// Whether prefixes and padding have ranges.
bool takes_ranges(const CompileOptions& options) {
    if (options.report_out_of_range) return false; // where a length is read that hides its reader
    // On a GPU turns at dq are counted for bands.
    if (options.deterministic && options.device.kind != Device::Kind::cpu) return false;
    return options.tile_source != TileSource::maps;
}

} // namespace

Result<passes::Mod> lower_program(ir::Program program, const CompileOptions& options) {
    const support::Log log(options.log);
    passes::PipelineOptions pipeline{.backward = options.backward,
                                     .report_out_of_range = options.report_out_of_range,
                                     .deterministic = options.deterministic,
                                     .clamps_bands = takes_ranges(options),
                                     .head_dim = options.head_dim,
                                     .head_dim_v = options.head_dim_v,
                                     .trace = {}};
    if (log.enabled(LogLevel::debug))
        pipeline.trace = [&log](std::string_view pass, std::string_view ir, double ms) {
            log.debug("{} ({:.3f} ms)\n{}", pass, ms, ir);
        };
    return passes::lower(std::move(program), pipeline);
}

Result<passes::Mod> lower_text(std::string_view text, const CompileOptions& options) {
    auto front = read_program(text, options);
    if (!front) return front.error();
    return lower_program(std::move(front->program), options);
}

} // namespace flexc::api
