// An extension as a user would write one, with the plain C API: makes, takes, keeps and drops handles over bytes.
#include <penstock/bytes_python.hpp>

#include <string>
#include <thread>
#include <vector>

#include "../../extensions.hpp"

using penstock::Bytes;

namespace {

Bytes kept;

PyObject* make(PyObject*, PyObject* size) {
    return guarded([&] { return penstock::to_python(std::string(PyLong_AsSize_t(size), 'x')); });
}
PyObject* keep(PyObject*, PyObject* object) {
    return guarded([&] {
        kept = penstock::from_python(object);
        return PyLong_FromVoidPtr(const_cast<std::byte*>(kept.data()));
    });
}
PyObject* give(PyObject*, PyObject*) {
    return guarded([] { return penstock::to_python(kept); });
}
// By threads that Python doesn't know, while this one waits without the interpreter's lock.
PyObject* drop_elsewhere(PyObject*, PyObject*) {
    Py_BEGIN_ALLOW_THREADS;
    std::thread threads[4];
    for (auto& thread : threads) {
        thread = std::thread([held = kept] {
            for (std::size_t i = 0; i < 1000; ++i) Bytes part = held.slice(i % 2);
        });
    }
    kept = Bytes();
    for (auto& thread : threads) thread.join();
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}
PyObject* living(PyObject*, PyObject*) { return PyLong_FromSize_t(penstock::living_owners()); }
// While this thread keeps the interpreter's lock: only an owner that doesn't need it can be dropped.
PyObject* drop_holding_the_lock(PyObject*, PyObject*) {
    std::thread([held = std::move(kept)]() mutable { held = Bytes(); }).join();
    kept = Bytes();
    Py_RETURN_NONE;
}
// Whose owners are Python's; goes on while the interpreter ends.
PyObject* drop_in_the_background(PyObject*, PyObject* objects) {
    return guarded([&]() -> PyObject* {
        std::vector<Bytes> handles;
        for (Py_ssize_t i = 0; i < PyList_Size(objects); ++i) {
            handles.push_back(penstock::from_python(PyList_GetItem(objects, i)));
        }
        std::thread([handles = std::move(handles)]() mutable {
            while (!handles.empty()) handles.pop_back();
        }).detach();
        Py_RETURN_NONE;
    });
}

PyMethodDef methods[] = {{"make", make, METH_O, nullptr},
                         {"keep", keep, METH_O, nullptr},
                         {"give", give, METH_NOARGS, nullptr},
                         {"drop_elsewhere", drop_elsewhere, METH_NOARGS, nullptr},
                         {"drop_holding_the_lock", drop_holding_the_lock, METH_NOARGS, nullptr},
                         {"drop_in_the_background", drop_in_the_background, METH_O, nullptr},
                         {"living", living, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "native_bytes", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_native_bytes() { return PyModule_Create(&definition); }
