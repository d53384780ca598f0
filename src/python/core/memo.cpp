#include "memo.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <memory>

#include "flexc/flexc_c.h"
#include "kernel.h"
#include "tensor.h"

namespace flexc::python {

namespace {

constexpr std::size_t kMostEntries = 32;

enum GuardKind : long { kAttribute = 0, kItem = 1, kLength = 2 };

// A read that gives the same object as long as nothing changed. Without `where` it is of the
// function itself, which an entry does not keep alive.
struct Guard {
    long kind;
    Object where, name, value;

    bool holds(PyObject* function) const {
        PyObject* of = where.get() == Py_None ? function : where.get();
        if (kind == kLength) return PyObject_Size(of) == PyLong_AsSsize_t(value.get());
        const Object found = Object::take(kind == kAttribute ? PyObject_GetAttr(of, name.get())
                                                             : PyObject_GetItem(of, name.get()));
        return found && found.get() == value.get();
    }
};

bool read_guards(PyObject* sequence, std::vector<Guard>& guards) {
    const Py_ssize_t count = PySequence_Size(sequence);
    for (Py_ssize_t i = 0; i < count; ++i) {
        const Object entry = Object::take(PySequence_GetItem(sequence, i));
        long kind = 0;
        PyObject *where = nullptr, *name = nullptr, *value = nullptr;
        if (!entry || PyArg_ParseTuple(entry.get(), "lOOO", &kind, &where, &name, &value) == 0)
            return false;
        guards.push_back({kind, Object::share(where), Object::share(name), Object::share(value)});
    }
    return count >= 0;
}

// What of a tensor decides which plan serves it.
struct Shape {
    std::int32_t dtype = 0;
    std::int64_t dims[4] = {};

    bool read(const flexc_tensor& tensor) {
        dtype = tensor.dtype;
        if (tensor.rank != 4) return false;
        std::copy_n(tensor.shape, 4, dims);
        return true;
    }
    bool operator==(const Shape&) const = default;
};

struct Entry {
    Object score_mod, block_mask; // weak references, or None
    Object scale;
    bool grouped;
    Shape shapes[3];
    std::vector<Guard> score_guards, mask_guards;
    Object plan, buffers;
    std::vector<Object> versions; // of the buffers; empty where no block mask depends on them
};

struct MemoState {
    Object allocate; // a tensor like another one
    PyTypeObject* tensor_type = nullptr;
    std::list<Entry> entries; // the last used first
};

struct MemoObject {
    PyObject_HEAD MemoState* state;
};

MemoState& state_of(PyObject* self) { return *reinterpret_cast<MemoObject*>(self)->state; }

Object weak(PyObject* object) {
    if (object == Py_None) return Object::share(Py_None);
    return Object::take(PyWeakref_NewRef(object, nullptr));
}

PyObject* alive(const Object& reference) {
    return reference.get() == Py_None ? Py_None : PyWeakref_GetObject(reference.get());
}

bool is_dead(const Object& reference) {
    return reference.get() != Py_None && PyWeakref_GetObject(reference.get()) == Py_None;
}

bool same_scale(PyObject* a, PyObject* b) {
    if (a == b) return true;
    return PyFloat_Check(a) && PyFloat_Check(b) && PyFloat_AsDouble(a) == PyFloat_AsDouble(b);
}

// (empty_like, the type of tensors)
PyObject* make_memo(PyTypeObject* type, PyObject* arguments, PyObject*) {
    PyObject *allocate = nullptr, *tensor_type = nullptr;
    if (PyArg_ParseTuple(arguments, "OO", &allocate, &tensor_type) == 0) return nullptr;
    auto* make = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    PyObject* made = make(type, 0);
    if (made == nullptr) return nullptr;
    auto state = std::make_unique<MemoState>();
    state->allocate = Object::share(allocate);
    Py_INCREF(tensor_type); // which lives as long as the process
    state->tensor_type = reinterpret_cast<PyTypeObject*>(tensor_type);
    reinterpret_cast<MemoObject*>(made)->state = state.release();
    return made;
}

void free_memo(PyObject* self) {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<MemoObject*>(self)->state;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(reinterpret_cast<PyObject*>(type));
}

// purge(): forgets what was of functions that are gone.
PyObject* purge(PyObject* self, PyObject*) {
    std::list<Entry> gone; // freed at the end: that may call anything
    auto& entries = state_of(self).entries;
    for (auto at = entries.begin(); at != entries.end();) {
        const auto next = std::next(at);
        if (is_dead(at->score_mod) || is_dead(at->block_mask)) gone.splice(gone.end(), entries, at);
        at = next;
    }
    Py_RETURN_NONE;
}

// add(score_mod, block_mask, scale, grouped, (q, k, v), score guards, mask guards, plan, buffers,
//     versions or None)
PyObject* add(PyObject* self, PyObject* arguments) {
    PyObject *score_mod = nullptr, *block_mask = nullptr, *scale = nullptr, *inputs = nullptr,
             *score_guards = nullptr, *mask_guards = nullptr, *plan = nullptr, *buffers = nullptr,
             *versions = nullptr;
    int grouped = 0;
    if (PyArg_ParseTuple(arguments, "OOOpO!OOOO!O", &score_mod, &block_mask, &scale, &grouped,
                         &PyTuple_Type, &inputs, &score_guards, &mask_guards, &plan, &PyTuple_Type,
                         &buffers, &versions) == 0)
        return nullptr;
    Entry entry{weak(score_mod),
                weak(block_mask),
                Object::share(scale),
                grouped != 0,
                {},
                {},
                {},
                Object::share(plan),
                Object::share(buffers),
                {}};
    if (!entry.score_mod || !entry.block_mask) return nullptr;
    Tensors tensors(Py_None);
    for (Py_ssize_t i = 0; i < 3; ++i) {
        flexc_tensor tensor;
        if (!tensors.read(PyTuple_GetItem(inputs, i), "q, k and v", false, tensor)) return nullptr;
        entry.shapes[i].read(tensor);
    }
    if (!read_guards(score_guards, entry.score_guards) ||
        !read_guards(mask_guards, entry.mask_guards))
        return nullptr;
    for (Py_ssize_t i = 0; versions != Py_None && i < PyTuple_Size(versions); ++i)
        entry.versions.push_back(Object::share(PyTuple_GetItem(versions, i)));
    std::list<Entry> gone;
    auto& entries = state_of(self).entries;
    entries.push_front(std::move(entry));
    if (entries.size() > kMostEntries) gone.splice(gone.end(), entries, std::prev(entries.end()));
    Py_RETURN_NONE;
}

bool still_true(const Entry& entry, PyObject* score_mod, PyObject* block_mask, bool with_grad) {
    const auto holds = [](PyObject* of) { return [of](const Guard& g) { return g.holds(of); }; };
    if (!std::ranges::all_of(entry.score_guards, holds(score_mod)) ||
        !std::ranges::all_of(entry.mask_guards, holds(block_mask)))
        return false;
    const Py_ssize_t count = PyTuple_Size(entry.buffers.get());
    for (Py_ssize_t i = 0; i < count; ++i) {
        PyObject* buffer = PyTuple_GetItem(entry.buffers.get(), i);
        if (with_grad) {
            const Object wants = Object::take(PyObject_GetAttrString(buffer, "requires_grad"));
            if (!wants || wants.get() == Py_True) return false;
        }
        if (entry.versions.empty()) continue;
        const Object version = Object::take(PyObject_GetAttrString(buffer, "_version"));
        if (!version ||
            PyObject_RichCompareBool(version.get(),
                                     entry.versions[static_cast<std::size_t>(i)].get(), Py_EQ) != 1)
            return false;
    }
    return true;
}

// run(q, k, v, score_mod, block_mask, scale, grouped, whether gradients are recorded) -> out, or
// None where no entry serves the call
PyObject* run(PyObject* self, PyObject* arguments) {
    PyObject *inputs[3] = {}, *score_mod = nullptr, *block_mask = nullptr, *scale = nullptr;
    int grouped = 0, with_grad = 0;
    if (PyArg_ParseTuple(arguments, "OOOOOOpp", &inputs[0], &inputs[1], &inputs[2], &score_mod,
                         &block_mask, &scale, &grouped, &with_grad) == 0)
        return nullptr;
    MemoState& state = state_of(self);
    Tensors tensors(Py_None);
    flexc_tensor read[3];
    Shape shapes[3];
    for (int i = 0; i < 3; ++i) {
        if (Py_TYPE(inputs[i]) != state.tensor_type) Py_RETURN_NONE;
        if (!tensors.read(inputs[i], "q, k and v", false, read[i])) {
            PyErr_Clear();
            Py_RETURN_NONE;
        }
        if (!shapes[i].read(read[i])) Py_RETURN_NONE;
    }
    if (tensors.device() != FLEXC_DEVICE_CPU) Py_RETURN_NONE;
    for (auto at = state.entries.begin(); at != state.entries.end(); ++at) {
        if (alive(at->score_mod) != score_mod || alive(at->block_mask) != block_mask ||
            at->grouped != (grouped != 0) || !std::ranges::equal(at->shapes, shapes) ||
            !same_scale(at->scale.get(), scale))
            continue;
        // Guards run Python, which may change the entries.
        const Object plan = Object::share(at->plan.get());
        const Object buffers = Object::share(at->buffers.get());
        if (at != state.entries.begin())
            state.entries.splice(state.entries.begin(), state.entries, at);
        if (!still_true(state.entries.front(), score_mod, block_mask, with_grad != 0)) break;
        Object out = Object::take(PyObject_CallFunctionObjArgs(state.allocate.get(), inputs[0],
                                                               static_cast<PyObject*>(nullptr)));
        if (!out || !forward(plan.get(), read, out.get(), buffers.get(), tensors)) return nullptr;
        return out.release();
    }
    PyErr_Clear();
    Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"add", add, METH_VARARGS, nullptr},
                         {"run", run, METH_VARARGS, nullptr},
                         {"purge", purge, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(free_memo)},
                       {Py_tp_new, reinterpret_cast<void*>(make_memo)},
                       {Py_tp_methods, methods},
                       {0, nullptr}};
PyType_Spec spec = {"flexc._core.Memo", sizeof(MemoObject), 0, Py_TPFLAGS_DEFAULT, slots};

} // namespace

bool add_memo_type(PyObject* module) {
    const Object type = Object::take(PyType_FromSpec(&spec));
    return type && PyObject_SetAttrString(module, "Memo", type.get()) == 0;
}

} // namespace flexc::python
