// Schedules of the forward kernel: lists them, and stores the one that the cache keeps for a
// program.
#include "api/backend.h"
#include "api/context.h"
#include "api/cuda_kernels.h"
#include "api/frontend.h"
#include "cuda/driver.h"
#include "support/text.h"

namespace flexc {

namespace {

using Program = std::unique_ptr<const plan::TargetProgram>;

// Lowers the program for its forward alone; the caller sets options.schedule.
Result<Program> program_of(std::string_view text, const CompileOptions& given,
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
        name = plan::arch_name(device->arch);
    }
    auto target = plan::target_of(name);
    if (!target) return target.error();
    auto mod = api::lower_text(text, *options);
    if (!mod) return mod.error();
    options->backward = false;
    return Program(std::make_unique<plan::TargetProgram>(std::move(*mod), std::move(*options),
                                                         std::move(*target)));
}

CompileOptions without_schedule(CompileOptions options) {
    options.schedule.clear();
    return options;
}

} // namespace

Result<std::vector<std::string>>
forward_schedules(std::string_view text, const CompileOptions& options, std::string_view arch) {
    return guarded([&]() -> Result<std::vector<std::string>> {
        auto program = program_of(text, without_schedule(options), arch);
        if (!program) return program.error();
        auto plan = api::plan_of(**program);
        if (!plan) return plan.error();
        std::vector<std::string> texts;
        for (const auto& schedule : plan::forward_schedules(plan->forward.front().request))
            texts.push_back(text_of(schedule));
        return texts;
    });
}

Result<void> keep_schedule(std::string_view text, const CompileOptions& options,
                           std::string_view arch) {
    return guarded([&]() -> Result<void> {
        auto usual = program_of(text, without_schedule(options), arch);
        if (!usual) return usual.error();
        auto usual_plan = api::plan_of(**usual);
        if (!usual_plan) return usual_plan.error();
        // The kernel that compile() looks for if no schedule is given.
        const plan::Variant& first = usual_plan->forward.front();
        const plan::KernelConfig& config = first.candidates.front();
        auto translation =
            cuda::fill_template(config, api::mod_text(plan::program_of(first, **usual), config));
        if (!translation) return translation.error();
        const api::Identity id = api::identify(*translation, (*usual)->target().arch);

        auto program = program_of(text, options, arch);
        if (!program) return program.error();
        auto plan = api::plan_of(**program);
        if (!plan) return plan.error();
        const support::Log log(options.log);
        const auto store = api::Context::instance().stores.get(options.cache);
        if (store->directory().empty())
            return Error{ErrorCode::invalid_option,
                         "the cache on disk is off: there is nowhere to keep a schedule"};
        if (options.schedule.empty()) {
            store->remove(id.key, log);
            return {};
        }
        const plan::Variant& variant = plan->forward.front();
        auto kernel =
            api::compile_kernel(plan::program_of(variant, **program), variant.candidates, &variant,
                                *store, api::Context::instance().watch(options));
        if (!kernel) return kernel.error();
        const cache::Entry entry = api::entry_of(*kernel);
        store->remove(id.key, log);
        store->publish(id.key, entry, log);
        const auto kept = store->load(id.key, log);
        if (!kept || kept->metadata != entry.metadata)
            return Error{ErrorCode::io, formatted("the cache in {} cannot be written: the schedule "
                                                  "was not kept",
                                                  store->directory())};
        return {};
    });
}

} // namespace flexc
