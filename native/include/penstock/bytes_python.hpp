// Conversion of Bytes to Python and back, for any extension: pybind11, nanobind or the plain C API (limited or not).
//
//     PyObject* parse(PyObject*, PyObject* argument) {
//         try {
//             penstock::Bytes bytes = penstock::from_python(argument);  // no copy, for any object
//             return penstock::to_python(bytes.slice(4));               // a penstock.transport.Bytes over the same
//             memory
//         } catch (const penstock::PythonErrorSet&) {
//             return nullptr;
//         }
//     }
//
// Guarantees:
//   - No bytes are copied in either direction. Bytes from C++ keep their owner on the way to Python and back; it is
//     dropped without the GIL.
//   - A handle over a Python object may be copied and dropped on any thread, with or without the GIL. The drop of the
//     last one takes the GIL. Once the interpreter has begun to end, the object is not released.
//   - Both functions need the GIL. On an error they set a Python exception, and throw `PythonErrorSet`.
//
// Python's garbage collector doesn't find a reference cycle through a handle (an object that holds a handle over
// itself), since C++ shares the owner.
#pragma once

#include <Python.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <thread>
#include <utility>

#include "bytes.hpp"

namespace penstock {

// A Python exception is set. Plain C API: return null; pybind11: `throw py::error_already_set()`;
// nanobind: `throw nb::python_error()`.
struct PythonErrorSet : std::exception {
    const char* what() const noexcept override { return "a Python exception is set"; }
};

namespace detail {

inline std::atomic<bool> interpreter_ends{false};
inline std::atomic<bool> end_is_awaited{false};
inline std::atomic<int> num_releasing{0};  // threads that wait for the GIL, or hold it, to drop a buffer

// Called when the interpreter begins to end. Python would hang or kill a thread that requests the GIL later; one that
// requested it before must get it.
inline PyObject* on_interpreter_end(PyObject*, PyObject*) {
    interpreter_ends.store(true);
    PyThreadState* state = PyEval_SaveThread();
    // Bounded, and without a mutex: a child that was forked meanwhile counts a thread that it does not have.
    for (int waited = 0; num_releasing.load() != 0 && waited < 1000; ++waited) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    PyEval_RestoreThread(state);
    Py_INCREF(Py_None);
    return Py_None;
}

// Python's atexit module and not Py_AtExit, which is too late: by then other threads have been stopped.
inline void await_interpreter_end() {
    static PyMethodDef method = {"penstock_bytes_end", &on_interpreter_end, METH_NOARGS, nullptr};
    if (end_is_awaited.exchange(true)) return;
    PyObject* module = PyImport_ImportModule("atexit");
    PyObject* function = module == nullptr ? nullptr : PyCFunction_NewEx(&method, nullptr, nullptr);
    PyObject* done = function == nullptr ? nullptr : PyObject_CallMethod(module, "register", "O", function);
    Py_XDECREF(function);
    Py_XDECREF(module);
    if (done == nullptr) {
        end_is_awaited.store(false);
        throw PythonErrorSet();
    }
    Py_DECREF(done);
}

// A buffer of a Python object, held until the last handle over it is dropped.
class PythonBuffer {
  public:
    // Of any shape, if its items are single contiguous bytes.
    explicit PythonBuffer(PyObject* object) {
        await_interpreter_end();
        if (PyObject_GetBuffer(object, &view_, PyBUF_FULL_RO) != 0) throw PythonErrorSet();
        const bool contiguous = PyBuffer_IsContiguous(&view_, 'C') != 0;
        if (contiguous && is_bytes(view_.format)) return;
        if (contiguous) {
            PyErr_Format(PyExc_BufferError, "the items must be unsigned bytes (format 'B'); got format '%s'",
                         view_.format);
        } else {
            PyErr_SetString(PyExc_BufferError, "the bytes must be C-contiguous; got a strided buffer");
        }
        PyBuffer_Release(&view_);
        throw PythonErrorSet();
    }
    PythonBuffer(const PythonBuffer&) = delete;
    PythonBuffer& operator=(const PythonBuffer&) = delete;

    ~PythonBuffer() {
        num_releasing.fetch_add(1);
        if (!interpreter_ends.load() && Py_IsInitialized()) {
            const PyGILState_STATE state = PyGILState_Ensure();
            PyObject *type, *value, *traceback;  // the thread that drops the handle may have an exception set
            PyErr_Fetch(&type, &value, &traceback);
            PyBuffer_Release(&view_);
            PyErr_Restore(type, value, traceback);
            PyGILState_Release(state);
        }
        num_releasing.fetch_sub(1);
    }

    const Py_buffer& view() const noexcept { return view_; }

  private:
    static bool is_bytes(const char* format) noexcept {
        if (format == nullptr) return true;
        if (*format == '@' || *format == '=' || *format == '<' || *format == '>' || *format == '!') ++format;
        return (*format == 'B' || *format == 'c') && format[1] == '\0';
    }

    Py_buffer view_{};
};

template <class Handle>
void drop_capsule(PyObject* capsule) {
    delete static_cast<Handle*>(PyCapsule_GetContext(capsule));
}

// A new capsule that keeps the handle and points to its plain struct.
template <class Handle>
PyObject* keep_in_capsule(Handle handle, const char* name) {
    auto kept = std::make_unique<Handle>(std::move(handle));
    // The context keeps the handle: the capsule's pointer is const to its readers.
    PyObject* capsule =
        PyCapsule_New(const_cast<void*>(static_cast<const void*>(&kept->handle())), name, &drop_capsule<Handle>);
    if (capsule == nullptr) throw PythonErrorSet();
    if (PyCapsule_SetContext(capsule, kept.get()) != 0) {
        PyCapsule_SetDestructor(capsule, nullptr);
        Py_DECREF(capsule);
        throw PythonErrorSet();
    }
    kept.release();
    return capsule;
}

// The handle inside a capsule of ours; `capsule` may have been made by another module.
inline Bytes from_capsule(PyObject* capsule) {
    void* pointer = PyCapsule_GetPointer(capsule, bytes_capsule_name);
    if (pointer == nullptr) throw PythonErrorSet();
    return Bytes::share(*static_cast<const penstock_bytes_v1*>(pointer));
}

// A capsule that shares the bytes; for `__penstock_bytes__`, the method by which other objects can offer theirs.
inline PyObject* to_capsule(Bytes bytes) { return keep_in_capsule(std::move(bytes), bytes_capsule_name); }

}  // namespace detail

// A handle over the bytes of a Python object: a penstock.transport.Bytes (or any object whose type has a method
// `__penstock_bytes__` that returns such a capsule), the capsule itself, or any exporter of a C-contiguous buffer of
// single bytes. Throws PythonErrorSet, with a TypeError or BufferError, for everything else.
inline Bytes from_python(PyObject* object) {
    if (PyCapsule_IsValid(object, bytes_capsule_name)) return detail::from_capsule(object);
    PyObject* method = PyObject_GetAttrString(reinterpret_cast<PyObject*>(Py_TYPE(object)), "__penstock_bytes__");
    if (method != nullptr) {
        PyObject* capsule = PyObject_CallFunctionObjArgs(method, object, nullptr);
        Py_DECREF(method);
        if (capsule == nullptr) throw PythonErrorSet();
        try {
            Bytes bytes = detail::from_capsule(capsule);
            Py_DECREF(capsule);
            return bytes;
        } catch (...) {
            Py_DECREF(capsule);
            throw;
        }
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw PythonErrorSet();
    PyErr_Clear();
    using Holder = detail::Owner<detail::PythonBuffer>;
    auto* owner = new Holder(object);
    const Py_buffer& view = owner->held().view();
    const penstock_bytes_v1 handle{1,
                                   view.readonly ? 1u : 0u,
                                   view.buf == nullptr ? detail::no_bytes : view.buf,
                                   static_cast<std::size_t>(view.len),
                                   owner,
                                   &Holder::retain,
                                   &Holder::release};
    Bytes bytes = Bytes::share(handle);
    Holder::release(owner);
    return bytes;
}

// A new penstock.transport.Bytes that shares the handle's owner.
inline PyObject* to_python(Bytes bytes) {
    static std::atomic<PyObject*> cached{nullptr};  // no guarded static: its lock and the GIL could deadlock
    PyObject* type = cached.load();
    if (type == nullptr) {
        PyObject* module = PyImport_ImportModule("penstock.transport");
        if (module == nullptr) throw PythonErrorSet();
        type = PyObject_GetAttrString(module, "Bytes");
        Py_DECREF(module);
        if (type == nullptr) throw PythonErrorSet();
        cached.store(type);  // kept for the life of the process
    }
    PyObject* capsule = detail::to_capsule(std::move(bytes));
    PyObject* wrapped = PyObject_CallFunctionObjArgs(type, capsule, nullptr);
    Py_DECREF(capsule);
    if (wrapped == nullptr) throw PythonErrorSet();
    return wrapped;
}

}  // namespace penstock
