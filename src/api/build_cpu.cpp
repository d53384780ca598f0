#include "api/backend.h"
#include "cache/digest.h"
#include "cpu/emit_llvm.h"
#include "cpu/executable.h"
#include "flexc/version.h"
#include "runtime/cpu_executable.h"
#include "support/log.h"

namespace flexc::api {

Result<Built> build_cpu(const passes::Mod& mod, const CompileOptions& options,
                        cache::Store& store) {
    auto identity = cpu::backend_identity();
    if (!identity) return identity.error();
    const support::Log log(options.log);
    const cache::Digest source = cache::digest_of(cpu::emit_llvm(mod).text);
    const cache::Digest key =
        cache::DigestBuilder()
            .field("kind", "cpu object")
            .field("flexc", FLEXC_VERSION)
            .field("backend", *identity)
            .field("source", source)
            .field("dtype", name(options.dtype))
            .field("head_dim", static_cast<std::uint64_t>(options.head_dim))
            .field("head_dim_v", static_cast<std::uint64_t>(options.head_dim_v))
            .finish();
    const auto entry = store.load(key, source, log);
    auto compiled = cpu::compile(
        mod,
        {.dtype = options.dtype, .head_dim = options.head_dim, .head_dim_v = options.head_dim_v},
        entry ? std::optional<std::string_view>(entry->payload) : std::nullopt);
    if (!compiled) return compiled.error();
    const bool from_cache = (*compiled)->from_object();
    if (entry && !from_cache)
        store.discard(key, log); // it does not link: make room for one that does
    if (!from_cache)
        store.publish(key, source,
                      {.metadata = "", .payload = std::string((*compiled)->object_bytes())}, log);
    KernelInfo info{.name = "flexc_cpu", .reason = "tiles of rows, for this machine's processor"};
    return Built{.executable = runtime::wrap_cpu(*compiled, std::move(info), mod),
                 .from_cache = from_cache,
                 .bytes = (*compiled)->object_bytes().size()};
}

} // namespace flexc::api
