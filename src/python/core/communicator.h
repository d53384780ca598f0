// The type Communicator of the module, and the functions that make communicators.
#pragma once

#include "flexc/flexc_distributed_c.h"
#include "object.h"

namespace flexc::python {

bool add_communicator_type(PyObject* module);

// mpi_communicator(MPI_Comm as a number or None, timeout)
PyObject* mpi_communicator(PyObject* module, PyObject* arguments);
// nccl_id() -> bytes
PyObject* nccl_id(PyObject* module, PyObject*);
// nccl_communicator(id as bytes or path, rank, ranks, device index, timeout)
PyObject* nccl_communicator(PyObject* module, PyObject* arguments);
// nccl_communicator_of(address of an ncclComm_t, timeout)
PyObject* nccl_communicator_of(PyObject* module, PyObject* arguments);
// in_process_communicators(ranks, timeout) -> list
PyObject* in_process_communicators(PyObject* module, PyObject* arguments);
// torchrun_rank() -> (rank, ranks, local rank)
PyObject* torchrun_rank(PyObject* module, PyObject*);

// A call that all ranks of a communicator make together. Only one thread is in one at a time:
// another gets an exception.
class RankCall {
  public:
    explicit RankCall(PyObject* communicator);
    RankCall(const RankCall&) = delete;
    RankCall& operator=(const RankCall&) = delete;
    ~RankCall();

    // false: there is an exception.
    bool has_begun() const { return communicator_ != nullptr; }
    const flexc_communicator* communicator() const;
    // Called if this rank has an exception instead of what the call needs: the other ranks get it
    // as an error. Returns nullptr, for `return`.
    PyObject* refuse() const;

  private:
    PyObject* communicator_ = nullptr; // borrowed
};

} // namespace flexc::python
