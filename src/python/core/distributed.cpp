#include "distributed.h"

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "call_tensors.h"
#include "communicator.h"
#include "error.h"
#include "flexc/flexc_distributed_c.h"
#include "lengths.h"
#include "options.h"
#include "run_values.h"
#include "shards.h"
#include "type.h"

namespace flexc::python {

namespace {

struct KernelObject {
    PyObject_HEAD flexc_distributed_kernel* kernel;
    std::int32_t device, device_index;
};

struct PlanState {
    Object kernel, communicator;
    flexc_distributed_plan* plan = nullptr;
    std::vector<std::string> buffers;   // names, in the order of calls
    std::vector<std::string> gradients; // likewise

    PlanState() = default;
    PlanState(const PlanState&) = delete;
    PlanState& operator=(const PlanState&) = delete;
    // Waits for the GPU, which other ranks may have to go on for.
    ~PlanState() {
        const WithoutLock unlocked;
        flexc_distributed_plan_free(plan);
    }
};

struct PlanObject {
    PyObject_HEAD PlanState* state;
};

PyTypeObject* kernel_type = nullptr;
PyTypeObject* plan_type = nullptr;

KernelObject& fields(PyObject* self) { return *reinterpret_cast<KernelObject*>(self); }
PlanState& state_of(PyObject* self) { return *reinterpret_cast<PlanObject*>(self)->state; }

void free_kernel(PyObject* self) {
    flexc_distributed_kernel_free(fields(self).kernel);
    free_object(self);
}

void free_plan(PyObject* self) {
    delete reinterpret_cast<PlanObject*>(self)->state;
    free_object(self);
}

PyObject* no_constructor(PyTypeObject*, PyObject*, PyObject*) {
    PyErr_SetString(PyExc_TypeError,
                    "flexc.distributed.compile makes kernels, and a kernel makes plans");
    return nullptr;
}

// The options of a plan, with the lengths of ragged layouts.
class Options {
  public:
    explicit Options(PyObject* stream) : lengths_(stream) {}

    // false: there is an exception.
    bool read(PyObject* dict, PyObject* lengths, const KernelObject& kernel) {
        std::int64_t exchange = 0, reduction = 0, threads = 0, per_node = 0, bytes = 0, start = 0;
        options_.struct_size = sizeof options_;
        if (!read_scale(dict, options_.has_scale, options_.scale) || !params_.read(dict) ||
            !read_int64(dict, "exchange", exchange) || !read_int64(dict, "reduction", reduction) ||
            !read_int64(dict, "cpu_threads", threads) ||
            !read_int64(dict, "ranks_per_node", per_node) ||
            !read_int64(dict, "gathered_bytes", bytes) || !read_int64(dict, "query_start", start))
            return false;
        options_.params = params_.data();
        options_.param_count = params_.size();
        options_.exchange = static_cast<std::int32_t>(exchange);
        options_.reduction = static_cast<std::int32_t>(reduction);
        options_.cpu_threads = static_cast<std::int32_t>(threads);
        options_.ranks_per_node = static_cast<std::int32_t>(per_node);
        options_.gathered_bytes = static_cast<std::uint64_t>(bytes);
        if (lengths == Py_None) return true;
        if (!lengths_.read(lengths, kernel.device, kernel.device_index)) return false;
        if (lengths_.is_on_device()) {
            raise(FLEXC_ERROR_UNSUPPORTED, "attention across ranks needs lengths in host memory: "
                                           "every rank plans what all of them do");
            return false;
        }
        Paging paging = {};
        paging.struct_size = sizeof paging;
        paging.query_start = static_cast<std::int32_t>(start);
        host_lengths_ = lengths_.on_host(paging);
        options_.lengths = &host_lengths_;
        return true;
    }
    const flexc_distributed_options* get() const { return &options_; }
    std::int64_t requests() const { return lengths_.requests(); }

  private:
    flexc_distributed_options options_ = {};
    ParamValues params_;
    Lengths lengths_;
    flexc_lengths host_lengths_ = {};
};

// A batch below 0 is that of the requests. false: there is an exception.
bool find_batch(std::int64_t& batch, const Options& options) {
    if (batch < 0) batch = options.requests();
    if (batch >= 0) return true;
    raise(FLEXC_ERROR_INVALID_OPTION,
          "cu_seqlens_q: missing; the kernel was compiled for ragged queries");
    return false;
}

// balanced_shards((B, H, H_KV, length), ranks, buffer names, buffers, stream, options,
//                 lengths or None) -> ranges
PyObject* kernel_balanced_shards(PyObject* self, PyObject* arguments) {
    long long batch = 0, heads = 0, kv_heads = 0, length = 0;
    int ranks = 0;
    PyObject *names = nullptr, *buffers = nullptr, *stream = nullptr, *dict = nullptr,
             *lengths = nullptr;
    if (PyArg_ParseTuple(arguments, "(LLLL)iO!O!OO!O", &batch, &heads, &kv_heads, &length, &ranks,
                         &PyTuple_Type, &names, &PyTuple_Type, &buffers, &stream, &PyDict_Type,
                         &dict, &lengths) == 0)
        return nullptr;
    flexc_sizes sizes = {sizeof sizes, 0, batch, heads, kv_heads, length, length};
    std::vector<std::string> own_names;
    Options options(stream);
    Tensors tensors(stream);
    NamedTensors named;
    void* handle = nullptr;
    if (!options.read(dict, lengths, fields(self)) || !find_batch(sizes.batch, options) ||
        !read_names(names, own_names) || !named.read(tensors, buffers, own_names, false) ||
        !tensors.stream(handle))
        return nullptr;
    flexc_shards* made = nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_shards_balanced(fields(self).kernel, &sizes, ranks, named.data(),
                                       named.size(), handle, options.get(), &made, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    return Shards(made).ranges().release();
}

// plan((B, H, H_KV), queries, keys, communicator, buffer names, gradient names, buffers, stream,
//      options, lengths or None)
PyObject* kernel_plan(PyObject* self, PyObject* arguments) {
    long long batch = 0, heads = 0, kv_heads = 0;
    PyObject *queries = nullptr, *keys = nullptr, *communicator = nullptr, *names = nullptr,
             *gradient_names = nullptr, *buffers = nullptr, *stream = nullptr, *dict = nullptr,
             *lengths = nullptr;
    if (PyArg_ParseTuple(arguments, "(LLL)O!O!OO!O!O!OO!O", &batch, &heads, &kv_heads,
                         &PyTuple_Type, &queries, &PyTuple_Type, &keys, &communicator,
                         &PyTuple_Type, &names, &PyTuple_Type, &gradient_names, &PyTuple_Type,
                         &buffers, &stream, &PyDict_Type, &dict, &lengths) == 0)
        return nullptr;
    auto state = std::make_unique<PlanState>();
    state->kernel = Object::share(self);
    state->communicator = Object::share(communicator);
    const RankCall call(communicator);
    if (!call.has_begun()) return nullptr;
    Shards of_queries, of_keys;
    Options options(stream);
    Tensors tensors(stream);
    NamedTensors named;
    void* handle = nullptr;
    flexc_distributed_sizes sizes = {sizeof sizes, 0, batch, heads, kv_heads, nullptr, nullptr};
    if (!of_queries.read(queries) || !of_keys.read(keys) ||
        !options.read(dict, lengths, fields(self)) || !find_batch(sizes.batch, options) ||
        !read_names(names, state->buffers) || !read_names(gradient_names, state->gradients) ||
        !named.read(tensors, buffers, state->buffers, false) || !tensors.stream(handle))
        return call.refuse();
    sizes.queries = of_queries.get();
    sizes.keys = of_keys.get();
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_distributed_plan_create(fields(self).kernel, &sizes, call.communicator(),
                                               named.data(), named.size(), handle, options.get(),
                                               &state->plan, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    PyObject* made = allocate(plan_type);
    if (made != nullptr) reinterpret_cast<PlanObject*>(made)->state = state.release();
    return made;
}

// forward((q, k, v, o, lse), buffers, stream)
PyObject* plan_forward(PyObject* self, PyObject* arguments) {
    PlanState& state = state_of(self);
    PyObject *given = nullptr, *buffers = nullptr, *stream = nullptr;
    if (PyArg_ParseTuple(arguments, "O!O!O", &PyTuple_Type, &given, &PyTuple_Type, &buffers,
                         &stream) == 0)
        return nullptr;
    const RankCall call(state.communicator.get());
    if (!call.has_begun()) return nullptr;
    Tensors tensors(stream);
    Forward forward;
    NamedTensors named;
    void* handle = nullptr;
    if (!forward.read(tensors, given) || !named.read(tensors, buffers, state.buffers, false) ||
        !tensors.stream(handle))
        return call.refuse();
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status =
            flexc_distributed_forward(fields(state.kernel.get()).kernel, state.plan, forward.get(),
                                      named.data(), named.size(), handle, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    Py_RETURN_NONE;
}

// backward((q, k, v, o, lse, d_out, d_lse, dq, dk, dv), buffers, gradients, stream)
PyObject* plan_backward(PyObject* self, PyObject* arguments) {
    PlanState& state = state_of(self);
    PyObject *given = nullptr, *buffers = nullptr, *gradients = nullptr, *stream = nullptr;
    if (PyArg_ParseTuple(arguments, "O!O!O!O", &PyTuple_Type, &given, &PyTuple_Type, &buffers,
                         &PyTuple_Type, &gradients, &stream) == 0)
        return nullptr;
    const RankCall call(state.communicator.get());
    if (!call.has_begun()) return nullptr;
    Tensors tensors(stream);
    Backward backward;
    NamedTensors named, written;
    void* handle = nullptr;
    if (!backward.read(tensors, given) || !named.read(tensors, buffers, state.buffers, false) ||
        !written.read(tensors, gradients, state.gradients, true) || !tensors.stream(handle))
        return call.refuse();
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_distributed_backward(fields(state.kernel.get()).kernel, state.plan,
                                            backward.get(), named.data(), named.size(),
                                            written.data(), written.size(), handle, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    Py_RETURN_NONE;
}

// (exchange, numbers in the order of flexc_traffic)
PyObject* plan_traffic(PyObject* self, void*) {
    flexc_traffic traffic = {};
    traffic.struct_size = sizeof traffic;
    flexc_error* error = nullptr;
    if (flexc_distributed_plan_traffic(state_of(self).plan, &traffic, &error) != FLEXC_OK)
        return raise(error);
    return Py_BuildValue("s(KKKKLdd)", flexc_exchange_name(traffic.exchange),
                         static_cast<unsigned long long>(traffic.forward_sent),
                         static_cast<unsigned long long>(traffic.forward_received),
                         static_cast<unsigned long long>(traffic.backward_sent),
                         static_cast<unsigned long long>(traffic.backward_received),
                         static_cast<long long>(traffic.pieces), traffic.visible_area,
                         traffic.fair_area);
}

PyObject* plan_explain(PyObject* self, PyObject*) {
    flexc_text* text = nullptr;
    flexc_error* error = nullptr;
    if (flexc_distributed_plan_explain(state_of(self).plan, &text, &error) != FLEXC_OK)
        return raise(error);
    PyObject* made = PyUnicode_FromStringAndSize(flexc_text_data(text),
                                                 static_cast<Py_ssize_t>(flexc_text_size(text)));
    flexc_text_free(text);
    return made;
}

PyMethodDef kernel_methods[] = {{"plan", kernel_plan, METH_VARARGS, nullptr},
                                {"balanced_shards", kernel_balanced_shards, METH_VARARGS, nullptr},
                                {nullptr, nullptr, 0, nullptr}};
PyType_Slot kernel_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_kernel)},
                              {Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                              {Py_tp_methods, kernel_methods},
                              {0, nullptr}};
PyType_Spec kernel_spec = {"flexc._core.DistributedKernel", sizeof(KernelObject), 0,
                           Py_TPFLAGS_DEFAULT, kernel_slots};

PyMethodDef plan_methods[] = {{"forward", plan_forward, METH_VARARGS, nullptr},
                              {"backward", plan_backward, METH_VARARGS, nullptr},
                              {"explain", plan_explain, METH_NOARGS, nullptr},
                              {nullptr, nullptr, 0, nullptr}};
PyGetSetDef plan_values[] = {{"traffic", plan_traffic, nullptr, nullptr, nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot plan_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_plan)},
                            {Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                            {Py_tp_methods, plan_methods},
                            {Py_tp_getset, plan_values},
                            {0, nullptr}};
PyType_Spec plan_spec = {"flexc._core.DistributedPlan", sizeof(PlanObject), 0, Py_TPFLAGS_DEFAULT,
                         plan_slots};

} // namespace

bool add_distributed_types(PyObject* module) {
    return add_type(module, kernel_spec, "DistributedKernel", kernel_type) &&
           add_type(module, plan_spec, "DistributedPlan", plan_type);
}

PyObject* compile_distributed(PyObject*, PyObject* arguments) {
    PyObject *text = nullptr, *dict = nullptr, *pairs = nullptr;
    if (PyArg_ParseTuple(arguments, "UOO!", &text, &dict, &PyTuple_Type, &pairs) == 0)
        return nullptr;
    std::string source;
    CompileOptions options;
    if (!read_text(text, source) || !options.read(dict)) return nullptr;
    std::deque<std::string> names;
    std::vector<flexc_sharded_buffer> sharded;
    for (Py_ssize_t i = 0; i < PyTuple_Size(pairs); ++i) {
        PyObject *buffer = nullptr, *dim = nullptr;
        std::string &kept = names.emplace_back(), &kept_dim = names.emplace_back();
        if (PyArg_ParseTuple(PyTuple_GetItem(pairs, i), "UU;a sharded buffer is (name, dim)",
                             &buffer, &dim) == 0 ||
            !read_text(buffer, kept) || !read_text(dim, kept_dim))
            return nullptr;
        sharded.push_back({sizeof(flexc_sharded_buffer), 0, kept.c_str(), kept_dim.c_str()});
    }
    flexc_distributed_kernel* kernel = nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_distributed_compile(source.c_str(), options.get(), sharded.data(),
                                           sharded.size(), &kernel, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    const Object made = Object::take(allocate(kernel_type));
    if (!made) {
        flexc_distributed_kernel_free(kernel);
        return nullptr;
    }
    KernelObject& object = fields(made.get());
    object.kernel = kernel;
    object.device =
        options.get()->device == FLEXC_DEVICE_CUDA ? FLEXC_DEVICE_CUDA : FLEXC_DEVICE_CPU;
    object.device_index = options.get()->device_index;
    const Object messages = options.messages();
    return messages ? PyTuple_Pack(2, made.get(), messages.get()) : nullptr;
}

} // namespace flexc::python
