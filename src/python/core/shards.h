// Which rows of a sequence each rank holds, as Python has it: a list of (begin, end) for each rank.
#pragma once

#include "flexc/flexc_distributed_c.h"
#include "object.h"

namespace flexc::python {

// Owned shards of the C interface.
class Shards {
  public:
    Shards() = default;
    explicit Shards(flexc_shards* shards) : shards_(shards) {}
    Shards(const Shards&) = delete;
    Shards& operator=(const Shards&) = delete;
    ~Shards() { flexc_shards_free(shards_); }

    // (length, ranges). false: there is an exception.
    bool read(PyObject* tuple);
    const flexc_shards* get() const { return shards_; }
    // Ranges, as a tuple for each rank. Empty: there is an exception.
    Object ranges() const;

  private:
    flexc_shards* shards_ = nullptr;
};

// shards(kind, length, ranks, rows) -> ranges; kind is contiguous, zigzag or striped, which has
// rows
PyObject* shards(PyObject* module, PyObject* arguments);
// shards_of(length, ranges) -> ranges, of which an error says what is wrong with them
PyObject* shards_of(PyObject* module, PyObject* arguments);

} // namespace flexc::python
