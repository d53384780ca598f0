#include "kernel.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "call_tensors.h"
#include "error.h"
#include "flexc/flexc_c.h"
#include "lengths.h"
#include "options.h"
#include "run_values.h"
#include "tensor.h"
#include "type.h"

namespace flexc::python {

namespace {

struct KernelObject {
    PyObject_HEAD flexc_kernel* kernel;
};

// Workspace that calls take turns with: on a GPU those of one plan and stream, which run one after
// the other; on the CPU all, so that many plans need little memory.
struct Space {
    void* stream;
    flexc_memory* memory;
};
using Spaces = std::vector<Space>; // that no call uses; changed under Python's lock

struct PlanState {
    Object kernel;
    flexc_plan* plan = nullptr;
    std::int32_t device = FLEXC_DEVICE_CPU;
    std::int32_t device_index = 0;
    std::vector<std::string> buffers;   // names, in the order of calls
    std::vector<std::string> gradients; // likewise
    Spaces spaces;
    // For layouts other than dense: what updates keep, the library whose arrays the plan was made
    // with, and the rows of packed tensors that requests have; -1 if only the device knows them.
    Paging paging = {.struct_size = sizeof(Paging)};
    const dlpack::Exchange* library = nullptr;
    std::int64_t query_rows = 0, key_rows = 0;
    ~PlanState() {
        for (const Space& space : spaces)
            flexc_memory_free(space.memory);
        flexc_plan_free(plan);
    }
};

struct PlanObject {
    PyObject_HEAD PlanState* state;
};

PyTypeObject* kernel_type = nullptr;
PyTypeObject* plan_type = nullptr;

flexc_kernel* kernel_of(PyObject* self) { return reinterpret_cast<KernelObject*>(self)->kernel; }
PlanState& state_of(PyObject* self) { return *reinterpret_cast<PlanObject*>(self)->state; }

void free_kernel(PyObject* self) {
    flexc_kernel_free(kernel_of(self));
    free_object(self);
}

void free_plan(PyObject* self) {
    delete reinterpret_cast<PlanObject*>(self)->state;
    free_object(self);
}

PyObject* no_constructor(PyTypeObject*, PyObject*, PyObject*) {
    PyErr_SetString(PyExc_TypeError, "flexc.compile makes kernels, and a kernel makes plans");
    return nullptr;
}

// (q, k, v, o, d_out) like those of a plan's later calls, each may be None.
class Like : public PassTensors<5> {
  public:
    bool read(Tensors& tensors, PyObject* tuple, bool has_backward, flexc_plan_options& options) {
        const PassTensors& t = *this;
        if (!PassTensors::read(tensors, tuple, {"q", "k", "v", "o", "d_out"}, count)) return false;
        forward_ = {sizeof forward_, 0, t[0], t[1], t[2], t[3]};
        backward_ = {sizeof backward_, 0, t[0], t[1], t[2], t[3], nullptr, t[4]};
        options.forward = &forward_;
        options.backward = has_backward ? &backward_ : nullptr;
        return true;
    }

  private:
    flexc_forward_tensors forward_ = {};
    flexc_backward_tensors backward_ = {};
};

// One call's workspace: what the caller gave, else one of the plan's or the CPU's.
class Workspace {
  public:
    Workspace(PlanState& plan, void* stream)
        : plan_(plan), spaces_(plan.device == FLEXC_DEVICE_CPU ? of_cpu() : plan.spaces),
          own_{plan.device == FLEXC_DEVICE_CPU ? nullptr : stream, nullptr} {}
    ~Workspace() {
        if (own_.memory != nullptr) spaces_.push_back(own_);
    }
    Workspace(const Workspace&) = delete;
    Workspace& operator=(const Workspace&) = delete;

    bool take(Tensors& tensors, PyObject* given) {
        if (given != Py_None) {
            flexc_tensor tensor;
            if (!tensors.read(given, "workspace", true, tensor)) return false;
            std::size_t elements = 1;
            for (std::int32_t i = 0; i < tensor.rank; ++i)
                elements *= static_cast<std::size_t>(tensor.shape[i]);
            space_.data = tensor.data;
            space_.bytes = elements * flexc_dtype_size(tensor.dtype);
            return true;
        }
        const std::size_t bytes = flexc_plan_workspace_bytes(plan_.plan);
        if (bytes == 0) return true;
        const auto same = std::ranges::find(spaces_, own_.stream, &Space::stream);
        if (same != spaces_.end()) {
            own_ = *same;
            spaces_.erase(same);
        }
        if (own_.memory != nullptr && flexc_memory_bytes(own_.memory) < bytes) {
            flexc_memory_free(own_.memory);
            own_.memory = nullptr;
        }
        flexc_error* error = nullptr;
        if (own_.memory == nullptr && flexc_memory_create(plan_.device, plan_.device_index, bytes,
                                                          &own_.memory, &error) != FLEXC_OK) {
            own_.memory = nullptr;
            raise(error);
            return false;
        }
        space_.data = flexc_memory_data(own_.memory);
        space_.bytes = flexc_memory_bytes(own_.memory);
        return true;
    }
    const flexc_workspace* get() const { return &space_; }

  private:
    static Spaces& of_cpu() {
        static auto& spaces = *new Spaces; // calls may run while the process ends
        return spaces;
    }

    PlanState& plan_;
    Spaces& spaces_;
    Space own_;
    flexc_workspace space_ = {sizeof(flexc_workspace), 0, nullptr, 0};
};

PyObject* kernel_info(PyObject* self, PyObject*) {
    flexc_kernel_info info = {};
    info.struct_size = sizeof info;
    flexc_error* error = nullptr;
    if (flexc_kernel_get(kernel_of(self), &info, &error) != FLEXC_OK) return raise(error);
    Object functions = Object::take(PyList_New(0));
    for (std::size_t i = 0; functions && i < info.function_count; ++i) {
        flexc_function_info f = {};
        f.struct_size = sizeof f;
        if (flexc_kernel_function(kernel_of(self), i, &f, &error) != FLEXC_OK) return raise(error);
        const Object entry = Object::take(Py_BuildValue(
            "{s:s,s:s,s:s,s:i,s:i,s:i,s:d}", "name", f.name, "reason", f.reason, "schedule",
            f.schedule, "registers", f.registers, "spill_bytes", f.spill_bytes, "shared_bytes",
            f.shared_bytes, "compile_ms", f.compile_ms));
        if (!entry || PyList_Append(functions.get(), entry.get()) != 0) return nullptr;
    }
    if (!functions) return nullptr;
    return Py_BuildValue(
        "{s:i,s:i,s:O,s:d,s:s,s:i,s:i,s:O,s:O}", "device", info.device, "device_index",
        info.device_index, "from_cache", info.from_cache != 0 ? Py_True : Py_False, "compile_ms",
        info.compile_ms, "dtype", flexc_dtype_name(info.dtype), "head_dim", info.head_dim,
        "head_dim_v", info.head_dim_v == 0 ? info.head_dim : info.head_dim_v, "backward",
        info.forward_only != 0 ? Py_False : Py_True, "functions", functions.get());
}

PyObject* kernel_out_of_range(PyObject* self, PyObject*) {
    std::int32_t happened = 0;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_kernel_out_of_range(kernel_of(self), &happened, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    return PyBool_FromLong(happened);
}

// Run-time values of a plan: scale, params and what a shard has.
class PlanOptions {
  public:
    bool read(PyObject* dict) {
        options_.struct_size = sizeof options_;
        if (!read_scale(dict, options_.has_scale, options_.scale)) return false;
        std::int64_t accumulate = 0, threads = 0, per_call = 0;
        if (!read_int64(dict, "q_offset", options_.q_offset) ||
            !read_int64(dict, "kv_offset", options_.kv_offset) ||
            !read_int64(dict, "global_q_len", options_.global_q_len) ||
            !read_int64(dict, "global_kv_len", options_.global_kv_len) ||
            !read_int64(dict, "head_offset", options_.head_offset) ||
            !read_int64(dict, "global_heads", options_.global_heads) ||
            !read_int64(dict, "global_kv_heads", options_.global_kv_heads) ||
            !read_int64(dict, "accumulate_gradients", accumulate) ||
            !read_int64(dict, "block_mask_per_call", per_call) ||
            !read_int64(dict, "cpu_threads", threads))
            return false;
        options_.accumulate_gradients = accumulate != 0 ? 1 : 0;
        options_.block_mask_per_call = per_call != 0 ? 1 : 0;
        options_.cpu_threads = static_cast<std::int32_t>(threads);
        if (!params_.read(dict)) return false;
        options_.params = params_.data();
        options_.param_count = params_.size();
        return true;
    }
    flexc_plan_options* get() { return &options_; }

  private:
    flexc_plan_options options_ = {};
    ParamValues params_;
};

void find_rows(PlanState& state, const Lengths& lengths) {
    state.query_rows = lengths.is_on_device() ? -1 : lengths.query_rows();
    state.key_rows = lengths.is_on_device() ? -1 : lengths.key_rows();
}

// Lengths of a plan that is to be made, and the sizes of it that they say. false: there is an
// exception.
bool read_lengths(PlanState& state, PyObject* dict, PyObject* options, Lengths& lengths,
                  flexc_sizes& sizes) {
    std::int64_t start = 0;
    if (!lengths.read(dict, state.device, state.device_index) ||
        !read_int64(options, "query_start", start))
        return false;
#define FLEXC_LENGTH_SIZE(name)                                                                    \
    if (!read_int64(options, #name, state.paging.name)) return false;
#include "common/lengths.def"
    state.paging.query_start = static_cast<std::int32_t>(start);
    const auto refuse = [](const char* message) {
        raise(FLEXC_ERROR_INVALID_OPTION, message);
        return false;
    };
    if (sizes.batch < 0) sizes.batch = lengths.requests();
    if (sizes.batch < 0)
        return refuse("cu_seqlens_q: missing; the kernel was compiled for ragged queries");
    if (lengths.is_on_device() && sizes.q_len < 0)
        return refuse("q_len: missing; with lengths on a device it is the most queries that a "
                      "request may have");
    if (lengths.is_on_device() && sizes.kv_len < 0)
        return refuse("kv_len: missing; with lengths on a device it is the most keys that a "
                      "request may have");
    if (sizes.q_len < 0) sizes.q_len = lengths.most_queries();
    if (sizes.kv_len < 0) sizes.kv_len = lengths.most_keys(state.paging);
    find_rows(state, lengths);
    return lengths.check_table(sizes.batch);
}

// plan((B, H, H_KV, Q_LEN, KV_LEN), buffer names, gradient names, buffers or None, stream, options,
//      lengths or nothing)
// Options also has `like`, (q, k, v, o, d_out) like those of later calls, each may be None. With
// lengths, a dict of arrays, sizes below 0 are those that the lengths say.
PyObject* kernel_plan(PyObject* self, PyObject* arguments) {
    flexc_sizes sizes = {};
    sizes.struct_size = sizeof sizes;
    long long batch = 0, heads = 0, kv_heads = 0, q_len = 0, kv_len = 0;
    PyObject *names = nullptr, *gradient_names = nullptr, *buffers = nullptr, *stream = nullptr,
             *options = nullptr, *length_arrays = nullptr;
    if (PyArg_ParseTuple(arguments, "(LLLLL)O!O!OOO!|O!", &batch, &heads, &kv_heads, &q_len,
                         &kv_len, &PyTuple_Type, &names, &PyTuple_Type, &gradient_names, &buffers,
                         &stream, &PyDict_Type, &options, &PyDict_Type, &length_arrays) == 0)
        return nullptr;
    sizes.batch = batch;
    sizes.heads = heads;
    sizes.kv_heads = kv_heads;
    sizes.q_len = q_len;
    sizes.kv_len = kv_len;

    auto state = std::make_unique<PlanState>();
    state->kernel = Object::share(self);
    flexc_kernel_info info = {};
    info.struct_size = sizeof info;
    flexc_error* error = nullptr;
    if (flexc_kernel_get(kernel_of(self), &info, &error) != FLEXC_OK) return raise(error);
    state->device = info.device;
    state->device_index = info.device_index;
    if (!read_names(names, state->buffers) || !read_names(gradient_names, state->gradients))
        return nullptr;

    PlanOptions plan_options;
    Tensors tensors(stream);
    NamedTensors named;
    Like like;
    if (!plan_options.read(options)) return nullptr;
    if (buffers != Py_None && !named.read(tensors, buffers, state->buffers, false)) return nullptr;
    if (PyObject* given = PyDict_GetItemString(options, "like");
        given != nullptr && !like.read(tensors, given, info.forward_only == 0, *plan_options.get()))
        return nullptr;
    Lengths lengths(stream);
    flexc_lengths given_lengths = {};
    if (length_arrays != nullptr) {
        if (!read_lengths(*state, length_arrays, options, lengths, sizes)) return nullptr;
        given_lengths = lengths.is_on_device() ? state->paging : lengths.on_host(state->paging);
        given_lengths.on_device = lengths.is_on_device() ? 1 : 0;
        plan_options.get()->lengths = &given_lengths;
        state->library = tensors.library();
    }
    void* handle = nullptr;
    if (!tensors.stream(handle)) return nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_plan_create(kernel_of(self), &sizes, named.data(), named.size(), handle,
                                   plan_options.get(), &state->plan, &error);
        if (status == FLEXC_OK && lengths.is_on_device()) {
            const flexc_length_tensors now = lengths.on_device();
            status = flexc_plan_update_length_tensors(kernel_of(self), state->plan, &now, handle,
                                                      &error);
        }
    }
    if (status != FLEXC_OK) return raise(error);
    PyObject* made = allocate(plan_type);
    if (made == nullptr) return nullptr;
    reinterpret_cast<PlanObject*>(made)->state = state.release();
    return made;
}

PyObject* plan_workspace_bytes(PyObject* self, void*) {
    return PyLong_FromSize_t(flexc_plan_workspace_bytes(state_of(self).plan));
}

PyObject* plan_block_mask_bytes(PyObject* self, void*) {
    return PyLong_FromSize_t(flexc_plan_block_mask_bytes(state_of(self).plan));
}

// update(buffers, stream)
PyObject* plan_update(PyObject* self, PyObject* arguments) {
    PlanState& state = state_of(self);
    PyObject *buffers = nullptr, *stream = nullptr;
    if (PyArg_ParseTuple(arguments, "O!O", &PyTuple_Type, &buffers, &stream) == 0) return nullptr;
    Tensors tensors(stream);
    NamedTensors named;
    void* handle = nullptr;
    if (!named.read(tensors, buffers, state.buffers, false) || !tensors.stream(handle))
        return nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_plan_update(kernel_of(state.kernel.get()), state.plan, named.data(),
                                   named.size(), handle, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    Py_RETURN_NONE;
}

// update_lengths(lengths, pages or None, stream)
PyObject* plan_update_lengths(PyObject* self, PyObject* arguments) {
    PlanState& state = state_of(self);
    PyObject *arrays = nullptr, *pages = nullptr, *stream = nullptr;
    if (PyArg_ParseTuple(arguments, "O!OO", &PyDict_Type, &arrays, &pages, &stream) == 0)
        return nullptr;
    Lengths lengths(stream);
    flexc_sizes sizes = {};
    sizes.struct_size = sizeof sizes;
    flexc_error* error = nullptr;
    if (flexc_plan_sizes(state.plan, &sizes, &error) != FLEXC_OK) return raise(error);
    void* handle = nullptr;
    if (!lengths.read(arrays, state.device, state.device_index) ||
        !lengths.check_table(sizes.batch) || !lengths.tensors().stream(handle))
        return nullptr;
    Paging paging = state.paging;
    if (pages != Py_None) {
        if (lengths.is_on_device())
            return raise(FLEXC_ERROR_INVALID_OPTION,
                         "pages: with lengths on a device they are the plan's");
        paging.pages = PyLong_AsLongLong(pages);
        if (PyErr_Occurred() != nullptr) return nullptr;
    }
    // Arrays of the host have no stream: it is the one of the library that the plan was made with.
    if (stream == Py_None && state.device == FLEXC_DEVICE_CUDA && !lengths.is_on_device() &&
        state.library != nullptr && !current_stream(*state.library, state.device_index, handle))
        return nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        flexc_kernel* kernel = kernel_of(state.kernel.get());
        if (lengths.is_on_device()) {
            const flexc_length_tensors given = lengths.on_device();
            status = flexc_plan_update_length_tensors(kernel, state.plan, &given, handle, &error);
        } else {
            const flexc_lengths given = lengths.on_host(paging);
            status = flexc_plan_update_lengths(kernel, state.plan, &given, handle, &error);
        }
    }
    if (status != FLEXC_OK) return raise(error);
    state.paging = paging;
    find_rows(state, lengths);
    Py_RETURN_NONE;
}

// (of queries, of keys) in packed tensors that requests have; -1: only the device knows.
PyObject* plan_rows(PyObject* self, void*) {
    const PlanState& state = state_of(self);
    return Py_BuildValue("(LL)", static_cast<long long>(state.query_rows),
                         static_cast<long long>(state.key_rows));
}

// forward((q, k, v, o, lse), buffers, stream, workspace, (k_scale, v_scale, max_scores) or nothing)
PyObject* plan_forward(PyObject* self, PyObject* arguments) {
    PlanState& state = state_of(self);
    PyObject *given = nullptr, *buffers = nullptr, *stream = nullptr, *space = nullptr,
             *optional = nullptr;
    if (PyArg_ParseTuple(arguments, "O!O!OO|O!", &PyTuple_Type, &given, &PyTuple_Type, &buffers,
                         &stream, &space, &PyTuple_Type, &optional) == 0)
        return nullptr;
    Tensors tensors(stream);
    Forward forward;
    NamedTensors named;
    void* handle = nullptr;
    if (!forward.read(tensors, given) ||
        (optional != nullptr && !forward.read_optional(tensors, optional)) ||
        !named.read(tensors, buffers, state.buffers, false) || !tensors.stream(handle))
        return nullptr;
    Workspace workspace(state, handle);
    if (!workspace.take(tensors, space)) return nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_forward(kernel_of(state.kernel.get()), state.plan, forward.get(),
                               named.data(), named.size(), workspace.get(), handle, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    Py_RETURN_NONE;
}

// backward((q, k, v, o, lse, d_out, d_lse, dq, dk, dv), buffers, gradients, stream, workspace)
PyObject* plan_backward(PyObject* self, PyObject* arguments) {
    PlanState& state = state_of(self);
    PyObject *given = nullptr, *buffers = nullptr, *gradients = nullptr, *stream = nullptr,
             *space = nullptr;
    if (PyArg_ParseTuple(arguments, "O!O!O!OO", &PyTuple_Type, &given, &PyTuple_Type, &buffers,
                         &PyTuple_Type, &gradients, &stream, &space) == 0)
        return nullptr;
    Tensors tensors(stream);
    Backward backward;
    NamedTensors named, written;
    void* handle = nullptr;
    if (!backward.read(tensors, given) || !named.read(tensors, buffers, state.buffers, false) ||
        !written.read(tensors, gradients, state.gradients, true) || !tensors.stream(handle))
        return nullptr;
    Workspace workspace(state, handle);
    if (!workspace.take(tensors, space)) return nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_backward(kernel_of(state.kernel.get()), state.plan, backward.get(),
                                named.data(), named.size(), written.data(), written.size(),
                                workspace.get(), handle, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    Py_RETURN_NONE;
}

PyMethodDef kernel_methods[] = {{"info", kernel_info, METH_NOARGS, nullptr},
                                {"out_of_range", kernel_out_of_range, METH_NOARGS, nullptr},
                                {"plan", kernel_plan, METH_VARARGS, nullptr},
                                {nullptr, nullptr, 0, nullptr}};
PyType_Slot kernel_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_kernel)},
                              {Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                              {Py_tp_methods, kernel_methods},
                              {0, nullptr}};
PyType_Spec kernel_spec = {"flexc._core.Kernel", sizeof(KernelObject), 0, Py_TPFLAGS_DEFAULT,
                           kernel_slots};

PyMethodDef plan_methods[] = {{"update", plan_update, METH_VARARGS, nullptr},
                              {"update_lengths", plan_update_lengths, METH_VARARGS, nullptr},
                              {"forward", plan_forward, METH_VARARGS, nullptr},
                              {"backward", plan_backward, METH_VARARGS, nullptr},
                              {nullptr, nullptr, 0, nullptr}};
PyGetSetDef plan_values[] = {{"workspace_bytes", plan_workspace_bytes, nullptr, nullptr, nullptr},
                             {"block_mask_bytes", plan_block_mask_bytes, nullptr, nullptr, nullptr},
                             {"rows", plan_rows, nullptr, nullptr, nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot plan_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_plan)},
                            {Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                            {Py_tp_methods, plan_methods},
                            {Py_tp_getset, plan_values},
                            {0, nullptr}};
PyType_Spec plan_spec = {"flexc._core.Plan", sizeof(PlanObject), 0, Py_TPFLAGS_DEFAULT, plan_slots};

} // namespace

bool forward(PyObject* plan, const flexc_tensor* inputs, PyObject* out, PyObject* lse,
             PyObject* buffers, Tensors& tensors) {
    PlanState& state = state_of(plan);
    flexc_tensor o, rows;
    NamedTensors named;
    void* handle = nullptr;
    if (!tensors.read(out, "o", true, o) || !tensors.read(lse, "lse", true, rows) ||
        !named.read(tensors, buffers, state.buffers, false) || !tensors.stream(handle))
        return false;
    Workspace workspace(state, handle);
    if (!workspace.take(tensors, Py_None)) return false;
    const flexc_forward_tensors all = {sizeof all, 0,  &inputs[0], &inputs[1],
                                       &inputs[2], &o, &rows};
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_forward(kernel_of(state.kernel.get()), state.plan, &all, named.data(),
                               named.size(), workspace.get(), handle, &error);
    }
    if (status != FLEXC_OK) raise(error);
    return status == FLEXC_OK;
}

bool add_kernel_types(PyObject* module) {
    return add_type(module, kernel_spec, "Kernel", kernel_type) &&
           add_type(module, plan_spec, "Plan", plan_type);
}

PyObject* compile(PyObject*, PyObject* arguments) {
    PyObject *text = nullptr, *dict = nullptr;
    if (PyArg_ParseTuple(arguments, "UO", &text, &dict) == 0) return nullptr;
    std::string source;
    CompileOptions options;
    if (!read_text(text, source) || !options.read(dict)) return nullptr;
    flexc_kernel* kernel = nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_compile(source.c_str(), options.get(), &kernel, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    const Object made = Object::take(allocate(kernel_type));
    if (!made) {
        flexc_kernel_free(kernel);
        return nullptr;
    }
    reinterpret_cast<KernelObject*>(made.get())->kernel = kernel;
    const Object messages = options.messages();
    return messages ? PyTuple_Pack(2, made.get(), messages.get()) : nullptr;
}

} // namespace flexc::python
