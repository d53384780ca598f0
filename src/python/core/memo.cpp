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

// The properties of a tensor that determine which plan serves it.
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

Object weak(PyObject* object) {
    if (object == Py_None) return Object::share(Py_None);
    return Object::take(PyWeakref_NewRef(object, nullptr));
}

// A weak reference to an object, or to the parts of a method, which is another object each time.
class Identity {
  public:
    bool take(PyObject* object, PyTypeObject* method_type) {
        if (Py_TYPE(object) != method_type) {
            object_ = weak(object);
            owner_ = Object::share(Py_None);
            return bool(object_);
        }
        const Object function = Object::take(PyObject_GetAttrString(object, "__func__"));
        const Object owner = Object::take(PyObject_GetAttrString(object, "__self__"));
        if (!function || !owner) return false;
        object_ = weak(function.get());
        owner_ = weak(owner.get());
        return object_ && owner_;
    }
    bool is(PyObject* object, PyTypeObject* method_type) const {
        if (owner_.get() == Py_None) return alive(object_) == object;
        if (Py_TYPE(object) != method_type) return false;
        const Object function = Object::take(PyObject_GetAttrString(object, "__func__"));
        const Object owner = Object::take(PyObject_GetAttrString(object, "__self__"));
        return function && owner && alive(object_) == function.get() &&
               alive(owner_) == owner.get();
    }
    bool is_gone() const {
        return (object_.get() != Py_None && alive(object_) == Py_None) ||
               (owner_.get() != Py_None && alive(owner_) == Py_None);
    }

  private:
    static PyObject* alive(const Object& reference) {
        return reference.get() == Py_None ? Py_None : PyWeakref_GetObject(reference.get());
    }
    Object object_, owner_; // weak references, or None
};

struct Entry {
    Identity score_mod, block_mask;
    Object scale;
    bool grouped;
    Shape shapes[3];
    std::vector<Guard> score_guards, mask_guards;
    Object plan, buffers;
    Object call, like_lse;        // of a call that records gradients, else None
    std::vector<bool> with_grad;  // of the buffers
    std::vector<Object> versions; // likewise; empty where no block mask depends on them
};

struct MemoState {
    Object allocate; // a tensor like another one
    Object record;   // (call, (out, lse), whether lse is wanted, q, k, v, *buffers) -> out
    PyTypeObject *tensor_type = nullptr, *method_type = nullptr;
    Object requires_grad, version; // names
    std::list<Entry> entries;      // the last used first
};

struct MemoObject {
    PyObject_HEAD MemoState* state;
};

MemoState& state_of(PyObject* self) { return *reinterpret_cast<MemoObject*>(self)->state; }

bool same_scale(PyObject* a, PyObject* b) {
    if (a == b) return true;
    return PyFloat_Check(a) && PyFloat_Check(b) && PyFloat_AsDouble(a) == PyFloat_AsDouble(b);
}

PyTypeObject* kept_type(PyObject* type) {
    Py_INCREF(type); // which lives as long as the process
    return reinterpret_cast<PyTypeObject*>(type);
}

// (empty_like, the types of tensors and of methods, what records a call)
PyObject* make_memo(PyTypeObject* type, PyObject* arguments, PyObject*) {
    PyObject *allocate = nullptr, *tensor_type = nullptr, *method_type = nullptr, *record = nullptr;
    if (PyArg_ParseTuple(arguments, "OOOO", &allocate, &tensor_type, &method_type, &record) == 0)
        return nullptr;
    auto* make = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    Object made = Object::take(make(type, 0));
    if (!made) return nullptr;
    auto state = std::make_unique<MemoState>();
    state->allocate = Object::share(allocate);
    state->record = Object::share(record);
    state->tensor_type = kept_type(tensor_type);
    state->method_type = kept_type(method_type);
    state->requires_grad = Object::take(PyUnicode_InternFromString("requires_grad"));
    state->version = Object::take(PyUnicode_InternFromString("_version"));
    if (!state->requires_grad || !state->version) return nullptr;
    reinterpret_cast<MemoObject*>(made.get())->state = state.release();
    return made.release();
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
        if (at->score_mod.is_gone() || at->block_mask.is_gone())
            gone.splice(gone.end(), entries, at);
        at = next;
    }
    Py_RETURN_NONE;
}

// Reads a bool attribute of a tensor. False if there is an exception.
bool read_bool(PyObject* object, const Object& name, bool& value) {
    const Object found = Object::take(PyObject_GetAttr(object, name.get()));
    value = found.get() == Py_True;
    return bool(found);
}

bool read_buffers(const MemoState& state, PyObject* versions, Entry& entry) {
    for (Py_ssize_t i = 0; i < PyTuple_Size(entry.buffers.get()); ++i) {
        bool with_grad = false;
        if (!read_bool(PyTuple_GetItem(entry.buffers.get(), i), state.requires_grad, with_grad))
            return false;
        entry.with_grad.push_back(with_grad);
    }
    for (Py_ssize_t i = 0; versions != Py_None && i < PyTuple_Size(versions); ++i)
        entry.versions.push_back(Object::share(PyTuple_GetItem(versions, i)));
    return true;
}

// add(score_mod, block_mask, scale, grouped, (q, k, v), score guards, mask guards, plan, buffers,
//     versions or None, what records the call or None)
PyObject* add(PyObject* self, PyObject* arguments) {
    PyObject *score_mod = nullptr, *block_mask = nullptr, *scale = nullptr, *inputs = nullptr,
             *score_guards = nullptr, *mask_guards = nullptr, *plan = nullptr, *buffers = nullptr,
             *versions = nullptr, *call = nullptr;
    int grouped = 0;
    if (PyArg_ParseTuple(arguments, "OOOpO!OOOO!OO", &score_mod, &block_mask, &scale, &grouped,
                         &PyTuple_Type, &inputs, &score_guards, &mask_guards, &plan, &PyTuple_Type,
                         &buffers, &versions, &call) == 0)
        return nullptr;
    MemoState& state = state_of(self);
    Entry entry{};
    if (!entry.score_mod.take(score_mod, state.method_type) ||
        !entry.block_mask.take(block_mask, state.method_type))
        return nullptr;
    entry.scale = Object::share(scale);
    entry.grouped = grouped != 0;
    entry.plan = Object::share(plan);
    entry.buffers = Object::share(buffers);
    entry.call = Object::share(call);
    entry.like_lse = call == Py_None ? Object::share(Py_None)
                                     : Object::take(PyObject_GetAttrString(call, "like_lse"));
    if (!entry.like_lse) return nullptr;
    Tensors tensors(Py_None);
    for (Py_ssize_t i = 0; i < 3; ++i) {
        flexc_tensor tensor;
        if (!tensors.read(PyTuple_GetItem(inputs, i), "q, k and v", false, tensor)) return nullptr;
        entry.shapes[i].read(tensor);
    }
    if (!read_guards(score_guards, entry.score_guards) ||
        !read_guards(mask_guards, entry.mask_guards) || !read_buffers(state, versions, entry))
        return nullptr;
    std::list<Entry> gone;
    auto& entries = state.entries;
    entries.push_front(std::move(entry));
    if (entries.size() > kMostEntries) gone.splice(gone.end(), entries, std::prev(entries.end()));
    Py_RETURN_NONE;
}

bool still_true(const MemoState& state, const Entry& entry, PyObject* score_mod,
                PyObject* block_mask, bool with_grad) {
    const auto holds = [](PyObject* of) { return [of](const Guard& g) { return g.holds(of); }; };
    if (!std::ranges::all_of(entry.score_guards, holds(score_mod)) ||
        !std::ranges::all_of(entry.mask_guards, holds(block_mask)))
        return false;
    for (std::size_t i = 0; i < entry.with_grad.size(); ++i) {
        PyObject* buffer = PyTuple_GetItem(entry.buffers.get(), static_cast<Py_ssize_t>(i));
        bool wants = false;
        if (with_grad && (!read_bool(buffer, state.requires_grad, wants) ||
                          wants != (entry.with_grad[i] && entry.call.get() != Py_None)))
            return false;
        if (entry.versions.empty()) continue;
        const Object version = Object::take(PyObject_GetAttr(buffer, state.version.get()));
        if (!version ||
            PyObject_RichCompareBool(version.get(), entry.versions[i].get(), Py_EQ) != 1)
            return false;
    }
    return true;
}

// Whether a call of these inputs is of this kind: one that records gradients, or not.
bool is_recorded_alike(const Entry& entry, bool inputs_with_grad, bool with_grad) {
    if (entry.call.get() == Py_None) return !inputs_with_grad;
    return with_grad && (inputs_with_grad || std::ranges::count(entry.with_grad, true) != 0);
}

Object made_like(const MemoState& state, PyObject* like) {
    return Object::take(
        PyObject_CallFunctionObjArgs(state.allocate.get(), like, static_cast<PyObject*>(nullptr)));
}

// The result as one with a gradient.
PyObject* recorded(const MemoState& state, PyObject* call, const Object& out, const Object& lse,
                   PyObject* const* inputs, PyObject* buffers) {
    const Object results = Object::take(PyTuple_Pack(2, out.get(), lse.get()));
    const Object first = results ? Object::take(PyTuple_Pack(6, call, results.get(), Py_False,
                                                             inputs[0], inputs[1], inputs[2]))
                                 : Object();
    const Object all = first ? Object::take(PySequence_Concat(first.get(), buffers)) : Object();
    return all ? PyObject_CallObject(state.record.get(), all.get()) : nullptr;
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
    bool inputs_with_grad = false;
    for (int i = 0; i < 3; ++i) {
        if (Py_TYPE(inputs[i]) != state.tensor_type) Py_RETURN_NONE;
        if (!tensors.read(inputs[i], "q, k and v", false, read[i])) {
            PyErr_Clear();
            Py_RETURN_NONE;
        }
        if (!shapes[i].read(read[i])) Py_RETURN_NONE;
        bool wants = false;
        if (with_grad != 0 && !read_bool(inputs[i], state.requires_grad, wants)) return nullptr;
        inputs_with_grad = inputs_with_grad || wants;
    }
    if (tensors.device() != FLEXC_DEVICE_CPU) Py_RETURN_NONE;
    for (auto at = state.entries.begin(); at != state.entries.end(); ++at) {
        if (at->grouped != (grouped != 0) || !std::ranges::equal(at->shapes, shapes) ||
            !is_recorded_alike(*at, inputs_with_grad, with_grad != 0) ||
            !same_scale(at->scale.get(), scale) ||
            !at->score_mod.is(score_mod, state.method_type) ||
            !at->block_mask.is(block_mask, state.method_type))
            continue;
        // Guards run Python, which may change the entries.
        const Object plan = Object::share(at->plan.get()), call = Object::share(at->call.get());
        const Object buffers = Object::share(at->buffers.get());
        const Object like_lse = Object::share(at->like_lse.get());
        if (at != state.entries.begin())
            state.entries.splice(state.entries.begin(), state.entries, at);
        if (!still_true(state, state.entries.front(), score_mod, block_mask, with_grad != 0)) break;
        const bool is_recorded = call.get() != Py_None;
        Object out = made_like(state, inputs[0]);
        const Object lse = is_recorded ? made_like(state, like_lse.get()) : Object::share(Py_None);
        if (!out || !lse ||
            !forward(plan.get(), read, out.get(), lse.get(), buffers.get(), tensors))
            return nullptr;
        if (is_recorded) return recorded(state, call.get(), out, lse, inputs, buffers.get());
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
