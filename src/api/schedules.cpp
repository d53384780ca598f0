#include "api/schedules.h"

#include <algorithm>

#include "api/context.h"
#include "api/frontend.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "cuda/select.h"
#include "support/text.h"

namespace flexc {

namespace {

struct Question {
    CompileOptions options;
    passes::Mod mod;
    api::Target target;
};

Result<Question> question(std::string_view text, const CompileOptions& given,
                          std::string_view arch) {
    auto options = api::complete(given);
    if (!options) return options.error();
    std::string name(arch);
    if (name.empty()) {
        if (options->device.kind == Device::Kind::automatic) options->device = default_device();
        if (options->device.kind != Device::Kind::cuda)
            return Error{ErrorCode::invalid_option,
                         "only kernels for a GPU have schedules: name a device or an architecture"};
        auto device = cuda::device_info(options->device.index);
        if (!device) return device.error();
        name = cuda::arch_name(device->arch);
    }
    auto target = api::target_of(name);
    if (!target) return target.error();
    auto mod = api::lower_text(text, *options);
    if (!mod) return mod.error();
    return Question{std::move(*options), std::move(*mod), std::move(*target)};
}

// Of the forward kernel that compile() looks for when it is given no schedule.
Result<api::Identity> identity_without_schedule(const Question& asked) {
    const cuda::KernelConfig config =
        api::configure(asked.mod, asked.options, cuda::KernelKind::forward, asked.target);
    auto translation = cuda::fill_template(config, api::mod_text(asked.mod, asked.options, config));
    if (!translation) return translation.error();
    return api::identify(*translation, asked.target.arch);
}

} // namespace

Result<std::vector<std::string>>
forward_schedules(std::string_view text, const CompileOptions& options, std::string_view arch) {
    return api::guarded([&]() -> Result<std::vector<std::string>> {
        auto asked = question(text, options, arch);
        if (!asked) return asked.error();
        std::vector<std::string> texts;
        for (const auto& schedule : api::schedules_of(asked->mod, asked->options, asked->target))
            texts.push_back(text_of(schedule));
        return texts;
    });
}

Result<void> keep_schedule(std::string_view text, const CompileOptions& options,
                           std::string_view arch) {
    return api::guarded([&]() -> Result<void> {
        auto asked = question(text, options, arch);
        if (!asked) return asked.error();
        auto schedule = api::asked_schedule(asked->mod, asked->options, asked->target);
        if (!schedule) return schedule.error();
        auto id = identity_without_schedule(*asked);
        if (!id) return id.error();
        const support::Log log(options.log);
        const auto store = api::Context::instance().stores.get(options.cache);
        if (store->directory().empty())
            return Error{ErrorCode::invalid_option,
                         "the cache on disk is off: there is nowhere to keep a schedule"};
        if (!*schedule) {
            store->remove(id->key, log);
            return {};
        }
        auto kernel = api::compile_kernel(asked->mod, asked->options, cuda::KernelKind::forward,
                                          asked->target, *store, {.schedule = *schedule});
        if (!kernel) return kernel.error();
        const cache::Entry entry = api::entry_of(*kernel);
        store->remove(id->key, log);
        store->publish(id->key, id->source, entry, log);
        const auto kept = store->load(id->key, id->source, log);
        if (!kept || kept->metadata != entry.metadata)
            return Error{ErrorCode::io, formatted("the cache in {} cannot be written: the schedule "
                                                  "was not kept",
                                                  store->directory())};
        return {};
    });
}

namespace api {

std::vector<cuda::ForwardSchedule>
schedules_of(const passes::Mod& mod, const CompileOptions& options, const Target& target) {
    return cuda::forward_schedules(
        request_for(mod, options, cuda::KernelKind::forward, target, {}));
}

Result<std::optional<cuda::ForwardSchedule>>
asked_schedule(const passes::Mod& mod, const CompileOptions& options, const Target& target) {
    if (options.schedule.empty()) return std::optional<cuda::ForwardSchedule>();
    const auto schedules = schedules_of(mod, options, target);
    if (schedules.empty())
        return Error{ErrorCode::invalid_option,
                     formatted("schedule '{}': the forward kernel of this program has only one for "
                               "{}; leave it empty",
                               options.schedule, target.arch)};
    const auto schedule = cuda::read_schedule(options.schedule);
    if (!schedule || std::ranges::find(schedules, *schedule) == schedules.end())
        return Error{ErrorCode::invalid_option,
                     formatted("schedule '{}': expected one that forward_schedules() lists, such "
                               "as '{}'",
                               options.schedule, text_of(schedules.front()))};
    return schedule;
}

} // namespace api
} // namespace flexc
