/* Taking Python's lock, in threads that may outlive the interpreter. */
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __cplusplus
extern "C" {
#endif

/* PyEval_RestoreThread(), by which Python before 3.14 ends the thread if the interpreter has ended:
   as there is no unwinding through C++, such a thread sleeps instead, as it does from 3.14 on. */
void flexc_take_lock(PyThreadState* state);

#ifdef __cplusplus
}
#endif
