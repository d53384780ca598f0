#include "api/template_code.h"

#include <utility>

#include "api/context.h"
#include "api/kernel_entry.h"
#include "cuda/driver.h"
#include "cuda/fill.h"
#include "cuda/nvrtc.h"
#include "plan/plan.h"
#include "support/log.h"

namespace flexc::api {

Result<std::string> compile_template(std::string_view path, int device,
                                     const CompileOptions& options) {
    const auto info = cuda::device_info(device);
    if (!info) return info.error();
    const std::string arch = plan::arch_name(info->arch);
    plan::KernelConfig config;
    config.template_path = path;
    auto translation = cuda::fill_template(config, "");
    if (!translation) return translation.error();
    const Identity id = identify(*translation, arch);
    const support::Log log(options.log);
    Context& context = Context::instance();
    const auto store = context.stores.get(options.cache);
    if (auto entry = store->load(id.key, log)) return std::move(entry->payload);
    auto output = cuda::compile_cubin(*translation, arch, context.watch(options));
    if (!output) return output.error();
    store->publish(id.key, {.metadata = "", .payload = output->cubin}, log);
    return std::move(output->cubin);
}

} // namespace flexc::api
