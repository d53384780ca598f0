#include "api/backend.h"
#include "cache/digest.h"
#include "cpu/emit_llvm.h"
#include "cpu/executable.h"
#include "flexc/version.h"
#include "runtime/cpu_executable.h"
#include "support/embedded.h"
#include "support/log.h"

namespace flexc::api {

namespace {

// The backend's identity, if the CPU can do what the options ask for.
Result<std::string> identity_for(const CompileOptions& options) {
    if (options.forward_kernel == ForwardKernel::specialized ||
        (options.backward && options.backward_kernel == BackwardKernel::specialized))
        return Error{ErrorCode::unsupported,
                     "the specialized kernels of a GPU were asked for: this is the CPU"};
    return cpu::backend_identity();
}

} // namespace

Result<void> check_cpu(const CompileOptions& options) {
    auto identity = identity_for(options);
    return identity ? Result<void>() : identity.error();
}

Result<Built> build_cpu(const passes::Mod& mod, const CompileOptions& options, cache::Store& store,
                        const support::Watch& watch) {
    auto identity = identity_for(options);
    if (!identity) return identity.error();
    const support::Log log(options.log);
    cache::KeyBuilder builder;
    builder.field("kind", "cpu object").field("flexc", FLEXC_VERSION).field("backend", *identity);
    for (const embedded::EmbeddedFile& file : embedded::cpu_math())
        builder.field(file.path, file.digest);
    const cache::Key key = builder.field("source", cpu::generated_llvm(mod))
                               .field("dtype", name(options.dtype))
                               .field("head_dim", static_cast<std::uint64_t>(options.head_dim))
                               .field("head_dim_v", static_cast<std::uint64_t>(options.head_dim_v))
                               .finish();
    const auto entry = store.load(key, log);
    auto compiled =
        cpu::compile(mod,
                     {.dtype = options.dtype,
                      .kv_dtype = options.kv_dtype,
                      .head_dim = options.head_dim,
                      .head_dim_v = options.head_dim_v,
                      .batch_invariant = options.batch_invariant},
                     entry ? std::optional<std::string_view>(entry->payload) : std::nullopt, watch);
    if (!compiled) return compiled.error();
    const bool from_cache = (*compiled)->from_object();
    if (entry && !from_cache)
        store.discard(key, log); // it does not link: make room for one that does
    if (!from_cache)
        store.publish(key, {.metadata = "", .payload = std::string((*compiled)->object_bytes())},
                      log);
    KernelInfo info{.name = "flexc_cpu", .reason = "tiles of rows, for this machine's processor"};
    return Built{.executable = runtime::wrap_cpu(*compiled, std::move(info), mod),
                 .from_cache = from_cache,
                 .bytes = (*compiled)->object_bytes().size()};
}

} // namespace flexc::api
