#include "merge.h"

#include <vector>

#include "error.h"
#include "flexc/flexc_c.h"
#include "tensor.h"

namespace flexc::python {

PyObject* merge_states(PyObject*, PyObject* arguments) {
    PyObject *given = nullptr, *out = nullptr, *out_lse = nullptr;
    if (PyArg_ParseTuple(arguments, "O!OO", &PyTuple_Type, &given, &out, &out_lse) == 0)
        return nullptr;
    const auto count = static_cast<std::size_t>(PyTuple_Size(given));
    Tensors tensors(Py_None);
    std::vector<flexc_tensor> read(2 * count);
    std::vector<flexc_partial_result> parts;
    for (std::size_t i = 0; i < count; ++i) {
        PyObject *o = nullptr, *lse = nullptr;
        if (PyArg_ParseTuple(PyTuple_GetItem(given, static_cast<Py_ssize_t>(i)),
                             "OO;a part is (o, lse)", &o, &lse) == 0 ||
            !tensors.read(o, "o", false, read[2 * i]) ||
            !tensors.read(lse, "lse", false, read[2 * i + 1]))
            return nullptr;
        parts.push_back({sizeof(flexc_partial_result), 0, &read[2 * i], &read[2 * i + 1]});
    }
    flexc_tensor o, lse;
    if (!tensors.read(out, "o", true, o) || !tensors.read(out_lse, "lse", true, lse))
        return nullptr;
    if (tensors.device() == FLEXC_DEVICE_CUDA)
        return raise(FLEXC_ERROR_INVALID_OPTION,
                     "merge_states works in host memory: copy the results there");
    flexc_error* error = nullptr;
    flexc_status status = FLEXC_OK;
    {
        const WithoutLock unlocked;
        status = flexc_merge_states(parts.data(), count, &o, out_lse == Py_None ? nullptr : &lse,
                                    &error);
    }
    if (status != FLEXC_OK) return raise(error);
    Py_RETURN_NONE;
}

} // namespace flexc::python
