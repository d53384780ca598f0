#include "tools.h"

#include <memory>
#include <vector>

#include "error.h"
#include "flexc/flexc_c.h"
#include "options.h"
#include "tensor.h"

namespace flexc::python {

namespace {

template <auto release> struct Release {
    template <typename Handle> void operator()(Handle* handle) const { release(handle); }
};
template <typename Handle, auto release> using Owned = std::unique_ptr<Handle, Release<release>>;

Object texts(const char* const* all, std::size_t count) {
    Object tuple = Object::take(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (std::size_t i = 0; tuple && i < count; ++i) {
        Object text = text_object(all[i]);
        if (!text) return {};
        PyTuple_SetItem(tuple.get(), static_cast<Py_ssize_t>(i), text.release());
    }
    return tuple;
}

template <typename At> Object texts_at(std::size_t count, const At& at) {
    std::vector<const char*> all;
    for (std::size_t i = 0; i < count; ++i)
        all.push_back(at(i));
    return texts(all.data(), all.size());
}

bool append(Object& list, Object entry) {
    return list && entry && PyList_Append(list.get(), entry.get()) == 0;
}

Object boolean(int value) { return Object::take(PyBool_FromLong(value)); }

Object library_entry(const flexc_library_entry& entry) {
    const Object others = texts(entry.also_called, entry.also_called_count);
    if (!others) return {};
    return Object::take(Py_BuildValue("{s:s,s:s,s:s,s:s,s:s,s:O}", "name", entry.name, "group",
                                      entry.group, "page", entry.page, "summary", entry.summary,
                                      "text", entry.text, "also_called", others.get()));
}

} // namespace

PyObject* check(PyObject*, PyObject* arguments) {
    PyObject *text = nullptr, *dict = nullptr;
    if (PyArg_ParseTuple(arguments, "UO", &text, &dict) == 0) return nullptr;
    std::string source;
    CompileOptions options;
    if (!read_text(text, source) || !options.read(dict)) return nullptr;
    flexc_signature* made = nullptr;
    flexc_error* error = nullptr;
    if (flexc_check(source.c_str(), options.get(), &made, &error) != FLEXC_OK) return raise(error);
    const Owned<flexc_signature, flexc_signature_free> signature(made);
    flexc_signature_info info = {};
    info.struct_size = sizeof info;
    if (flexc_signature_get(made, &info, &error) != FLEXC_OK) return raise(error);
    Object buffers = Object::take(PyList_New(0)), params = Object::take(PyList_New(0));
    for (std::size_t i = 0; i < info.buffer_count; ++i) {
        flexc_buffer_info buffer = {};
        buffer.struct_size = sizeof buffer;
        if (flexc_signature_buffer(made, i, &buffer, &error) != FLEXC_OK) return raise(error);
        const Object dims = texts(buffer.dims, buffer.dim_count);
        const Object grad = boolean(buffer.grad);
        if (!dims || !append(buffers, Object::take(Py_BuildValue("(ssOO)", buffer.name,
                                                                 flexc_dtype_name(buffer.dtype),
                                                                 dims.get(), grad.get()))))
            return nullptr;
    }
    for (std::size_t i = 0; i < info.param_count; ++i) {
        flexc_param_info param = {};
        param.struct_size = sizeof param;
        if (flexc_signature_param(made, i, &param, &error) != FLEXC_OK) return raise(error);
        const Object value = param.has_default != 0
                                 ? Object::take(PyFloat_FromDouble(param.default_value))
                                 : Object::share(Py_None);
        if (!append(params,
                    Object::take(Py_BuildValue("(ssO)", param.name, param.type, value.get()))))
            return nullptr;
    }
    const Object sizes =
        texts_at(info.size_count, [&](std::size_t i) { return flexc_signature_size(made, i); });
    const Object mask_sizes = texts_at(
        info.mask_size_count, [&](std::size_t i) { return flexc_signature_mask_size(made, i); });
    const Object warnings = texts_at(
        info.warning_count, [&](std::size_t i) { return flexc_signature_warning(made, i); });
    if (!buffers || !params || !sizes || !mask_sizes || !warnings) return nullptr;
    return Py_BuildValue("{s:O,s:O,s:O,s:O,s:O,s:s,s:s,s:s}", "buffers", buffers.get(), "params",
                         params.get(), "sizes", sizes.get(), "mask_sizes", mask_sizes.get(),
                         "warnings", warnings.get(), "score_depends_on", info.score_depends_on,
                         "mask_depends_on", info.mask_depends_on, "sink_depends_on",
                         info.sink_depends_on);
}

PyObject* explain(PyObject*, PyObject* arguments) {
    PyObject *text = nullptr, *dict = nullptr;
    const char *stage = nullptr, *arch = nullptr;
    if (PyArg_ParseTuple(arguments, "UsOz", &text, &stage, &dict, &arch) == 0) return nullptr;
    std::string source;
    CompileOptions options;
    if (!read_text(text, source) || !options.read(dict)) return nullptr;
    flexc_text* made = nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_explain(source.c_str(), stage, options.get(), arch, &made, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    const Owned<flexc_text, flexc_text_free> explanation(made);
    return PyUnicode_FromStringAndSize(flexc_text_data(made),
                                       static_cast<Py_ssize_t>(flexc_text_size(made)));
}

PyObject* supports(PyObject*, PyObject* arguments) {
    PyObject *text = nullptr, *dict = nullptr;
    const char* arch = nullptr;
    if (PyArg_ParseTuple(arguments, "UOz", &text, &dict, &arch) == 0) return nullptr;
    std::string source;
    CompileOptions options;
    if (!read_text(text, source) || !options.read(dict)) return nullptr;
    flexc_error* error = nullptr;
    if (flexc_supports(source.c_str(), options.get(), arch, &error) != FLEXC_OK)
        return raise(error);
    Py_RETURN_NONE;
}

// (text, options, sizes, buffer names, buffers, (queries, keys), params)
PyObject* mask_map(PyObject*, PyObject* arguments) {
    PyObject *text = nullptr, *dict = nullptr, *names = nullptr, *arrays = nullptr,
             *params = nullptr;
    long long batch = 0, heads = 0, kv_heads = 0, q_len = 0, kv_len = 0, queries = 0, keys = 0;
    if (PyArg_ParseTuple(arguments, "UO(LLLLL)O!O!(LL)O!", &text, &dict, &batch, &heads, &kv_heads,
                         &q_len, &kv_len, &PyTuple_Type, &names, &PyTuple_Type, &arrays, &queries,
                         &keys, &PyDict_Type, &params) == 0)
        return nullptr;
    std::string source;
    CompileOptions options;
    if (!read_text(text, source) || !options.read(dict)) return nullptr;
    flexc_sizes sizes = {sizeof sizes, 0, batch, heads, kv_heads, q_len, kv_len};
    flexc_mask_tile tile = {sizeof tile, 0, queries, keys};
    Tensors tensors(Py_None);
    const auto count = static_cast<std::size_t>(PyTuple_Size(names));
    if (static_cast<Py_ssize_t>(count) != PyTuple_Size(arrays)) {
        PyErr_SetString(PyExc_ValueError, "each buffer needs a name");
        return nullptr;
    }
    std::vector<std::string> buffer_names(count);
    std::vector<flexc_tensor> buffers(count);
    std::vector<flexc_named_tensor> named;
    for (std::size_t i = 0; i < count; ++i) {
        const auto at = static_cast<Py_ssize_t>(i);
        if (!read_text(PyTuple_GetItem(names, at), buffer_names[i]) ||
            !tensors.read(PyTuple_GetItem(arrays, at), buffer_names[i].c_str(), false, buffers[i]))
            return nullptr;
        named.push_back({sizeof(flexc_named_tensor), 0, buffer_names[i].c_str(), &buffers[i]});
    }
    if (tensors.device() == FLEXC_DEVICE_CUDA)
        return raise(FLEXC_ERROR_INVALID_OPTION, "buffers of a mask's picture are in host memory");
    std::vector<std::string> param_names;
    std::vector<flexc_param_value> values;
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(params, &at, &key, &value) != 0) {
        if (!read_text(key, param_names.emplace_back())) return nullptr;
        values.push_back({sizeof(flexc_param_value), 0, nullptr, PyFloat_AsDouble(value)});
        if (PyErr_Occurred() != nullptr) return nullptr;
    }
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i].name = param_names[i].c_str();
    flexc_plan_options plan = {};
    plan.struct_size = sizeof plan;
    plan.params = values.data();
    plan.param_count = values.size();
    flexc_mask_map* made = nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_mask_map_create(source.c_str(), options.get(), &sizes, named.data(),
                                       named.size(), &tile, &plan, &made, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    const Owned<flexc_mask_map, flexc_mask_map_free> map(made);
    flexc_mask_info info = {};
    info.struct_size = sizeof info;
    if (flexc_mask_map_get(made, &info, &error) != FLEXC_OK) return raise(error);
    return Py_BuildValue("((LLLL)s)", static_cast<long long>(info.batches),
                         static_cast<long long>(info.heads),
                         static_cast<long long>(info.query_tiles),
                         static_cast<long long>(info.key_tiles), info.tiles);
}

PyObject* library(PyObject*, PyObject*) {
    flexc_library* made = nullptr;
    flexc_error* error = nullptr;
    if (flexc_library_create(&made, &error) != FLEXC_OK) return raise(error);
    const Owned<flexc_library, flexc_library_free> all(made);
    Object list = Object::take(PyList_New(0));
    for (std::size_t i = 0; i < flexc_library_count(made); ++i) {
        flexc_library_entry entry = {};
        entry.struct_size = sizeof entry;
        if (flexc_library_get(made, i, &entry, &error) != FLEXC_OK) return raise(error);
        if (!append(list, library_entry(entry))) return nullptr;
    }
    return list.release();
}

PyObject* library_mod(PyObject*, PyObject* arguments) {
    const char* name = nullptr;
    if (PyArg_ParseTuple(arguments, "s", &name) == 0) return nullptr;
    flexc_library* made = nullptr;
    flexc_error* error = nullptr;
    if (flexc_library_create(&made, &error) != FLEXC_OK) return raise(error);
    const Owned<flexc_library, flexc_library_free> all(made);
    flexc_library_entry entry = {};
    entry.struct_size = sizeof entry;
    if (flexc_library_find(made, name, &entry, &error) != FLEXC_OK) return raise(error);
    return library_entry(entry).release();
}

PyObject* cache(PyObject*, PyObject* arguments) {
    PyObject* dict = nullptr;
    if (PyArg_ParseTuple(arguments, "O", &dict) == 0) return nullptr;
    CompileOptions options;
    if (!options.read(dict)) return nullptr;
    flexc_cache_info info = {};
    info.struct_size = sizeof info;
    flexc_error* error = nullptr;
    if (flexc_cache_get(options.get(), &info, &error) != FLEXC_OK) return raise(error);
    Object directory = Object::share(Py_None);
    if (info.has_directory != 0) {
        flexc_text* text = nullptr;
        if (flexc_cache_directory(options.get(), &text, &error) != FLEXC_OK) return raise(error);
        directory = Object::take(PyUnicode_DecodeFSDefault(flexc_text_data(text)));
        flexc_text_free(text);
        if (!directory) return nullptr;
    }
    const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
    return Py_BuildValue("{s:O,s:K,s:K,s:K,s:K,s:K,s:K,s:K}", "directory", directory.get(),
                         "memory_hits", number(info.memory_hits), "disk_hits",
                         number(info.disk_hits), "misses", number(info.misses), "corrupt",
                         number(info.corrupt), "evicted", number(info.evicted), "disk_entries",
                         number(info.disk_entries), "disk_bytes", number(info.disk_bytes));
}

PyObject* clear_cache(PyObject*, PyObject* arguments) {
    PyObject* dict = nullptr;
    if (PyArg_ParseTuple(arguments, "O", &dict) == 0) return nullptr;
    CompileOptions options;
    if (!options.read(dict)) return nullptr;
    flexc_error* error = nullptr;
    if (flexc_cache_clear(options.get(), &error) != FLEXC_OK) return raise(error);
    Py_RETURN_NONE;
}

PyObject* doctor(PyObject*, PyObject*) {
    flexc_doctor* made = nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_doctor_create(&made, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    const Owned<flexc_doctor, flexc_doctor_free> findings(made);
    Object list = Object::take(PyList_New(0));
    for (std::size_t i = 0; i < flexc_doctor_count(made); ++i) {
        flexc_finding finding = {};
        finding.struct_size = sizeof finding;
        if (flexc_doctor_get(made, i, &finding, &error) != FLEXC_OK) return raise(error);
        const Object found = boolean(finding.found);
        if (!append(list, Object::take(Py_BuildValue("(sOss)", finding.what, found.get(),
                                                     finding.detail, finding.remedy))))
            return nullptr;
    }
    return list.release();
}

PyObject* default_device(PyObject*, PyObject*) {
    std::int32_t device = 0, index = 0;
    flexc_error* error = nullptr;
    if (flexc_default_device(&device, &index, &error) != FLEXC_OK) return raise(error);
    return Py_BuildValue("(ii)", device, index);
}

PyObject* synchronize(PyObject*, PyObject* arguments) {
    int device = 0, index = 0;
    if (PyArg_ParseTuple(arguments, "ii", &device, &index) == 0) return nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_synchronize(device, index, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    Py_RETURN_NONE;
}

} // namespace flexc::python
