// What a compiler sees: signatures, explanations, masks, the library, the cache, the machine.
#pragma once

#include "object.h"

namespace flexc::python {

PyObject* check(PyObject* module, PyObject* arguments);          // (text, options) -> dict
PyObject* explain(PyObject* module, PyObject* arguments);        // (text, stage, options, arch)
PyObject* supports(PyObject* module, PyObject* arguments);       // (text, options, arch)
PyObject* mask_map(PyObject* module, PyObject* arguments);       // -> dict
PyObject* library(PyObject* module, PyObject* arguments);        // () -> list of dicts
PyObject* library_mod(PyObject* module, PyObject* arguments);    // (name) -> dict
PyObject* cache(PyObject* module, PyObject* arguments);          // (options) -> dict
PyObject* clear_cache(PyObject* module, PyObject* arguments);    // (options)
PyObject* doctor(PyObject* module, PyObject* arguments);         // () -> list of dicts
PyObject* default_device(PyObject* module, PyObject* arguments); // () -> (device, index)
PyObject* synchronize(PyObject* module, PyObject* arguments);    // (device, index)

} // namespace flexc::python
