// An extension as a user would write one, with the plain C API: makes jobs for a penstock.concurrency.NativeThreadPool.
#include <penstock/job_python.hpp>

#include <cctype>
#include <cerrno>
#include <condition_variable>
#include <future>
#include <ios>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

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
// Throws the exception of a number.
void throw_exception(long number) {
    switch (number) {
        case 0:
            throw std::out_of_range("no row 9");
        case 1:
            throw std::invalid_argument("no such codec");
        case 2:
            throw std::domain_error("below 0");
        case 3:
            throw std::length_error("too long");
        case 4:
            throw std::range_error("out of range");
        case 5:
            throw std::overflow_error("too large");
        case 6:
            throw std::system_error(ENOENT, std::generic_category(), "the index");
        case 7:
            throw std::system_error(EACCES, std::system_category(), "the index");
        case 8:
            throw std::ios_base::failure("the stream");
        case 9:
            throw std::bad_alloc();
        case 10:
            throw std::runtime_error("\xff is no text");
        default:
            throw std::future_error(std::future_errc::no_state);
    }
}
PyObject* throwing(PyObject*, PyObject* argument) {
    return guarded([&] {
        const long number = PyLong_AsLong(argument);
        return penstock::to_capsule(penstock::make_job([number] { throw_exception(number); }));
    });
}
// The lengths of the words of a text, as a list that is made with the interpreter's lock.
PyObject* word_lengths(PyObject*, PyObject* source) {
    return guarded([&] {
        auto work = [bytes = penstock::from_python(source)] {
            std::vector<std::size_t> lengths{0};
            for (const char letter : bytes.view()) {
                if (letter == ' ') {
                    lengths.push_back(0);
                } else {
                    ++lengths.back();
                }
            }
            if (PyGILState_Check() != 0) throw std::logic_error("the lock is held");
            return lengths;
        };
        auto finish = [](std::vector<std::size_t> lengths) {
            PyObject* list = PyList_New(0);
            for (const std::size_t length : lengths) {
                PyObject* number = PyLong_FromSize_t(length);
                PyList_Append(list, number);
                Py_DECREF(number);
            }
            return list;
        };
        return penstock::to_capsule(penstock::make_python_job(std::move(work), std::move(finish)));
    });
}
// Does nothing without the lock, and calls a function of Python with it; `false` returns null without an exception.
PyObject* calling(PyObject*, PyObject* function) {
    return guarded([&] {
        Py_INCREF(function);
        std::shared_ptr<PyObject> kept(function, [](PyObject* object) { Py_DECREF(object); });
        return penstock::to_capsule(penstock::make_python_job([] {},
                                                              [kept]() -> PyObject* {
                                                                  if (kept.get() == Py_False) return nullptr;
                                                                  PyObject* result = PyObject_CallNoArgs(kept.get());
                                                                  if (result == nullptr)
                                                                      throw penstock::PythonErrorSet();
                                                                  return result;
                                                              }));
    });
}
// Throws an exception of C++ in the part that has the lock, or, with a negative number, before it.
PyObject* finishing_badly(PyObject*, PyObject* argument) {
    return guarded([&] {
        const long number = PyLong_AsLong(argument);
        return penstock::to_capsule(penstock::make_python_job(
            [number] {
                if (number < 0) throw_exception(-number);
                return number;
            },
            [](long kept) -> PyObject* {
                throw_exception(kept);
                return nullptr;
            }));
    });
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
                         {"throwing", throwing, METH_O, nullptr},
                         {"word_lengths", word_lengths, METH_O, nullptr},
                         {"calling", calling, METH_O, nullptr},
                         {"finishing_badly", finishing_badly, METH_O, nullptr},
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
