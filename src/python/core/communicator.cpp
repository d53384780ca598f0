#include "communicator.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "error.h"
#include "type.h"

namespace flexc::python {

namespace {

struct CommunicatorObject {
    PyObject_HEAD flexc_communicator* communicator;
    bool is_in_call; // changed under Python's lock
};

PyTypeObject* communicator_type = nullptr;

CommunicatorObject& fields(PyObject* self) { return *reinterpret_cast<CommunicatorObject*>(self); }

// Owns the communicator, also where it fails.
PyObject* make_object(flexc_communicator* communicator) {
    PyObject* made = allocate(communicator_type);
    if (made == nullptr)
        flexc_communicator_free(communicator);
    else
        fields(made).communicator = communicator;
    return made;
}

// Other ranks may be waited for.
void free_communicator(PyObject* self) {
    {
        const WithoutLock unlocked;
        flexc_communicator_free(fields(self).communicator);
    }
    free_object(self);
}

PyObject* no_constructor(PyTypeObject*, PyObject*, PyObject*) {
    PyErr_SetString(PyExc_TypeError, "functions of flexc.distributed make communicators");
    return nullptr;
}

PyObject* rank_of(PyObject* self, void*) {
    return PyLong_FromLong(flexc_communicator_rank(fields(self).communicator));
}

PyObject* ranks_of(PyObject* self, void*) {
    return PyLong_FromLong(flexc_communicator_ranks(fields(self).communicator));
}

// Instead of this rank's part in a call.
void tell(const flexc_communicator* communicator, const char* why) {
    flexc_error* error = nullptr; // what the others get too
    {
        const WithoutLock unlocked;
        flexc_communicator_refuse(communicator, why, &error);
    }
    flexc_error_free(error);
}

// refuse(why)
PyObject* refuse(PyObject* self, PyObject* arguments) {
    const char* why = nullptr;
    if (PyArg_ParseTuple(arguments, "s", &why) == 0) return nullptr;
    const RankCall call(self);
    if (!call.has_begun()) return nullptr;
    tell(call.communicator(), why);
    Py_RETURN_NONE;
}

flexc_communicator_options options_of(double timeout_seconds) {
    return {sizeof(flexc_communicator_options), 0, timeout_seconds};
}

// open(options, &communicator, &error) waits for the other ranks.
template <typename Open> PyObject* opened(double timeout_seconds, Open open) {
    const flexc_communicator_options options = options_of(timeout_seconds);
    flexc_communicator* communicator = nullptr;
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = open(&options, &communicator, &error);
    }
    return status == FLEXC_OK ? make_object(communicator) : raise(error);
}

PyMethodDef methods[] = {{"refuse", refuse, METH_VARARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyGetSetDef values[] = {{"rank", rank_of, nullptr, nullptr, nullptr},
                        {"ranks", ranks_of, nullptr, nullptr, nullptr},
                        {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_communicator)},
                       {Py_tp_new, reinterpret_cast<void*>(no_constructor)},
                       {Py_tp_methods, methods},
                       {Py_tp_getset, values},
                       {0, nullptr}};
PyType_Spec spec = {"flexc._core.Communicator", sizeof(CommunicatorObject), 0, Py_TPFLAGS_DEFAULT,
                    slots};

} // namespace

bool add_communicator_type(PyObject* module) {
    return add_type(module, spec, "Communicator", communicator_type);
}

RankCall::RankCall(PyObject* communicator) {
    if (Py_TYPE(communicator) != communicator_type) {
        PyErr_SetString(PyExc_TypeError, "communicator: one of flexc.distributed is wanted");
    } else if (fields(communicator).is_in_call) {
        raise(FLEXC_ERROR_INVALID_OPTION,
              "another thread is in a call of this communicator, which is for one at a time");
    } else {
        communicator_ = communicator;
        fields(communicator).is_in_call = true;
    }
}

RankCall::~RankCall() {
    if (communicator_ != nullptr) fields(communicator_).is_in_call = false;
}

const flexc_communicator* RankCall::communicator() const {
    return fields(communicator_).communicator;
}

PyObject* RankCall::refuse() const {
    PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    std::string why;
    const Object text = value == nullptr ? Object() : Object::take(PyObject_Str(value));
    if (!text || !read_text(text.get(), why)) {
        PyErr_Clear();
        why = "this rank's arguments cannot be read";
    }
    tell(communicator(), why.c_str());
    PyErr_Restore(type, value, trace);
    return nullptr;
}

PyObject* mpi_communicator(PyObject*, PyObject* arguments) {
    PyObject* handle = nullptr;
    double timeout = 0;
    if (PyArg_ParseTuple(arguments, "Od", &handle, &timeout) == 0) return nullptr;
    // A 32-bit MPI_Comm is in the first four bytes.
    std::uint64_t comm = 0;
    if (handle != Py_None) comm = PyLong_AsUnsignedLongLongMask(handle);
    if (PyErr_Occurred() != nullptr) return nullptr;
    return opened(timeout, [&](const auto* options, auto** communicator, auto** error) {
        return flexc_mpi_communicator(handle == Py_None ? nullptr : &comm, options, communicator,
                                      error);
    });
}

PyObject* nccl_id(PyObject*, PyObject*) {
    flexc_nccl_id id = {};
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_nccl_make_id(&id, &error);
    }
    if (status != FLEXC_OK) return raise(error);
    return PyBytes_FromStringAndSize(reinterpret_cast<const char*>(id.bytes), sizeof id.bytes);
}

PyObject* nccl_communicator(PyObject*, PyObject* arguments) {
    PyObject* of = nullptr;
    int rank = 0, ranks = 0, device_index = 0;
    double timeout = 0;
    if (PyArg_ParseTuple(arguments, "Oiiid", &of, &rank, &ranks, &device_index, &timeout) == 0)
        return nullptr;
    if (PyBytes_Check(of) == 0) {
        std::string path;
        if (!read_text(of, path)) return nullptr;
        return opened(timeout, [&](const auto* options, auto** communicator, auto** error) {
            return flexc_nccl_communicator_by_file(path.c_str(), rank, ranks, device_index, options,
                                                   communicator, error);
        });
    }
    flexc_nccl_id id = {};
    char* bytes = nullptr;
    Py_ssize_t size = 0;
    if (PyBytes_AsStringAndSize(of, &bytes, &size) != 0) return nullptr;
    if (size != sizeof id.bytes)
        return raise(FLEXC_ERROR_INVALID_OPTION,
                     "an id of NCCL is 128 bytes, not " + std::to_string(size));
    std::memcpy(id.bytes, bytes, sizeof id.bytes);
    return opened(timeout, [&](const auto* options, auto** communicator, auto** error) {
        return flexc_nccl_communicator(&id, rank, ranks, device_index, options, communicator,
                                       error);
    });
}

PyObject* nccl_communicator_of(PyObject*, PyObject* arguments) {
    PyObject* address = nullptr;
    double timeout = 0;
    if (PyArg_ParseTuple(arguments, "Od", &address, &timeout) == 0) return nullptr;
    void* comm = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred() != nullptr) return nullptr;
    return opened(timeout, [&](const auto* options, auto** communicator, auto** error) {
        return flexc_nccl_communicator_of(comm, options, communicator, error);
    });
}

PyObject* in_process_communicators(PyObject*, PyObject* arguments) {
    int ranks = 0;
    double timeout = 0;
    if (PyArg_ParseTuple(arguments, "id", &ranks, &timeout) == 0) return nullptr;
    const flexc_communicator_options options = options_of(timeout);
    std::vector<flexc_communicator*> made(static_cast<std::size_t>(std::max(ranks, 1)));
    flexc_error* error = nullptr;
    if (flexc_in_process_communicators(ranks, &options, made.data(), &error) != FLEXC_OK)
        return raise(error);
    Object list = Object::take(PyList_New(0));
    for (int rank = 0; rank < ranks; ++rank) {
        const Object one = Object::take(make_object(made[static_cast<std::size_t>(rank)]));
        if (!one || (list && PyList_Append(list.get(), one.get()) != 0)) list = {};
    }
    return list.release();
}

PyObject* torchrun_rank(PyObject*, PyObject*) {
    flexc_launched_rank launched = {};
    launched.struct_size = sizeof launched;
    flexc_error* error = nullptr;
    if (flexc_torchrun_rank(&launched, &error) != FLEXC_OK) return raise(error);
    return Py_BuildValue("(iii)", launched.rank, launched.ranks, launched.local_rank);
}

} // namespace flexc::python
