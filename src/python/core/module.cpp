// flexc._core: the C interface as Python calls it. flexc's own modules are its only users.
#include "communicator.h"
#include "distributed.h"
#include "error.h"
#include "flexc/flexc_c.h"
#include "jax.h"
#include "kernel.h"
#include "memo.h"
#include "merge.h"
#include "shards.h"
#include "tools.h"

namespace flexc::python {

namespace {

PyObject* set_errors(PyObject*, PyObject* arguments) {
    PyObject* factory = nullptr;
    if (PyArg_ParseTuple(arguments, "O", &factory) == 0) return nullptr;
    set_error_factory(factory);
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"jax_handlers", jax_handlers, METH_NOARGS, nullptr},
    {"set_errors", set_errors, METH_VARARGS, nullptr},
    {"compile", compile, METH_VARARGS, nullptr},
    {"check", check, METH_VARARGS, nullptr},
    {"explain", explain, METH_VARARGS, nullptr},
    {"supports", supports, METH_VARARGS, nullptr},
    {"mask_map", mask_map, METH_VARARGS, nullptr},
    {"library", library, METH_NOARGS, nullptr},
    {"library_mod", library_mod, METH_VARARGS, nullptr},
    {"cache", cache, METH_VARARGS, nullptr},
    {"clear_cache", clear_cache, METH_VARARGS, nullptr},
    {"merge_states", merge_states, METH_VARARGS, nullptr},
    {"doctor", doctor, METH_NOARGS, nullptr},
    {"default_device", default_device, METH_NOARGS, nullptr},
    {"synchronize", synchronize, METH_VARARGS, nullptr},
    {"shards", shards, METH_VARARGS, nullptr},
    {"shards_of", shards_of, METH_VARARGS, nullptr},
    {"mpi_communicator", mpi_communicator, METH_VARARGS, nullptr},
    {"nccl_id", nccl_id, METH_NOARGS, nullptr},
    {"nccl_communicator", nccl_communicator, METH_VARARGS, nullptr},
    {"nccl_communicator_of", nccl_communicator_of, METH_VARARGS, nullptr},
    {"in_process_communicators", in_process_communicators, METH_VARARGS, nullptr},
    {"torchrun_rank", torchrun_rank, METH_NOARGS, nullptr},
    {"compile_distributed", compile_distributed, METH_VARARGS, nullptr},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "flexc._core",
                          nullptr,
                          -1,
                          functions,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

} // namespace

} // namespace flexc::python

PyMODINIT_FUNC PyInit__core(void) {
    using namespace flexc::python;
    if (flexc_abi_version() != FLEXC_ABI_VERSION) {
        PyErr_SetString(PyExc_ImportError, "flexc._core is of another version than libflexc");
        return nullptr;
    }
    Object module = Object::take(PyModule_Create(&definition));
    if (!module || !add_kernel_types(module.get()) || !add_memo_type(module.get()) ||
        !add_communicator_type(module.get()) || !add_distributed_types(module.get()) ||
        PyModule_AddStringConstant(module.get(), "version", flexc_version()) != 0)
        return nullptr;
    return module.release();
}
