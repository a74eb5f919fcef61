// An extension as a user would write one, with the plain C API: makes jobs for a penstock.concurrency.NativeThreadPool.
#include <penstock/job_python.hpp>

#include <cctype>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>

#include "../../extensions.hpp"

using penstock::Bytes;

namespace {

// Jobs wait here until it is opened.
struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    int waiting = 0;
    bool open = false;
};
// Never destroyed: a job may wait there when the process ends.
Gate& gate = *new Gate();

PyObject* upper(PyObject*, PyObject* source) {
    return guarded([&] {
        return penstock::to_capsule(penstock::make_job([bytes = penstock::from_python(source)] {
            std::string text(bytes.view());
            for (char& letter : text) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
            return Bytes(std::move(text));
        }));
    });
}
PyObject* failing(PyObject*, PyObject*) {
    return guarded(
        [] { return penstock::to_capsule(penstock::make_job([] { throw std::logic_error("not today"); })); });
}
PyObject* throwing_an_int(PyObject*, PyObject*) {
    return guarded([] { return penstock::to_capsule(penstock::make_job([] { throw 3; })); });
}
PyObject* nothing(PyObject*, PyObject*) {
    return guarded([] { return penstock::to_capsule(penstock::make_job([] {})); });
}
// Waits for the gate, then fills the bytes with x.
PyObject* filling(PyObject*, PyObject* target) {
    return guarded([&] {
        return penstock::to_capsule(penstock::make_job([bytes = penstock::from_python(target)] {
            std::unique_lock<std::mutex> lock(gate.mutex);
            ++gate.waiting;
            gate.changed.notify_all();
            gate.changed.wait(lock, [] { return gate.open; });
            --gate.waiting;
            std::byte* place = bytes.mutable_data();
            for (std::size_t i = 0; i < bytes.size(); ++i) place[i] = static_cast<std::byte>('x');
        }));
    });
}
PyObject* open_gate(PyObject*, PyObject*) {
    const std::lock_guard<std::mutex> lock(gate.mutex);
    gate.open = true;
    gate.changed.notify_all();
    Py_RETURN_NONE;
}
PyObject* close_gate(PyObject*, PyObject*) {
    const std::lock_guard<std::mutex> lock(gate.mutex);
    gate.open = false;
    Py_RETURN_NONE;
}
// Returns when so many jobs wait at the gate.
PyObject* await_waiting(PyObject*, PyObject* count) {
    const long wanted = PyLong_AsLong(count);
    Py_BEGIN_ALLOW_THREADS;
    std::unique_lock<std::mutex> lock(gate.mutex);
    gate.changed.wait(lock, [&] { return gate.waiting >= wanted; });
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}
PyObject* living(PyObject*, PyObject*) { return PyLong_FromSize_t(penstock::living_owners()); }

PyMethodDef methods[] = {{"upper", upper, METH_O, nullptr},
                         {"failing", failing, METH_NOARGS, nullptr},
                         {"throwing_an_int", throwing_an_int, METH_NOARGS, nullptr},
                         {"nothing", nothing, METH_NOARGS, nullptr},
                         {"filling", filling, METH_O, nullptr},
                         {"open_gate", open_gate, METH_NOARGS, nullptr},
                         {"close_gate", close_gate, METH_NOARGS, nullptr},
                         {"await_waiting", await_waiting, METH_O, nullptr},
                         {"living", living, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "native_jobs", nullptr, -1, methods, nullptr, nullptr, nullptr, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_native_jobs() { return PyModule_Create(&definition); }
