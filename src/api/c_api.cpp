// The C ABI for running kernels: errors, compiles, signatures, plans, launches.
#include "flexc/flexc_c.h"

#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "api/c_call.h"
#include "api/c_convert.h"
#include "flexc/flexc.h"
#include "flexc/version.h"

struct flexc_kernel {
    flexc::Kernel kernel;
};

struct flexc_plan {
    flexc::Plan plan;
};

struct flexc_cancel_token {
    flexc::CancelToken token;
};

struct flexc_signature {
    flexc::Signature signature;
    std::vector<std::vector<const char*>> dims; // of each buffer
};

namespace {

using flexc::Result;
using flexc::api::call;
using flexc::api::CompileCall;
using flexc::api::fill_struct;
using flexc::api::invalid;
using flexc::api::text_at;

// Returned when there is no memory for an error object.
const flexc_error kOutOfMemory{FLEXC_ERROR_LIMIT, "out of memory"};

// Arguments that flexc_forward and flexc_backward share.
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

// Reads the length tensors that come with the tensors.
template <typename Tensors>
Result<std::optional<flexc::LengthTensors>> lengths_of(const Tensors* tensors) {
    const auto read = flexc::api::read_struct(tensors, "tensors");
    if (!read) return read.error();
    std::optional<flexc::LengthTensors> lengths;
    if (read->lengths == nullptr) return lengths;
    const auto given = flexc::api::read_length_tensors(read->lengths);
    if (!given) return given.error();
    lengths = *given;
    return lengths;
}

bool is_dtype(std::int32_t value) { return value >= FLEXC_F64 && value <= FLEXC_BOOL; }

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

const char* flexc_status_name(flexc_status status) {
    if (status == FLEXC_OK) return "ok";
    if (status < FLEXC_ERROR_SYNTAX || status > FLEXC_ERROR_CANCELLED) return nullptr;
    return name(static_cast<flexc::ErrorCode>(status - 1)).data();
}
const char* flexc_dtype_name(int32_t dtype) {
    return is_dtype(dtype) ? name(static_cast<flexc::DType>(dtype - 1)).data() : nullptr;
}
size_t flexc_dtype_size(int32_t dtype) {
    return is_dtype(dtype) ? size_of(static_cast<flexc::DType>(dtype - 1)) : 0;
}
int32_t flexc_dtype_of(const char* name) {
    flexc::DType dtype{};
    const bool is_known = name != nullptr && flexc::parse_dtype(name, dtype);
    return is_known ? flexc::api::to_c(dtype) : FLEXC_DEFAULT_DTYPE;
}

namespace flexc::api {

CancelToken token_of(const flexc_cancel_token* token) { return token->token; }

flexc_status report_out_of_memory(flexc_error** error) noexcept {
    if (error != nullptr) *error = const_cast<flexc_error*>(&kOutOfMemory);
    return FLEXC_ERROR_LIMIT;
}

flexc_status report(const Error& failure, flexc_error** error) {
    const flexc_status status = to_c(failure.code);
    if (error == nullptr) return status;
    try {
        *error = new flexc_error{status, failure.message};
        return status;
    } catch (const std::bad_alloc&) {
        return report_out_of_memory(error);
    }
}

} // namespace flexc::api

flexc_cancel_token* flexc_cancel_token_create(void) {
    auto token = flexc::CancelToken::create();
    return token ? new (std::nothrow) flexc_cancel_token{std::move(token)} : nullptr;
}
void flexc_cancel(flexc_cancel_token* token) {
    if (token != nullptr) token->token.cancel();
}
int32_t flexc_is_cancelled(const flexc_cancel_token* token) {
    return token != nullptr && token->token.is_cancelled() ? 1 : 0;
}
void flexc_cancel_token_free(flexc_cancel_token* token) { delete token; }

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

flexc_status flexc_supports(const char* text, const flexc_compile_options* options,
                            const char* arch, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        CompileCall compile;
        if (auto read = compile.read(text, options); !read) return read;
        return flexc::supports(text, compile.options(), flexc::api::text_or(arch, ""));
    });
}

flexc_status flexc_default_device(int32_t* device, int32_t* device_index, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (device == nullptr) return invalid("device is NULL");
        if (device_index == nullptr) return invalid("device_index is NULL");
        const flexc::Device found = flexc::default_device();
        *device = flexc::api::to_c(found.kind);
        *device_index = found.index;
        return {};
    });
}

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
        for (const auto& buffer : result->signature.buffers)
            result->dims.push_back(flexc::api::pointers_to(buffer.dims));
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
        value.sink_depends_on = from.sink_depends_on.c_str();
        value.mask_size_count = from.mask_sizes.size();
        return fill_struct(info, value, "info");
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
        return fill_struct(info, value, "info");
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
        return fill_struct(info, value, "info");
    });
}

const char* flexc_signature_size(const flexc_signature* signature, size_t index) {
    return signature == nullptr ? nullptr : text_at(signature->signature.sizes, index);
}
const char* flexc_signature_mask_size(const flexc_signature* signature, size_t index) {
    return signature == nullptr ? nullptr : text_at(signature->signature.mask_sizes, index);
}
const char* flexc_signature_warning(const flexc_signature* signature, size_t index) {
    return signature == nullptr ? nullptr : text_at(signature->signature.warnings, index);
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
        const flexc::CompileOptions& options = kernel->kernel.options();
        value.dtype = flexc::api::to_c(options.dtype);
        value.head_dim = options.head_dim;
        value.head_dim_v = options.head_dim_v;
        value.forward_only = options.backward ? 0 : 1;
        return fill_struct(info, value, "info");
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
        return fill_struct(info, value, "info");
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

flexc_status flexc_plan_update_lengths(const flexc_kernel* kernel, const flexc_plan* plan,
                                       const flexc_lengths* lengths, void* stream,
                                       flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        LaunchArguments arguments;
        if (auto read = arguments.read(kernel, plan, nullptr, 0, nullptr); !read) return read;
        const auto given = flexc::api::read_lengths(lengths);
        if (!given) return given.error();
        return kernel->kernel.update(plan->plan, *given, {stream});
    });
}

flexc_status flexc_plan_update_length_tensors(const flexc_kernel* kernel, const flexc_plan* plan,
                                              const flexc_length_tensors* lengths, void* stream,
                                              flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        LaunchArguments arguments;
        if (auto read = arguments.read(kernel, plan, nullptr, 0, nullptr); !read) return read;
        const auto given = flexc::api::read_length_tensors(lengths);
        if (!given) return given.error();
        return kernel->kernel.update(plan->plan, *given, {stream});
    });
}

flexc_status flexc_merge_states(const flexc_partial_result* parts, size_t part_count,
                                const flexc_tensor* o, const flexc_tensor* lse,
                                flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        std::vector<flexc::PartialResult> read;
        for (std::size_t i = 0; i < part_count; ++i) {
            const auto part = flexc::api::read_element(parts, i, "parts");
            if (!part) return part.error();
            const auto part_o = flexc::api::read_tensor(part->o, "o");
            if (!part_o) return part_o.error();
            const auto part_lse = flexc::api::read_tensor(part->lse, "lse");
            if (!part_lse) return part_lse.error();
            read.push_back({*part_o, *part_lse});
        }
        const auto to = flexc::api::read_tensor(o, "o");
        if (!to) return to.error();
        flexc::TensorView to_lse;
        if (lse != nullptr) {
            const auto given = flexc::api::read_tensor(lse, "lse");
            if (!given) return given.error();
            to_lse = *given;
        }
        return flexc::merge_states(read, *to, to_lse);
    });
}

void flexc_plan_free(flexc_plan* plan) { delete plan; }

size_t flexc_plan_workspace_bytes(const flexc_plan* plan) {
    return plan == nullptr ? 0 : plan->plan.workspace_bytes();
}

size_t flexc_plan_block_mask_bytes(const flexc_plan* plan) {
    return plan == nullptr ? 0 : plan->plan.block_mask_bytes();
}

flexc_status flexc_plan_sizes(const flexc_plan* plan, flexc_sizes* sizes, flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        if (plan == nullptr) return invalid("plan is NULL");
        const flexc::Sizes& from = plan->plan.sizes();
        flexc_sizes value{};
        value.batch = from.batch;
        value.heads = from.heads;
        value.kv_heads = from.kv_heads;
        value.q_len = from.q_len;
        value.kv_len = from.kv_len;
        return fill_struct(sizes, value, "sizes");
    });
}

flexc_status flexc_forward(const flexc_kernel* kernel, const flexc_plan* plan,
                           const flexc_forward_tensors* tensors, const flexc_named_tensor* buffers,
                           size_t buffer_count, const flexc_workspace* workspace, void* stream,
                           flexc_error** error) {
    return call(error, [&]() -> Result<void> {
        LaunchArguments launch;
        if (auto read = launch.read(kernel, plan, buffers, buffer_count, workspace); !read)
            return read;
        auto read_tensors = flexc::api::read_forward(tensors);
        if (!read_tensors) return read_tensors.error();
        auto lengths = lengths_of(tensors);
        if (!lengths) return lengths.error();
        if (*lengths) read_tensors->lengths = &**lengths;
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
        auto read_tensors = flexc::api::read_backward(tensors);
        if (!read_tensors) return read_tensors.error();
        auto lengths = lengths_of(tensors);
        if (!lengths) return lengths.error();
        if (*lengths) read_tensors->lengths = &**lengths;
        const auto read_gradients = flexc::api::read_tensors(gradients, gradient_count);
        if (!read_gradients) return read_gradients.error();
        return kernel->kernel.backward(plan->plan, *read_tensors, launch.buffers, *read_gradients,
                                       launch.workspace, {stream});
    });
}
