#include "tensor.h"

#include <cstring>
#include <string_view>

#include "dlpack.h"

namespace flexc::python {

namespace {

std::int32_t dtype_of(dlpack::DataType type) {
    if (type.lanes != 1) return FLEXC_DEFAULT_DTYPE;
    switch (type.code) {
    case dlpack::kFloat:
        return type.bits == 64   ? FLEXC_F64
               : type.bits == 32 ? FLEXC_F32
               : type.bits == 16 ? FLEXC_F16
                                 : FLEXC_DEFAULT_DTYPE;
    case dlpack::kBfloat: return type.bits == 16 ? FLEXC_BF16 : FLEXC_DEFAULT_DTYPE;
    case dlpack::kInt:
        return type.bits == 64   ? FLEXC_I64
               : type.bits == 32 ? FLEXC_I32
               : type.bits == 16 ? FLEXC_I16
               : type.bits == 8  ? FLEXC_I8
                                 : FLEXC_DEFAULT_DTYPE;
    case dlpack::kUInt: return type.bits == 8 ? FLEXC_U8 : FLEXC_DEFAULT_DTYPE;
    case dlpack::kBool: return type.bits == 8 ? FLEXC_BOOL : FLEXC_DEFAULT_DTYPE;
    case dlpack::kE4m3: return type.bits == 8 ? FLEXC_E4M3 : FLEXC_DEFAULT_DTYPE;
    case dlpack::kE5m2: return type.bits == 8 ? FLEXC_E5M2 : FLEXC_DEFAULT_DTYPE;
    default: return FLEXC_DEFAULT_DTYPE;
    }
}

bool refuse(PyObject* type, const char* name, const char* why) {
    PyErr_Format(type, "%s: %s", name, why);
    return false;
}

bool read_dlpack(const dlpack::Tensor& from, const char* name, flexc_tensor& tensor) {
    tensor.dtype = dtype_of(from.dtype);
    if (tensor.dtype == FLEXC_DEFAULT_DTYPE)
        return refuse(
            PyExc_TypeError, name,
            "elements must be f64, f32, f16, bf16, i64, i32, i16, i8, u8, bool, e4m3 or e5m2");
    if (from.rank < 0 || from.rank > FLEXC_MAX_DIMS)
        return refuse(PyExc_ValueError, name, "an array has at most 8 dims");
    tensor.data = static_cast<char*>(from.data) + from.byte_offset;
    tensor.rank = from.rank;
    tensor.has_strides = from.strides == nullptr ? 0 : 1;
    for (std::int32_t i = 0; i < from.rank; ++i) {
        tensor.shape[i] = from.shape[i];
        if (from.strides != nullptr) tensor.strides[i] = from.strides[i];
    }
    return true;
}

void make_read_only(flexc_tensor& tensor) {
    tensor.const_data = tensor.data;
    tensor.data = nullptr;
}

// The exchange functions of a type, which are looked for once. Types that have them live as long
// as the process.
const dlpack::Exchange* exchange_of(PyTypeObject* type) {
    struct Known {
        PyTypeObject* type;
        const dlpack::Exchange* exchange;
    };
    static Known known[8];
    static std::size_t next = 0;
    for (const Known& entry : known)
        if (entry.type == type) return entry.exchange;
    const dlpack::Exchange* found = nullptr;
    const Object capsule = Object::take(
        PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__"));
    if (!capsule)
        PyErr_Clear();
    else if (PyCapsule_IsValid(capsule.get(), "dlpack_exchange_api"))
        found = static_cast<const dlpack::Exchange*>(
            PyCapsule_GetPointer(capsule.get(), "dlpack_exchange_api"));
    const dlpack::ExchangeHeader* header = found == nullptr ? nullptr : &found->header;
    while (header != nullptr && header->version.major != 1)
        header = header->older;
    found = reinterpret_cast<const dlpack::Exchange*>(header);
    if (found == nullptr) return nullptr; // such types may end
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    known[next++ % std::size(known)] = {type, found};
    return found;
}

// "<f4" and its like; what NumPy has no letter for, it says by the name of the dtype.
std::int32_t dtype_of_interface(PyObject* array, std::string_view kind) {
    if (kind.size() < 3 || kind[0] == '>') return FLEXC_DEFAULT_DTYPE;
    const std::string_view letters = kind.substr(1);
    constexpr std::pair<std::string_view, std::int32_t> kKinds[] = {
        {"f4", FLEXC_F32}, {"f2", FLEXC_F16}, {"f8", FLEXC_F64},
        {"i8", FLEXC_I64}, {"i4", FLEXC_I32}, {"i2", FLEXC_I16},
        {"i1", FLEXC_I8},  {"u1", FLEXC_U8},  {"b1", FLEXC_BOOL}};
    for (const auto& [letter, dtype] : kKinds)
        if (letter == letters) return dtype;
    if (letters != "V2") return FLEXC_DEFAULT_DTYPE;
    const Object dtype = Object::take(PyObject_GetAttrString(array, "dtype"));
    const Object name =
        dtype ? Object::take(PyObject_GetAttrString(dtype.get(), "name")) : Object();
    std::string text;
    if (name && read_text(name.get(), text) && text == "bfloat16") return FLEXC_BF16;
    PyErr_Clear();
    return FLEXC_DEFAULT_DTYPE;
}

bool read_integers(PyObject* tuple, std::int64_t* values, std::int32_t& count) {
    const Py_ssize_t size = PyTuple_Size(tuple);
    if (size < 0) return false;
    if (size > FLEXC_MAX_DIMS) {
        PyErr_SetString(PyExc_ValueError, "an array has at most 8 dims");
        return false;
    }
    for (Py_ssize_t i = 0; i < size; ++i)
        values[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
    count = static_cast<std::int32_t>(size);
    return PyErr_Occurred() == nullptr;
}

// Whose type says that it is NumPy's: others have an __array_interface__ that copies.
bool is_numpy(PyObject* array) {
    static PyTypeObject* known = nullptr;
    if (Py_TYPE(array) == known) return true;
    const Object module = Object::take(
        PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(array)), "__module__"));
    std::string text;
    const bool is =
        module && PyUnicode_Check(module.get()) && read_text(module.get(), text) && text == "numpy";
    PyErr_Clear();
    if (is && known == nullptr) {
        Py_INCREF(reinterpret_cast<PyObject*>(Py_TYPE(array)));
        known = Py_TYPE(array);
    }
    return is;
}

} // namespace

bool current_stream(const dlpack::Exchange& library, std::int32_t device_index, void*& handle) {
    return library.current_stream(dlpack::kCuda, device_index, &handle) == 0;
}

bool Tensors::see_device(const char* name, std::int32_t type, std::int32_t id) {
    const std::int32_t kind = type == dlpack::kCpu || type == dlpack::kCudaHost ? FLEXC_DEVICE_CPU
                              : type == dlpack::kCuda || type == dlpack::kCudaManaged
                                  ? FLEXC_DEVICE_CUDA
                                  : FLEXC_DEVICE_AUTOMATIC;
    if (kind == FLEXC_DEVICE_AUTOMATIC)
        return refuse(PyExc_ValueError, name, "must be on the CPU or on a CUDA device");
    const std::int32_t index = kind == FLEXC_DEVICE_CPU ? 0 : id;
    if (device_ == FLEXC_DEVICE_AUTOMATIC) {
        device_ = kind;
        device_index_ = index;
    } else if (device_ != kind || device_index_ != index) {
        return refuse(PyExc_ValueError, name, "is on another device than the arrays before it");
    }
    return true;
}

bool Tensors::see_host(const char* name) { return see_device(name, dlpack::kCpu, 0); }

bool Tensors::read(PyObject* array, const char* name, bool written, flexc_tensor& tensor) {
    tensor = {};
    tensor.struct_size = sizeof tensor;
    if (array == Py_None) return true;
    bool done = false;
    if (!read_exchange(array, name, tensor, done)) return false;
    if (done) return true;
    if (!read_interface(array, name, written, tensor, done)) return false;
    if (done) return true;
    return read_capsule(array, name, written, tensor);
}

bool Tensors::read_exchange(PyObject* array, const char* name, flexc_tensor& tensor, bool& done) {
    const dlpack::Exchange* exchange = exchange_of(Py_TYPE(array));
    if (exchange == nullptr || exchange->tensor_from_object == nullptr) return true;
    dlpack::Tensor from{};
    if (exchange->tensor_from_object(array, &from) != 0) {
        // The other way may do, or says what is wrong.
        PyErr_Clear();
        return true;
    }
    if (!see_device(name, from.device.type, from.device.id)) return false;
    if (library_ == nullptr) library_ = exchange;
    if (device_ == FLEXC_DEVICE_CUDA && !has_found_stream_ && stream_ == Py_None) {
        if (exchange->current_stream(from.device.type, from.device.id, &found_stream_) != 0)
            return false;
        has_found_stream_ = true;
    }
    done = true;
    return read_dlpack(from, name, tensor);
}

bool Tensors::read_interface(PyObject* array, const char* name, bool written, flexc_tensor& tensor,
                             bool& done) {
    if (!is_numpy(array)) return true;
    const Object interface = Object::take(PyObject_GetAttrString(array, "__array_interface__"));
    if (!interface) return false;
    done = true;
    PyObject* kind = PyDict_GetItemString(interface.get(), "typestr");
    PyObject* data = PyDict_GetItemString(interface.get(), "data");
    PyObject* shape = PyDict_GetItemString(interface.get(), "shape");
    PyObject* strides = PyDict_GetItemString(interface.get(), "strides");
    std::string kind_text;
    if (kind == nullptr || data == nullptr || shape == nullptr || !PyTuple_Check(data) ||
        !read_text(kind, kind_text))
        return refuse(PyExc_TypeError, name, "is no array");
    tensor.dtype = dtype_of_interface(array, kind_text);
    if (tensor.dtype == FLEXC_DEFAULT_DTYPE)
        return refuse(PyExc_TypeError, name,
                      "elements must be f64, f32, f16, bf16, i64, i32, i16, i8, u8 or bool, in "
                      "this machine's byte order");
    if (!see_device(name, dlpack::kCpu, 0)) return false;
    tensor.data = PyLong_AsVoidPtr(PyTuple_GetItem(data, 0));
    if (PyErr_Occurred()) return false;
    if (!read_integers(shape, tensor.shape, tensor.rank)) return false;
    if (strides != nullptr && strides != Py_None) {
        const auto size = static_cast<std::int64_t>(flexc_dtype_size(tensor.dtype));
        std::int32_t count = 0;
        if (!read_integers(strides, tensor.strides, count)) return false;
        tensor.has_strides = 1;
        for (std::int32_t i = 0; i < count; ++i) {
            if (tensor.strides[i] % size != 0)
                return refuse(PyExc_ValueError, name, "strides must be multiples of an element");
            tensor.strides[i] /= size;
        }
    }
    if (PyObject_IsTrue(PyTuple_GetItem(data, 1)) != 0) {
        if (written) return refuse(PyExc_ValueError, name, "is read-only");
        make_read_only(tensor);
    }
    held_.push_back(Object::share(array));
    return true;
}

bool Tensors::read_capsule(PyObject* array, const char* name, bool written, flexc_tensor& tensor) {
    const Object method = Object::take(PyObject_GetAttrString(array, "__dlpack__"));
    if (!method) {
        PyErr_Clear();
        PyErr_Format(PyExc_TypeError, "%s: an array with __dlpack__ is wanted, not %R", name,
                     reinterpret_cast<PyObject*>(Py_TYPE(array)));
        return false;
    }
    const Object place = Object::take(PyObject_CallMethod(array, "__dlpack_device__", nullptr));
    if (!place) return false;
    int type = 0, id = 0;
    {
        const Object kind = Object::take(PySequence_GetItem(place.get(), 0));
        const Object index = Object::take(PySequence_GetItem(place.get(), 1));
        if (!kind || !index) return false;
        type = static_cast<int>(PyLong_AsLong(kind.get()));
        id = static_cast<int>(PyLong_AsLong(index.get()));
        if (PyErr_Occurred()) return false;
    }
    if (!see_device(name, type, id)) return false;
    const Object arguments = Object::take(PyDict_New());
    const Object none = Object::take(PyTuple_New(0));
    if (!arguments || !none) return false;
    if (device_ == FLEXC_DEVICE_CUDA) {
        // 1 is the default stream, which 0 stands for elsewhere.
        Object stream =
            stream_ == Py_None ? Object::take(PyLong_FromLong(1)) : Object::share(stream_);
        if (PyLong_Check(stream.get()) && PyLong_AsLongLong(stream.get()) == 0)
            stream = Object::take(PyLong_FromLong(1));
        if (!put(arguments.get(), "stream", std::move(stream))) return false;
    }
    const Object plain = Object::take(PyDict_Copy(arguments.get()));
    if (!plain || !put(arguments.get(), "max_version", Object::take(Py_BuildValue("(ii)", 1, 0))))
        return false;
    Object capsule = Object::take(PyObject_Call(method.get(), none.get(), arguments.get()));
    if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) { // older than versions
        PyErr_Clear();
        capsule = Object::take(PyObject_Call(method.get(), none.get(), plain.get()));
    }
    if (!capsule) return false;
    if (PyCapsule_IsValid(capsule.get(), "dltensor_versioned")) {
        const auto* managed = static_cast<const dlpack::ManagedVersioned*>(
            PyCapsule_GetPointer(capsule.get(), "dltensor_versioned"));
        if (managed->version.major != 1)
            return refuse(PyExc_BufferError, name, "is of a version of DLPack that flexc lacks");
        if (!read_dlpack(managed->tensor, name, tensor)) return false;
        if ((managed->flags & dlpack::kReadOnly) != 0) {
            if (written) return refuse(PyExc_ValueError, name, "is read-only");
            make_read_only(tensor);
        }
    } else if (PyCapsule_IsValid(capsule.get(), "dltensor")) {
        const auto* managed =
            static_cast<const dlpack::Managed*>(PyCapsule_GetPointer(capsule.get(), "dltensor"));
        if (!read_dlpack(managed->tensor, name, tensor)) return false;
    } else {
        return refuse(PyExc_TypeError, name, "__dlpack__ gave no DLPack capsule");
    }
    held_.push_back(std::move(capsule)); // which deletes what it holds when it goes
    return true;
}

bool Tensors::stream(void*& handle) {
    handle = found_stream_;
    if (stream_ == Py_None) return true;
    handle = PyLong_AsVoidPtr(stream_);
    return PyErr_Occurred() == nullptr;
}

} // namespace flexc::python
