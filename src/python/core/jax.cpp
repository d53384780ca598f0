#include "jax.h"

#include <algorithm>
#include <bit>
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
#include "lengths.h"
#include "place.h"
#include "xla.h"

namespace flexc::python {

namespace {

constexpr std::size_t kMostPlans = 1024;
constexpr std::uintptr_t kTmaAlignment = 16; // of tensors, else other kernels take them

// A compiled program with its plan for one call's sizes. A computation states all that it needs, so
// that one that was kept on disk finds it in another process too.
struct Prepared {
    flexc_kernel* kernel = nullptr;
    flexc_plan* plan = nullptr;
    std::mutex mutex; // of a plan whose lengths are on a GPU: each call updates them
    std::vector<std::string> buffers;   // names, in the order of the program
    std::vector<std::string> gradients; // of them those with `grad`
    ~Prepared() {
        flexc_plan_free(plan);
        flexc_kernel_free(kernel);
    }
};

// Prepared calls, by everything that they depend on.
class PreparedCalls {
  public:
    std::shared_ptr<Prepared> find(const std::string& key) {
        const std::lock_guard lock(mutex_);
        const auto found = known_.find(key);
        return found == known_.end() ? nullptr : found->second;
    }
    std::shared_ptr<Prepared> keep(std::string key, std::shared_ptr<Prepared> made) {
        const std::lock_guard lock(mutex_);
        if (known_.size() >= kMostPlans) known_.clear();
        return known_.emplace(std::move(key), std::move(made)).first->second;
    }

  private:
    std::mutex mutex_;
    std::map<std::string, std::shared_ptr<Prepared>> known_;
};

std::int32_t dtype_of(std::int32_t xla) {
    constexpr std::pair<std::int32_t, std::int32_t> kTypes[] = {
        {1, FLEXC_BOOL}, {2, FLEXC_I8},   {3, FLEXC_I16},  {4, FLEXC_I32},  {5, FLEXC_I64},
        {6, FLEXC_U8},   {10, FLEXC_F16}, {11, FLEXC_F32}, {12, FLEXC_F64}, {16, FLEXC_BF16}};
    for (const auto& [theirs, ours] : kTypes)
        if (theirs == xla) return ours;
    return FLEXC_DEFAULT_DTYPE;
}

// Attributes of a call besides its arrays, as texts. `layout` and `params` are like "q_len=64
// kv_len=512"; `lengths` names the arrays that come before the buffers.
struct Attributes {
    std::string program, mask_mod, sink, params, layout, lengths;
    double scale = std::nan("");
    bool recorded = false; // a backward comes after this forward

    void read(const xla::Attributes& given) {
        const std::pair<std::string_view, std::string*> texts[] = {
            {"program", &program}, {"mask_mod", &mask_mod}, {"sink", &sink},
            {"params", &params},   {"layout", &layout},     {"lengths", &lengths}};
        for (std::int64_t i = 0; i < given.count; ++i) {
            const std::string_view name(given.names[i]->data, given.names[i]->size);
            if (given.types[i] == xla::kText) {
                const auto& text = *static_cast<const xla::Text*>(given.values[i]);
                for (const auto& [known, into] : texts)
                    if (known == name) into->assign(text.data, text.size);
            } else if (given.types[i] == xla::kScalar) {
                const auto& scalar = *static_cast<const xla::Scalar*>(given.values[i]);
                if (scalar.dtype == xla::kF64 && name == "scale")
                    scale = *static_cast<const double*>(scalar.value);
                if (scalar.dtype == xla::kPred && name == "recorded")
                    recorded = *static_cast<const bool*>(scalar.value);
            }
        }
    }
};

std::vector<std::string_view> words_of(std::string_view text) {
    std::vector<std::string_view> words;
    while (!text.empty()) {
        const std::string_view word = text.substr(0, text.find(' '));
        text.remove_prefix(std::min(text.size(), word.size() + 1));
        words.push_back(word);
    }
    return words;
}

// (name, number) of "name=number".
std::pair<std::string, double> named_number(std::string_view word) {
    const auto middle = std::min(word.find('='), word.size() - 1);
    return {std::string(word.substr(0, middle)),
            std::strtod(std::string(word.substr(middle + 1)).c_str(), nullptr)};
}

// The layouts of queries and keys, and the most that one request may have; below 0: as the lengths
// say.
struct LayoutOptions {
    std::int32_t queries = FLEXC_LAYOUT_DENSE, keys = FLEXC_LAYOUT_DENSE, query_start = 0;
    std::int64_t q_len = -1, kv_len = -1;

    explicit LayoutOptions(std::string_view text) {
        for (const std::string_view word : words_of(text)) {
            const auto [name, number] = named_number(word);
            if (name == "query_layout") queries = static_cast<std::int32_t>(number);
            if (name == "key_layout") keys = static_cast<std::int32_t>(number);
            if (name == "query_start") query_start = static_cast<std::int32_t>(number);
            if (name == "q_len") q_len = static_cast<std::int64_t>(number);
            if (name == "kv_len") kv_len = static_cast<std::int64_t>(number);
        }
    }
    bool is_dense() const { return queries == FLEXC_LAYOUT_DENSE && keys == FLEXC_LAYOUT_DENSE; }
    std::int32_t query_rank() const { return queries == FLEXC_LAYOUT_DENSE ? 4 : 3; }
};

std::size_t elements_of(const flexc_tensor& tensor) {
    std::size_t count = 1;
    for (std::int32_t i = 0; i < tensor.rank; ++i)
        count *= static_cast<std::size_t>(tensor.shape[i]);
    return count;
}

// The part of a tensor at these indices of the leading dims that vmap added; a dim of one element
// serves all indices.
flexc_tensor part_of(const flexc_tensor& tensor, const std::vector<std::int64_t>& at) {
    flexc_tensor part = tensor;
    std::int64_t index = 0;
    for (std::size_t i = 0; i < at.size(); ++i)
        index = index * tensor.shape[i] + (tensor.shape[i] == 1 ? 0 : at[i]);
    part.rank -= static_cast<std::int32_t>(at.size());
    std::copy_n(tensor.shape + at.size(), part.rank, part.shape);
    part.data = static_cast<char*>(tensor.data) +
                static_cast<std::size_t>(index) * elements_of(part) * flexc_dtype_size(part.dtype);
    return part;
}

std::string text_of(flexc_error* error) {
    std::string text = error == nullptr ? "" : flexc_error_message(error);
    flexc_error_free(error);
    return text;
}

using TensorList = std::vector<flexc_tensor>;

// One attention of a call; under vmap a call has several.
class Attention {
  public:
    Attention(const Place& place, const Attributes& attributes, const LayoutOptions& layout,
              bool is_backward, TensorList arguments, TensorList results)
        : place_(place), attributes_(attributes), layout_(layout), is_backward_(is_backward),
          arguments_(std::move(arguments)), results_(std::move(results)), lengths_(nullptr) {}

    // "" or what is wrong.
    std::string run() {
        const std::size_t own = is_backward_ ? 7 : 3;
        const auto names = words_of(attributes_.lengths);
        if (arguments_.size() < own + names.size() || results_.size() < (is_backward_ ? 3u : 2u))
            return "the call has too few arrays";
        for (std::size_t i = 0; i < names.size(); ++i)
            if (arguments_[own + i].dtype != FLEXC_I32 ||
                !lengths_.put(names[i], arguments_[own + i]))
                return "lengths are arrays of i32";
        const std::shared_ptr<Prepared> prepared = prepare();
        if (prepared == nullptr) return problem_;
        std::vector<flexc_named_tensor> buffers, gradients;
        const std::size_t first = own + names.size();
        if (arguments_.size() != first + prepared->buffers.size())
            return "the program has another number of buffers";
        for (std::size_t i = 0; i < prepared->buffers.size(); ++i)
            buffers.push_back({sizeof(flexc_named_tensor), 0, prepared->buffers[i].c_str(),
                               &arguments_[first + i]});
        if (is_backward_ && results_.size() != 3 + prepared->gradients.size())
            return "the program has another number of grad buffers";
        for (std::size_t i = 0; is_backward_ && i < prepared->gradients.size(); ++i)
            gradients.push_back(
                {sizeof(flexc_named_tensor), 0, prepared->gradients[i].c_str(), &results_[3 + i]});
        Scratch workspace(place_);
        if (std::string problem = workspace.take(flexc_plan_workspace_bytes(prepared->plan));
            !problem.empty())
            return problem;
        std::unique_lock order(prepared->mutex, std::defer_lock);
        flexc_error* error = nullptr;
        if (has_lengths_on_gpu()) {
            order.lock();
            const flexc_length_tensors lengths = lengths_.on_device();
            flexc_plan_update_length_tensors(prepared->kernel, prepared->plan, &lengths,
                                             place_.stream(), &error);
            if (error != nullptr) return text_of(error);
        }
        if (is_backward_) {
            const flexc_backward_tensors all = backward_tensors();
            flexc_backward(prepared->kernel, prepared->plan, &all, buffers.data(), buffers.size(),
                           gradients.data(), gradients.size(), workspace.get(), place_.stream(),
                           &error);
        } else {
            const flexc_forward_tensors all = forward_tensors();
            flexc_forward(prepared->kernel, prepared->plan, &all, buffers.data(), buffers.size(),
                          workspace.get(), place_.stream(), &error);
        }
        return text_of(error);
    }

  private:
    bool has_lengths_on_gpu() const { return place_.is_gpu() && !layout_.is_dense(); }

    flexc_forward_tensors forward_tensors() const {
        const flexc_tensor *a = arguments_.data(), *r = results_.data();
        const flexc_tensor *out = is_backward_ ? a + 3 : r, *lse = is_backward_ ? a + 4 : r + 1;
        return {sizeof(flexc_forward_tensors), 0, a, a + 1, a + 2, out, lse};
    }
    flexc_backward_tensors backward_tensors() const {
        const flexc_tensor *a = arguments_.data(), *r = results_.data();
        const flexc_backward_tensors all = {sizeof all, 0,     a,     a + 1, a + 2, a + 3,
                                            a + 4,      a + 5, a + 6, r,     r + 1, r + 2};
        return all;
    }

    std::shared_ptr<Prepared> prepare() {
        static auto& on_cpu = *new PreparedCalls;
        static auto& on_gpus = *new PreparedCalls; // which lengths on a CPU never push out
        PreparedCalls& calls = place_.is_gpu() ? on_gpus : on_cpu;
        std::string key = this->key();
        if (std::shared_ptr<Prepared> known = calls.find(key)) return known;
        std::shared_ptr<Prepared> made = make();
        return made == nullptr ? nullptr : calls.keep(std::move(key), std::move(made));
    }

    std::string key() const {
        std::string key;
        for (const std::string* text :
             {&attributes_.program, &attributes_.mask_mod, &attributes_.sink, &attributes_.params,
              &attributes_.layout, &attributes_.lengths})
            key += *text + '\0';
        const auto add = [&key](const auto& value) {
            key.append(reinterpret_cast<const char*>(&value), sizeof value);
        };
        add(attributes_.scale);
        key += (is_backward_           ? "b"
                : attributes_.recorded ? "r"
                                       : "f") +
               std::to_string(arguments_[0].dtype);
        const auto add_shape = [&](const flexc_tensor& tensor) {
            for (std::int32_t d = 0; d < tensor.rank; ++d)
                key += ',' + std::to_string(tensor.shape[d]);
        };
        const std::size_t own = is_backward_ ? 7 : 3;
        std::for_each_n(arguments_.begin(), 3, add_shape);
        for (std::size_t i = own; i < arguments_.size(); ++i)
            add_shape(arguments_[i]);
        if (place_.is_gpu()) {
            // The lengths of a plan are updated in the order of one stream.
            add(place_.index());
            add(place_.stream());
            for (const TensorList* all : {&arguments_, &results_})
                for (const flexc_tensor& tensor : *all)
                    add(std::bit_cast<std::uintptr_t>(tensor.data) % kTmaAlignment == 0);
            return key;
        }
        // Calls with equal lengths share a plan, as those of a model's layers.
        for (std::size_t i = own; i < own + words_of(attributes_.lengths).size(); ++i)
            key.append(static_cast<const char*>(arguments_[i].data),
                       elements_of(arguments_[i]) * sizeof(std::int32_t));
        return key;
    }

    std::shared_ptr<Prepared> make() {
        auto made = std::make_shared<Prepared>();
        flexc_error* error = nullptr;
        flexc_compile_options options = {};
        options.struct_size = sizeof options;
        options.dtype = arguments_[0].dtype;
        options.head_dim = static_cast<std::int32_t>(last_dim(arguments_[0]));
        options.head_dim_v = static_cast<std::int32_t>(last_dim(arguments_[2]));
        options.device = place_.device();
        options.device_index = place_.index();
        // A forward with a backward to come is of the same kernel, which is compiled once.
        options.forward_only = is_backward_ || attributes_.recorded ? 0 : 1;
        options.query_layout = layout_.queries;
        options.key_layout = layout_.keys;
        if (!attributes_.mask_mod.empty()) options.mask_mod = attributes_.mask_mod.c_str();
        if (!attributes_.sink.empty()) options.sink = attributes_.sink.c_str();
        const char* program = attributes_.program.c_str();
        flexc_signature* signature = nullptr;
        flexc_check(program, &options, &signature, &error);
        flexc_buffer_info buffer = {};
        buffer.struct_size = sizeof buffer;
        for (std::size_t i = 0;
             error == nullptr && flexc_signature_buffer(signature, i, &buffer, nullptr) == FLEXC_OK;
             ++i) {
            made->buffers.emplace_back(buffer.name);
            if (buffer.grad != 0) made->gradients.emplace_back(buffer.name);
        }
        flexc_signature_free(signature);
        if (error == nullptr) flexc_compile(program, &options, &made->kernel, &error);
        if (error == nullptr) plan(*made, error);
        if (error == nullptr) return made;
        problem_ = text_of(error);
        return nullptr;
    }

    static std::int64_t last_dim(const flexc_tensor& tensor) {
        return tensor.shape[tensor.rank - 1];
    }

    flexc_sizes sizes(flexc_lengths& paging) const {
        const auto& q = arguments_[0].shape;
        const auto& k = arguments_[1].shape;
        flexc_sizes sizes = {sizeof sizes, 0, q[0], q[1], k[1], q[2], k[2]};
        if (layout_.queries == FLEXC_LAYOUT_RAGGED) sizes.batch = lengths_.requests();
        if (layout_.keys == FLEXC_LAYOUT_PAGED) {
            paging.pages = k[0];
            paging.page_size = k[1];
            sizes.kv_heads = k[2];
        }
        if (layout_.queries != FLEXC_LAYOUT_DENSE)
            sizes.q_len = layout_.q_len < 0 ? most_queries() : layout_.q_len;
        if (layout_.keys != FLEXC_LAYOUT_DENSE)
            sizes.kv_len = layout_.kv_len < 0 ? most_keys(paging) : layout_.kv_len;
        return sizes;
    }

    // The most of one request: from the lengths or, on a GPU, where only the device reads these,
    // what the shapes have room for.
    std::int64_t most_queries() const {
        return place_.is_gpu() ? arguments_[0].shape[0] : lengths_.most_queries();
    }
    std::int64_t most_keys(const flexc_lengths& paging) const {
        if (!place_.is_gpu()) return lengths_.most_keys(paging);
        return layout_.keys == FLEXC_LAYOUT_PAGED ? lengths_.most_pages() * paging.page_size
                                                  : arguments_[1].shape[0];
    }

    void plan(Prepared& made, flexc_error*& error) {
        flexc_lengths paging = {};
        paging.struct_size = sizeof paging;
        paging.query_start = layout_.query_start;
        const flexc_sizes all = sizes(paging);
        flexc_lengths lengths = place_.is_gpu() ? paging : lengths_.on_host(paging);
        lengths.on_device = place_.is_gpu() ? 1 : 0;
        const flexc_forward_tensors forward = forward_tensors();
        const flexc_backward_tensors backward =
            is_backward_ ? backward_tensors() : flexc_backward_tensors{};
        flexc_plan_options options = {};
        options.struct_size = sizeof options;
        options.has_scale = std::isnan(attributes_.scale) ? 0 : 1;
        options.scale = std::isnan(attributes_.scale) ? 0 : attributes_.scale;
        options.forward = &forward;
        options.backward = is_backward_ ? &backward : nullptr;
        options.lengths = layout_.is_dense() ? nullptr : &lengths;
        // Buffers say the sizes that they alone have; later ones may hold something else.
        options.block_mask_per_call = 1;
        std::deque<std::string> names;
        std::vector<flexc_param_value> values;
        for (const std::string_view word : words_of(attributes_.params)) {
            auto [name, number] = named_number(word);
            names.push_back(std::move(name));
            values.push_back({sizeof(flexc_param_value), 0, names.back().c_str(), number});
        }
        options.params = values.data();
        options.param_count = values.size();
        const std::size_t first =
            arguments_.size() - std::min(arguments_.size(), made.buffers.size());
        std::vector<flexc_named_tensor> buffers;
        for (std::size_t i = 0; first + i < arguments_.size(); ++i)
            buffers.push_back(
                {sizeof(flexc_named_tensor), 0, made.buffers[i].c_str(), &arguments_[first + i]});
        flexc_plan_create(made.kernel, &all, buffers.data(), buffers.size(), place_.stream(),
                          &options, &made.plan, &error);
    }

    const Place& place_;
    const Attributes& attributes_;
    const LayoutOptions& layout_;
    bool is_backward_;
    TensorList arguments_, results_;
    Lengths lengths_;
    std::string problem_;
};

bool read(const xla::Values& values, TensorList& tensors) {
    for (std::int64_t i = 0; i < values.count; ++i) {
        const auto& buffer = *static_cast<const xla::Buffer*>(values.values[i]);
        flexc_tensor tensor = {};
        tensor.struct_size = sizeof tensor;
        tensor.dtype = dtype_of(buffer.dtype);
        tensor.data = buffer.data;
        tensor.rank = static_cast<std::int32_t>(buffer.rank);
        if (tensor.dtype == FLEXC_DEFAULT_DTYPE || buffer.rank > FLEXC_MAX_DIMS) return false;
        std::copy_n(buffer.dims, buffer.rank, tensor.shape);
        tensors.push_back(tensor);
    }
    return true;
}

// "" or what is wrong.
std::string run(const xla::Call& call, bool is_backward, bool is_on_gpu) {
    Place place;
    if (is_on_gpu)
        if (std::string problem = place.find_gpu(call); !problem.empty()) return problem;
    Attributes attributes;
    attributes.read(call.attributes);
    const LayoutOptions layout(attributes.layout);
    TensorList arguments, results;
    if (!read(call.arguments, arguments) || !read(call.results, results))
        return "flexc has no arrays of this element type or rank";
    if (arguments.size() < 3 || results.empty() || results[0].rank < layout.query_rank())
        return "the call has too few arrays or dims";
    const auto leading = static_cast<std::size_t>(results[0].rank - layout.query_rank());
    for (const TensorList* all : {&arguments, &results})
        for (const flexc_tensor& tensor : *all)
            if (tensor.rank < static_cast<std::int32_t>(leading))
                return "the call has arrays with too few dims";
    std::vector<std::int64_t> at(leading);
    const auto parts = [&](const TensorList& all) {
        TensorList these;
        for (const flexc_tensor& tensor : all)
            these.push_back(part_of(tensor, at));
        return these;
    };
    std::size_t count = 1;
    for (std::size_t i = 0; i < leading; ++i)
        count *= static_cast<std::size_t>(results[0].shape[i]);
    for (std::size_t i = 0; i < count; ++i) {
        std::string problem =
            Attention(place, attributes, layout, is_backward, parts(arguments), parts(results))
                .run();
        if (!problem.empty()) return problem;
        for (std::size_t dim = leading; dim-- > 0 && ++at[dim] == results[0].shape[dim];)
            at[dim] = 0;
    }
    return "";
}

template <bool is_backward, bool is_on_gpu> xla::Error* handle(xla::Call* call) noexcept {
    for (xla::Extension* extension = call->header.extensions; extension != nullptr;
         extension = extension->next)
        if (extension->type == 1) {
            auto& metadata = *reinterpret_cast<xla::MetadataExtension*>(extension)->metadata;
            metadata.version.major = 0;
            // A runtime that does not give its interface here has the first version.
            metadata.version.minor = call->api == nullptr ? 1 : call->api->version.minor;
            // Not for XLA's command buffers: replays would use a workspace that others may have by
            // then.
            metadata.traits = 0;
            return nullptr;
        }
    if (call->stage != xla::kExecute) return nullptr;
    std::string problem;
    try {
        problem = run(*call, is_backward, is_on_gpu);
    } catch (...) {
        problem = "out of memory";
    }
    if (problem.empty()) return nullptr;
    xla::ErrorCreate create = {{sizeof create, nullptr}, problem.c_str(), xla::kInvalidArgument};
    return call->api->create_error(&create);
}

// (name, platform, capsule)
Object entry(const char* name, const char* platform, xla::Error* (*handler)(xla::Call*) noexcept) {
    const Object capsule = Object::take(
        PyCapsule_New(reinterpret_cast<void*>(handler), "xla._CUSTOM_CALL_TARGET", nullptr));
    return capsule ? Object::take(Py_BuildValue("(ssO)", name, platform, capsule.get())) : Object();
}

} // namespace

PyObject* jax_handlers(PyObject*, PyObject*) {
    constexpr const char *kForward = "flexc_forward", *kBackward = "flexc_backward";
    const Object all[] = {
        entry(kForward, "cpu", handle<false, false>), entry(kBackward, "cpu", handle<true, false>),
        entry(kForward, "CUDA", handle<false, true>), entry(kBackward, "CUDA", handle<true, true>)};
    if (!std::ranges::all_of(all, [](const Object& one) { return static_cast<bool>(one); }))
        return nullptr;
    return PyTuple_Pack(4, all[0].get(), all[1].get(), all[2].get(), all[3].get());
}

} // namespace flexc::python
