#include "shards.h"

#include <string>
#include <vector>

#include "error.h"

namespace flexc::python {

namespace {

// Reads the ranges of one rank. False if there is an exception.
bool read_ranges(PyObject* list, std::int32_t rank, std::vector<flexc_rank_range>& ranges) {
    const Py_ssize_t count = PySequence_Size(list);
    for (Py_ssize_t i = 0; i < count; ++i) {
        const Object pair = Object::take(PySequence_GetItem(list, i));
        const Object both = pair ? Object::take(PySequence_Tuple(pair.get())) : Object();
        long long begin = 0, end = 0;
        if (!both || PyArg_ParseTuple(both.get(), "LL;a range is (begin, end)", &begin, &end) == 0)
            return false;
        ranges.push_back({sizeof(flexc_rank_range), rank, begin, end});
    }
    return count >= 0;
}

} // namespace

bool Shards::read(PyObject* tuple) {
    long long length = 0;
    PyObject* lists = nullptr;
    if (PyArg_ParseTuple(tuple, "LO;shards are (length, ranges)", &length, &lists) == 0)
        return false;
    const Py_ssize_t ranks = PySequence_Size(lists);
    std::vector<flexc_rank_range> ranges;
    for (Py_ssize_t rank = 0; rank < ranks; ++rank) {
        const Object list = Object::take(PySequence_GetItem(lists, rank));
        if (!list || !read_ranges(list.get(), static_cast<std::int32_t>(rank), ranges))
            return false;
    }
    if (ranks < 0) return false;
    flexc_error* error = nullptr;
    if (flexc_shards_of(length, static_cast<std::int32_t>(ranks), ranges.data(), ranges.size(),
                        &shards_, &error) == FLEXC_OK)
        return true;
    raise(error);
    return false;
}

Object Shards::ranges() const {
    const std::int32_t ranks = flexc_shards_ranks(shards_);
    Object all = Object::take(PyTuple_New(ranks));
    for (std::int32_t rank = 0; all && rank < ranks; ++rank) {
        const std::size_t count = flexc_shards_range_count(shards_, rank);
        Object own = Object::take(PyTuple_New(static_cast<Py_ssize_t>(count)));
        for (std::size_t i = 0; own && i < count; ++i) {
            flexc_rank_range range = {};
            range.struct_size = sizeof range;
            flexc_shards_range(shards_, rank, i, &range, nullptr);
            Object pair = Object::take(Py_BuildValue("(LL)", static_cast<long long>(range.begin),
                                                     static_cast<long long>(range.end)));
            if (!pair ||
                PyTuple_SetItem(own.get(), static_cast<Py_ssize_t>(i), pair.release()) != 0)
                return {};
        }
        if (!own || PyTuple_SetItem(all.get(), rank, own.release()) != 0) return {};
    }
    return all;
}

PyObject* shards(PyObject*, PyObject* arguments) {
    const char* kind = nullptr;
    long long length = 0, rows = 0;
    int ranks = 0;
    if (PyArg_ParseTuple(arguments, "sLiL", &kind, &length, &ranks, &rows) == 0) return nullptr;
    const std::string wanted = kind;
    flexc_shards* made = nullptr;
    flexc_error* error = nullptr;
    const flexc_status status =
        wanted == "striped"  ? flexc_shards_striped(length, ranks, rows, &made, &error)
        : wanted == "zigzag" ? flexc_shards_zigzag(length, ranks, &made, &error)
                             : flexc_shards_contiguous(length, ranks, &made, &error);
    if (status != FLEXC_OK) return raise(error);
    return Shards(made).ranges().release();
}

PyObject* shards_of(PyObject*, PyObject* arguments) {
    Shards read;
    return read.read(arguments) ? read.ranges().release() : nullptr;
}

} // namespace flexc::python
