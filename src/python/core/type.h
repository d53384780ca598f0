// Types of the module: made from their specs, with objects that only the module makes.
#pragma once

#include "object.h"

namespace flexc::python {

inline bool add_type(PyObject* module, PyType_Spec& spec, const char* name, PyTypeObject*& type) {
    PyObject* made = PyType_FromSpec(&spec);
    if (made == nullptr) return false;
    type = reinterpret_cast<PyTypeObject*>(made);
    return PyObject_SetAttrString(module, name, made) == 0;
}

// An object of the type, all zeros. nullptr: there is an exception.
inline PyObject* allocate(PyTypeObject* type) {
    return reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

inline void free_object(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    auto* release = reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free));
    release(self);
    Py_DECREF(reinterpret_cast<PyObject*>(type));
}

} // namespace flexc::python
