#include "jax.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/flexc_c.h"
#include "xla.h"

namespace flexc::python {

namespace {

constexpr std::size_t kMostPlans = 1024;

// A compiled program with its plan for one call's sizes. A computation states all that it needs, so
// that one that was kept on disk finds it in another process too.
struct Prepared {
    flexc_kernel* kernel = nullptr;
    flexc_plan* plan = nullptr;
    std::vector<std::string> buffers;   // names, in the order of the program
    std::vector<std::string> gradients; // of them those with `grad`
    ~Prepared() {
        flexc_plan_free(plan);
        flexc_kernel_free(kernel);
    }
};

std::int32_t dtype_of(std::int32_t xla) {
    constexpr std::pair<std::int32_t, std::int32_t> kTypes[] = {
        {1, FLEXC_BOOL}, {2, FLEXC_I8},   {3, FLEXC_I16},  {4, FLEXC_I32},  {5, FLEXC_I64},
        {6, FLEXC_U8},   {10, FLEXC_F16}, {11, FLEXC_F32}, {12, FLEXC_F64}, {16, FLEXC_BF16}};
    for (const auto& [theirs, ours] : kTypes)
        if (theirs == xla) return ours;
    return FLEXC_DEFAULT_DTYPE;
}

class HandlerCall {
  public:
    HandlerCall(const xla::Call& call, bool is_backward) : call_(call), is_backward_(is_backward) {}

    // "" or what is wrong.
    std::string run() {
        if (!read_attributes() || !read(call_.arguments, arguments_) ||
            !read(call_.results, results_))
            return problem_;
        const std::size_t own = is_backward_ ? 7 : 3;
        if (arguments_.size() < own || results_.size() < (is_backward_ ? 3u : 2u) ||
            arguments_[0].rank != 4 || arguments_[1].rank != 4 || arguments_[2].rank != 4)
            return "q, k and v have 4 dims";
        const std::shared_ptr<Prepared> prepared = prepare();
        if (prepared == nullptr) return problem_;
        std::vector<flexc_named_tensor> buffers, gradients;
        if (arguments_.size() != own + prepared->buffers.size())
            return "the program has another number of buffers";
        for (std::size_t i = 0; i < prepared->buffers.size(); ++i)
            buffers.push_back({sizeof(flexc_named_tensor), 0, prepared->buffers[i].c_str(),
                               &arguments_[own + i]});
        if (is_backward_ && results_.size() != 3 + prepared->gradients.size())
            return "the program has another number of grad buffers";
        for (std::size_t i = 0; is_backward_ && i < prepared->gradients.size(); ++i)
            gradients.push_back(
                {sizeof(flexc_named_tensor), 0, prepared->gradients[i].c_str(), &results_[3 + i]});
        const std::size_t bytes = flexc_plan_workspace_bytes(prepared->plan);
        const std::unique_ptr<void, decltype(&std::free)> memory(
            bytes == 0 ? nullptr : std::aligned_alloc(256, (bytes + 255) / 256 * 256), &std::free);
        if (bytes != 0 && memory == nullptr) return "out of memory";
        const flexc_workspace workspace = {sizeof workspace, 0, memory.get(), bytes};
        const flexc_tensor* a = arguments_.data();
        const flexc_tensor* r = results_.data();
        flexc_error* error = nullptr;
        if (is_backward_) {
            const flexc_backward_tensors all = {sizeof all, 0,     a,     a + 1, a + 2, a + 3,
                                                a + 4,      a + 5, a + 6, r,     r + 1, r + 2};
            flexc_backward(prepared->kernel, prepared->plan, &all, buffers.data(), buffers.size(),
                           gradients.data(), gradients.size(), &workspace, nullptr, &error);
        } else {
            const flexc_forward_tensors all = {sizeof all, 0, a, a + 1, a + 2, r, r + 1};
            flexc_forward(prepared->kernel, prepared->plan, &all, buffers.data(), buffers.size(),
                          &workspace, nullptr, &error);
        }
        return text_of(error);
    }

  private:
    static std::string text_of(flexc_error* error) {
        std::string text = error == nullptr ? "" : flexc_error_message(error);
        flexc_error_free(error);
        return text;
    }

    bool read_attributes() {
        for (std::int64_t i = 0; i < call_.attributes.count; ++i) {
            const xla::Text& name = *call_.attributes.names[i];
            const std::string_view word(name.data, name.size);
            const void* value = call_.attributes.values[i];
            if (call_.attributes.types[i] == xla::kText) {
                const auto& text = *static_cast<const xla::Text*>(value);
                if (word == "program") program_.assign(text.data, text.size);
                if (word == "params") params_.assign(text.data, text.size);
            } else if (call_.attributes.types[i] == xla::kScalar) {
                const auto& scalar = *static_cast<const xla::Scalar*>(value);
                if (word == "scale" && scalar.dtype == xla::kF64)
                    scale_ = *static_cast<const double*>(scalar.value);
            }
        }
        if (program_.empty()) problem_ = "the call has no program";
        return problem_.empty();
    }

    bool read(const xla::Values& values, std::vector<flexc_tensor>& tensors) {
        for (std::int64_t i = 0; i < values.count; ++i) {
            const auto& buffer = *static_cast<const xla::Buffer*>(values.values[i]);
            flexc_tensor tensor = {};
            tensor.struct_size = sizeof tensor;
            tensor.dtype = dtype_of(buffer.dtype);
            tensor.data = buffer.data;
            tensor.rank = static_cast<std::int32_t>(buffer.rank);
            if (tensor.dtype == FLEXC_DEFAULT_DTYPE || buffer.rank > FLEXC_MAX_DIMS) {
                problem_ = "flexc has no arrays of this element type or rank";
                return false;
            }
            for (std::int64_t d = 0; d < buffer.rank; ++d)
                tensor.shape[d] = buffer.dims[d];
            tensors.push_back(tensor);
        }
        return true;
    }

    std::shared_ptr<Prepared> prepare() {
        static auto& mutex = *new std::mutex;
        static auto& known = *new std::map<std::string, std::shared_ptr<Prepared>>;
        std::string key = program_ + '\0' + params_ + '\0' + std::to_string(scale_) +
                          (is_backward_ ? "b" : "f") + std::to_string(arguments_[0].dtype);
        for (std::size_t i = 0; i < 3; ++i)
            for (std::int32_t d = 0; d < 4; ++d)
                key += ',' + std::to_string(arguments_[i].shape[d]);
        {
            const std::lock_guard lock(mutex);
            if (const auto found = known.find(key); found != known.end()) return found->second;
        }
        std::shared_ptr<Prepared> made = make();
        if (made == nullptr) return nullptr;
        const std::lock_guard lock(mutex);
        if (known.size() >= kMostPlans) known.clear();
        return known.emplace(std::move(key), std::move(made)).first->second;
    }

    std::shared_ptr<Prepared> make() {
        auto made = std::make_shared<Prepared>();
        flexc_error* error = nullptr;
        flexc_compile_options options = {};
        options.struct_size = sizeof options;
        options.dtype = arguments_[0].dtype;
        options.head_dim = static_cast<std::int32_t>(arguments_[0].shape[3]);
        options.head_dim_v = static_cast<std::int32_t>(arguments_[2].shape[3]);
        options.device = FLEXC_DEVICE_CPU;
        options.forward_only = is_backward_ ? 0 : 1;
        flexc_signature* signature = nullptr;
        flexc_check(program_.c_str(), &options, &signature, &error);
        flexc_buffer_info buffer = {};
        buffer.struct_size = sizeof buffer;
        for (std::size_t i = 0;
             error == nullptr && flexc_signature_buffer(signature, i, &buffer, nullptr) == FLEXC_OK;
             ++i) {
            made->buffers.emplace_back(buffer.name);
            if (buffer.grad != 0) made->gradients.emplace_back(buffer.name);
        }
        flexc_signature_free(signature);
        if (error == nullptr) flexc_compile(program_.c_str(), &options, &made->kernel, &error);
        if (error == nullptr) plan(*made, error);
        if (error == nullptr) return made;
        problem_ = text_of(error);
        return nullptr;
    }

    void plan(Prepared& made, flexc_error*& error) {
        const auto& q = arguments_[0].shape;
        const auto& k = arguments_[1].shape;
        const flexc_sizes sizes = {sizeof sizes, 0, q[0], q[1], k[1], q[2], k[2]};
        flexc_plan_options options = {};
        options.struct_size = sizeof options;
        options.has_scale = std::isnan(scale_) ? 0 : 1;
        options.scale = std::isnan(scale_) ? 0 : scale_;
        std::deque<std::string> names;
        std::vector<flexc_param_value> values;
        std::string_view rest = params_; // "cap=20.0 window=3"
        while (!rest.empty()) {
            const std::string_view one = rest.substr(0, rest.find(' '));
            rest.remove_prefix(std::min(rest.size(), one.size() + 1));
            const auto middle = one.find('=');
            if (middle == std::string_view::npos) continue;
            names.emplace_back(one.substr(0, middle));
            values.push_back({sizeof(flexc_param_value), 0, names.back().c_str(),
                              std::strtod(std::string(one.substr(middle + 1)).c_str(), nullptr)});
        }
        options.params = values.data();
        options.param_count = values.size();
        flexc_plan_create(made.kernel, &sizes, nullptr, 0, nullptr, &options, &made.plan, &error);
    }

    const xla::Call& call_;
    bool is_backward_;
    std::string program_, params_, problem_;
    double scale_ = std::nan("");
    std::vector<flexc_tensor> arguments_, results_;
};

xla::Error* handle(xla::Call* call, bool is_backward) noexcept {
    for (xla::Extension* extension = call->header.extensions; extension != nullptr;
         extension = extension->next)
        if (extension->type == 1) {
            auto& metadata = *reinterpret_cast<xla::MetadataExtension*>(extension)->metadata;
            metadata.version.major = 0;
            metadata.version.minor = call->api->version.minor;
            return nullptr;
        }
    if (call->stage != xla::kExecute) return nullptr;
    std::string problem;
    try {
        problem = HandlerCall(*call, is_backward).run();
    } catch (...) {
        problem = "out of memory";
    }
    if (problem.empty()) return nullptr;
    xla::ErrorCreate create = {{sizeof create, nullptr}, problem.c_str(), xla::kInternal};
    return call->api->create_error(&create);
}

xla::Error* forward_handler(xla::Call* call) noexcept { return handle(call, false); }
xla::Error* backward_handler(xla::Call* call) noexcept { return handle(call, true); }

Object capsule(xla::Error* (*handler)(xla::Call*) noexcept) {
    return Object::take(
        PyCapsule_New(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET", nullptr));
}

} // namespace

PyObject* jax_handlers(PyObject*, PyObject*) {
    const Object forward = capsule(forward_handler), backward = capsule(backward_handler);
    return forward && backward ? PyTuple_Pack(2, forward.get(), backward.get()) : nullptr;
}

} // namespace flexc::python
