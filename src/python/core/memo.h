// The type Memo: calls that were made before, found again without Python's help.
#pragma once

#include "object.h"

namespace flexc::python {

bool add_memo_type(PyObject* module);

} // namespace flexc::python
