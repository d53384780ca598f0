#include "options.h"

namespace flexc::python {

namespace {

struct IntegerField {
    const char* name;
    int32_t flexc_compile_options::* field;
};
constexpr IntegerField kIntegers[] = {
    {"head_dim", &flexc_compile_options::head_dim},
    {"head_dim_v", &flexc_compile_options::head_dim_v},
    {"device", &flexc_compile_options::device},
    {"device_index", &flexc_compile_options::device_index},
    {"forward_only", &flexc_compile_options::forward_only},
    {"backward_kernel", &flexc_compile_options::backward_kernel},
    {"forward_kernel", &flexc_compile_options::forward_kernel},
    {"deterministic", &flexc_compile_options::deterministic},
    {"part_of_heads", &flexc_compile_options::part_of_heads},
    {"query_layout", &flexc_compile_options::query_layout},
    {"key_layout", &flexc_compile_options::key_layout},
    {"batch_invariant", &flexc_compile_options::batch_invariant},
    {"max_scores", &flexc_compile_options::max_scores},
    {"report_out_of_range", &flexc_compile_options::report_out_of_range},
    {"no_memory_cache", &flexc_compile_options::no_memory_cache},
    {"no_disk_cache", &flexc_compile_options::no_disk_cache},
    {"gradient_type", &flexc_compile_options::gradient_type},
};

struct TextField {
    const char* name;
    const char* flexc_compile_options::* field;
};
constexpr TextField kTexts[] = {
    {"cache_directory", &flexc_compile_options::cache_directory},
    {"source_name", &flexc_compile_options::source_name},
    {"mask_mod", &flexc_compile_options::mask_mod},
    {"sink", &flexc_compile_options::sink},
    {"schedule", &flexc_compile_options::schedule},
    {"pack", &flexc_compile_options::pack},
};

bool read_dtype(PyObject* object, int32_t& dtype) {
    std::string name;
    if (!read_text(object, name)) return false;
    dtype = flexc_dtype_of(name.c_str());
    if (dtype != FLEXC_DEFAULT_DTYPE) return true;
    PyErr_Format(PyExc_ValueError, "there is no type '%s'", name.c_str());
    return false;
}

bool read_integer(PyObject* object, int32_t& value) {
    const long long wide = PyLong_AsLongLong(object);
    if (wide == -1 && PyErr_Occurred() != nullptr) return false;
    value = static_cast<int32_t>(wide);
    if (value == wide) return true;
    PyErr_SetString(PyExc_OverflowError, "an option's number does not fit in 32 bits");
    return false;
}

} // namespace

const char* CompileOptions::keep(PyObject* text) {
    std::string& kept = texts_.emplace_back();
    return read_text(text, kept) ? kept.c_str() : nullptr;
}

void CompileOptions::write(void* user, int32_t level, const char* text, size_t length) {
    auto& self = *static_cast<CompileOptions*>(user);
    const std::lock_guard lock(self.mutex_);
    self.messages_.emplace_back(level, std::string(text, length));
}

bool CompileOptions::read(PyObject* dict) {
    options_.struct_size = sizeof options_;
    options_.log = &CompileOptions::write;
    options_.log_user = this;
    if (dict == Py_None) return true;
    PyObject *key = nullptr, *value = nullptr;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, &value) != 0) {
        std::string name;
        if (!read_text(key, name)) return false;
        if (value != Py_None && !read_value(name, value)) return false;
    }
    return true;
}

bool CompileOptions::read_value(const std::string& name, PyObject* value) {
    for (const IntegerField& entry : kIntegers)
        if (name == entry.name) return read_integer(value, options_.*entry.field);
    for (const TextField& entry : kTexts)
        if (name == entry.name) return (options_.*entry.field = keep(value)) != nullptr;
    if (name == "dtype") return read_dtype(value, options_.dtype);
    if (name == "kv_dtype") return read_dtype(value, options_.kv_dtype);
    if (name == "buffers") return read_buffers(value);
    if (name == "params") return read_params(value);
    if (name == "max_compile_seconds") {
        options_.max_compile_seconds = PyFloat_AsDouble(value);
        return PyErr_Occurred() == nullptr;
    }
    if (name == "max_compile_memory" || name == "cache_max_bytes") {
        const unsigned long long bytes = PyLong_AsUnsignedLongLong(value);
        (name == "cache_max_bytes" ? options_.cache_max_bytes : options_.max_compile_memory) =
            bytes;
        return PyErr_Occurred() == nullptr;
    }
    PyErr_Format(PyExc_TypeError, "there is no option '%s'", name.c_str());
    return false;
}

// (name, type, dims, grad) for each.
bool CompileOptions::read_buffers(PyObject* sequence) {
    const Py_ssize_t count = PySequence_Size(sequence);
    if (count < 0) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
        const Object entry = Object::take(PySequence_GetItem(sequence, i));
        PyObject *name = nullptr, *type = nullptr, *dims = nullptr;
        flexc_buffer_declaration buffer = {};
        buffer.struct_size = sizeof buffer;
        if (!entry || !PyArg_ParseTuple(entry.get(), "UUO!p;a buffer is (name, type, dims, grad)",
                                        &name, &type, &PyTuple_Type, &dims, &buffer.grad))
            return false;
        buffer.name = keep(name);
        if (buffer.name == nullptr || !read_dtype(type, buffer.dtype)) return false;
        auto& texts = dims_.emplace_back();
        for (Py_ssize_t d = 0; d < PyTuple_Size(dims); ++d) {
            texts.push_back(keep(PyTuple_GetItem(dims, d)));
            if (texts.back() == nullptr) return false;
        }
        buffer.dims = texts.data();
        buffer.dim_count = texts.size();
        buffers_.push_back(buffer);
    }
    options_.buffers = buffers_.data();
    options_.buffer_count = buffers_.size();
    return true;
}

// (name, type, value) for each.
bool CompileOptions::read_params(PyObject* sequence) {
    const Py_ssize_t count = PySequence_Size(sequence);
    if (count < 0) return false;
    for (Py_ssize_t i = 0; i < count; ++i) {
        const Object entry = Object::take(PySequence_GetItem(sequence, i));
        PyObject *name = nullptr, *type = nullptr;
        flexc_param_declaration param = {};
        param.struct_size = sizeof param;
        if (!entry || !PyArg_ParseTuple(entry.get(), "UUd;a param is (name, type, value)", &name,
                                        &type, &param.value))
            return false;
        param.name = keep(name);
        if (param.name == nullptr || !read_dtype(type, param.dtype)) return false;
        params_.push_back(param);
    }
    options_.params = params_.data();
    options_.param_count = params_.size();
    return true;
}

Object CompileOptions::messages() const {
    Object list = Object::take(PyList_New(0));
    for (const auto& [level, text] : messages_) {
        const Object entry =
            Object::take(Py_BuildValue("(is#)", level, text.data(), Py_ssize_t(text.size())));
        if (!list || !entry || PyList_Append(list.get(), entry.get()) != 0) return {};
    }
    return list;
}

} // namespace flexc::python
