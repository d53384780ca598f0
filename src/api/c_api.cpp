// The C ABI: each function reads its structs, calls the C++ API, and turns what comes back into a
// status. Nothing is thrown across it.
#include "flexc/flexc_c.h"

#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "api/c_convert.h"
#include "api/frontend.h"
#include "flexc/flexc.h"
#include "flexc/version.h"

struct flexc_error {
    flexc_status status;
    std::string message;
};

struct flexc_kernel {
    flexc::Kernel kernel;
};

struct flexc_plan {
    flexc::Plan plan;
};

struct flexc_signature {
    flexc::Signature signature;
    std::vector<std::vector<const char*>> dims; // of each buffer
};

namespace {

using flexc::Error;
using flexc::Result;
using flexc::api::invalid;

// For when there is no memory to say so in.
const flexc_error kOutOfMemory{FLEXC_ERROR_LIMIT, "out of memory"};

flexc_status report(const Error& failure, flexc_error** error) {
    const flexc_status status = flexc::api::to_c(failure.code);
    if (error == nullptr) return status;
    try {
        *error = new flexc_error{status, failure.message};
        return status;
    } catch (const std::bad_alloc&) {
        *error = const_cast<flexc_error*>(&kOutOfMemory);
        return FLEXC_ERROR_LIMIT;
    }
}

template <typename Body> flexc_status call(flexc_error** error, Body&& body) noexcept {
    if (error != nullptr) *error = nullptr;
    try {
        const Result<void> result = flexc::api::guarded(body);
        return result ? FLEXC_OK : report(result.error(), error);
    } catch (const std::bad_alloc&) {
        if (error != nullptr) *error = const_cast<flexc_error*>(&kOutOfMemory);
        return FLEXC_ERROR_LIMIT;
    } catch (...) {
        if (error != nullptr) *error = new (std::nothrow) flexc_error{FLEXC_ERROR_INTERNAL, {}};
        return FLEXC_ERROR_INTERNAL;
    }
}

// The options of a compile, with the C callback behind a C++ sink. Lives as long as the call.
class CompileCall {
  public:
    Result<void> read(const char* text, const flexc_compile_options* given) {
        if (text == nullptr) return invalid("text is NULL");
        auto read = flexc::api::read_options(given);
        if (!read) return read.error();
        options_ = std::move(*read);
        if (given == nullptr) return {};
        const auto known = flexc::api::read_struct(given, "options");
        if (!known) return known.error();
        function_ = known->log;
        user_ = known->log_user;
        if (function_ != nullptr) options_.log = {&CompileCall::write, this};
        return {};
    }
    const flexc::CompileOptions& options() const { return options_; }

  private:
    static void write(void* self, flexc::LogLevel level, std::string_view text) {
        const auto& call = *static_cast<const CompileCall*>(self);
        call.function_(call.user_, static_cast<std::int32_t>(level), text.data(), text.size());
    }

    flexc::CompileOptions options_;
    flexc_log_function function_ = nullptr;
    void* user_ = nullptr;
};

// What flexc_forward and flexc_backward have in common.
struct LaunchArguments {
    std::vector<flexc::NamedTensor> buffers;
    flexc::Workspace workspace;

    Result<void> read(const flexc_kernel* kernel, const flexc_plan* plan,
                      const flexc_named_tensor* given_buffers, std::size_t buffer_count,
                      const flexc_workspace* given_workspace) {
        if (kernel == nullptr) return invalid("kernel is NULL");
        if (plan == nullptr) return invalid("plan is NULL");
        auto read_buffers = flexc::api::read_tensors(given_buffers, buffer_count);
        if (!read_buffers) return read_buffers.error();
        const auto read_space = flexc::api::read_workspace(given_workspace);
        if (!read_space) return read_space.error();
        buffers = std::move(*read_buffers);
        workspace = *read_space;
        return {};
    }
};

} // namespace

uint32_t flexc_abi_version(void) { return FLEXC_ABI_VERSION; }
const char* flexc_version(void) { return FLEXC_VERSION; }

flexc_status flexc_error_status(const flexc_error* error) {
    return error == nullptr ? FLEXC_OK : error->status;
}
const char* flexc_error_message(const flexc_error* error) {
    return error == nullptr ? "" : error->message.c_str();
}
void flexc_error_free(flexc_error* error) {
    if (error != &kOutOfMemory) delete error;
}

flexc_status flexc_compile(const char* text, const flexc_compile_options* options,
                           flexc_kernel** kernel, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (kernel == nullptr) return invalid("kernel is NULL");
        *kernel = nullptr;
        CompileCall compile;
        if (auto read = compile.read(text, options); !read) return read;
        auto compiled = flexc::compile(text, compile.options());
        if (!compiled) return compiled.error();
        *kernel = new flexc_kernel{std::move(*compiled)};
        return {};
    });
}

void flexc_kernel_free(flexc_kernel* kernel) { delete kernel; }

flexc_status flexc_check(const char* text, const flexc_compile_options* options,
                         flexc_signature** signature, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (signature == nullptr) return invalid("signature is NULL");
        *signature = nullptr;
        CompileCall compile;
        if (auto read = compile.read(text, options); !read) return read;
        auto checked = flexc::check(text, compile.options());
        if (!checked) return checked.error();
        auto result = std::make_unique<flexc_signature>();
        result->signature = std::move(*checked);
        for (const auto& buffer : result->signature.buffers) {
            auto& dims = result->dims.emplace_back();
            for (const auto& dim : buffer.dims)
                dims.push_back(dim.c_str());
        }
        *signature = result.release();
        return {};
    });
}

void flexc_signature_free(flexc_signature* signature) { delete signature; }

flexc_status flexc_signature_get(const flexc_signature* signature, flexc_signature_info* info,
                                 flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (signature == nullptr) return invalid("signature is NULL");
        const flexc::Signature& from = signature->signature;
        flexc_signature_info value{};
        value.buffer_count = from.buffers.size();
        value.param_count = from.params.size();
        value.size_count = from.sizes.size();
        value.warning_count = from.warnings.size();
        value.score_depends_on = from.score_depends_on.c_str();
        value.mask_depends_on = from.mask_depends_on.c_str();
        return flexc::api::fill_struct(info, value, "info");
    });
}

flexc_status flexc_signature_buffer(const flexc_signature* signature, size_t index,
                                    flexc_buffer_info* info, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (signature == nullptr) return invalid("signature is NULL");
        if (index >= signature->signature.buffers.size()) return invalid("no such buffer");
        const flexc::BufferInfo& from = signature->signature.buffers[index];
        flexc_buffer_info value{};
        value.dtype = flexc::api::to_c(from.dtype);
        value.name = from.name.c_str();
        value.dims = signature->dims[index].data();
        value.dim_count = from.dims.size();
        value.grad = from.grad ? 1 : 0;
        return flexc::api::fill_struct(info, value, "info");
    });
}

flexc_status flexc_signature_param(const flexc_signature* signature, size_t index,
                                   flexc_param_info* info, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (signature == nullptr) return invalid("signature is NULL");
        if (index >= signature->signature.params.size()) return invalid("no such param");
        const flexc::ParamInfo& from = signature->signature.params[index];
        flexc_param_info value{};
        value.has_default = from.has_default ? 1 : 0;
        value.name = from.name.c_str();
        value.type = from.type.c_str();
        value.default_value = from.default_value;
        return flexc::api::fill_struct(info, value, "info");
    });
}

const char* flexc_signature_size(const flexc_signature* signature, size_t index) {
    if (signature == nullptr || index >= signature->signature.sizes.size()) return nullptr;
    return signature->signature.sizes[index].c_str();
}

const char* flexc_signature_warning(const flexc_signature* signature, size_t index) {
    if (signature == nullptr || index >= signature->signature.warnings.size()) return nullptr;
    return signature->signature.warnings[index].c_str();
}

flexc_status flexc_kernel_get(const flexc_kernel* kernel, flexc_kernel_info* info,
                              flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (kernel == nullptr) return invalid("kernel is NULL");
        flexc_kernel_info value{};
        value.device = flexc::api::to_c(kernel->kernel.device().kind);
        value.device_index = kernel->kernel.device().index;
        value.from_cache = kernel->kernel.from_cache() ? 1 : 0;
        value.compile_ms = kernel->kernel.compile_ms();
        value.function_count = kernel->kernel.kernels().size();
        return flexc::api::fill_struct(info, value, "info");
    });
}

flexc_status flexc_kernel_function(const flexc_kernel* kernel, size_t index,
                                   flexc_function_info* info, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (kernel == nullptr) return invalid("kernel is NULL");
        if (index >= kernel->kernel.kernels().size()) return invalid("no such function");
        const flexc::KernelInfo& from = kernel->kernel.kernels()[index];
        flexc_function_info value{};
        value.registers = from.registers;
        value.spill_bytes = from.spill_bytes;
        value.shared_bytes = from.shared_bytes;
        value.compile_ms = from.compile_ms;
        value.name = from.name.c_str();
        value.reason = from.reason.c_str();
        value.schedule = from.schedule.c_str();
        return flexc::api::fill_struct(info, value, "info");
    });
}

flexc_status flexc_kernel_out_of_range(const flexc_kernel* kernel, int32_t* happened,
                                       flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (kernel == nullptr) return invalid("kernel is NULL");
        if (happened == nullptr) return invalid("happened is NULL");
        const auto result = kernel->kernel.out_of_range();
        if (!result) return result.error();
        *happened = *result ? 1 : 0;
        return {};
    });
}

flexc_status flexc_plan_create(const flexc_kernel* kernel, const flexc_sizes* sizes,
                               const flexc_named_tensor* buffers, size_t buffer_count, void* stream,
                               const flexc_plan_options* options, flexc_plan** plan,
                               flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (plan == nullptr) return invalid("plan is NULL");
        *plan = nullptr;
        if (kernel == nullptr) return invalid("kernel is NULL");
        const auto read_sizes = flexc::api::read_sizes(sizes);
        if (!read_sizes) return read_sizes.error();
        const auto read_buffers = flexc::api::read_tensors(buffers, buffer_count);
        if (!read_buffers) return read_buffers.error();
        const auto read_options = flexc::api::read_plan_options(options);
        if (!read_options) return read_options.error();
        auto planned =
            kernel->kernel.plan(*read_sizes, *read_buffers, {stream}, read_options->options);
        if (!planned) return planned.error();
        *plan = new flexc_plan{std::move(*planned)};
        return {};
    });
}

flexc_status flexc_plan_update(const flexc_kernel* kernel, const flexc_plan* plan,
                               const flexc_named_tensor* buffers, size_t buffer_count, void* stream,
                               flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        LaunchArguments arguments;
        if (auto read = arguments.read(kernel, plan, buffers, buffer_count, nullptr); !read)
            return read;
        return kernel->kernel.update(plan->plan, arguments.buffers, {stream});
    });
}

void flexc_plan_free(flexc_plan* plan) { delete plan; }

size_t flexc_plan_workspace_bytes(const flexc_plan* plan) {
    return plan == nullptr ? 0 : plan->plan.workspace_bytes();
}

size_t flexc_plan_map_bytes(const flexc_plan* plan) {
    return plan == nullptr ? 0 : plan->plan.map_bytes();
}

flexc_status flexc_forward(const flexc_kernel* kernel, const flexc_plan* plan,
                           const flexc_forward_tensors* tensors, const flexc_named_tensor* buffers,
                           size_t buffer_count, const flexc_workspace* workspace, void* stream,
                           flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        LaunchArguments launch;
        if (auto read = launch.read(kernel, plan, buffers, buffer_count, workspace); !read)
            return read;
        const auto read_tensors = flexc::api::read_forward(tensors);
        if (!read_tensors) return read_tensors.error();
        return kernel->kernel.forward(plan->plan, *read_tensors, launch.buffers, launch.workspace,
                                      {stream});
    });
}

flexc_status flexc_backward(const flexc_kernel* kernel, const flexc_plan* plan,
                            const flexc_backward_tensors* tensors,
                            const flexc_named_tensor* buffers, size_t buffer_count,
                            const flexc_named_tensor* gradients, size_t gradient_count,
                            const flexc_workspace* workspace, void* stream, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        LaunchArguments launch;
        if (auto read = launch.read(kernel, plan, buffers, buffer_count, workspace); !read)
            return read;
        const auto read_tensors = flexc::api::read_backward(tensors);
        if (!read_tensors) return read_tensors.error();
        const auto read_gradients = flexc::api::read_tensors(gradients, gradient_count);
        if (!read_gradients) return read_gradients.error();
        return kernel->kernel.backward(plan->plan, *read_tensors, launch.buffers, *read_gradients,
                                       launch.workspace, {stream});
    });
}
