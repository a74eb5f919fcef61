// Binds an object that calls a function when it is dropped, and loses no Ctrl-C.
//
// The problem: Python code that runs for a dropped object (`__del__`, the callback of a weak reference) can't raise;
// the interpreter prints the exception and continues. It checks for signals at the first instruction of every call, so
// no code in that call can prevent the loss of a Ctrl-C.
//
// The solution: C++ makes the call. It catches the exception in any case, repeats the call, and has the exception
// raised in the main thread when the program continues.
//
// The garbage collector runs at any point, also at the bottom of a recursion, where the function's own calls exceed the
// recursion limit. Then a new thread, with an empty stack, calls the function.
#include <nanobind/nanobind.h>

#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

namespace {

constexpr int max_attempts = 10;  // after as many interrupts the call is abandoned

int raise_pending(void* pending) {
    const std::unique_ptr<nb::python_error> error(static_cast<nb::python_error*>(pending));
    error->restore();
    return -1;
}

// Returns whether a thread could be started.
bool call_in_a_thread(const nb::object& function) {
    const auto call = [&function] {
        const nb::gil_scoped_acquire holding;
        try {
            function();
        } catch (nb::python_error& error) {
            error.discard_as_unraisable(function);
        }
    };
    const nb::gil_scoped_release released;
    try {
        std::thread(call).join();
        return true;
    } catch (const std::system_error&) {
        return false;
    }
}

class CallWhenDropped {
  public:
    CallWhenDropped(nb::object function, bool never_raises)
        : function_(std::move(function)), never_raises_(never_raises) {}
    CallWhenDropped(const CallWhenDropped&) = delete;
    CallWhenDropped& operator=(const CallWhenDropped&) = delete;
    ~CallWhenDropped() { call(); }

    void call() {
        if (called_ || !function_.is_valid()) return;
        called_ = true;
        const nb::error_scope saved_error;
        std::unique_ptr<nb::python_error> interrupt;
        const int attempts = never_raises_ ? 1 : max_attempts;  // another call could be interrupted by another signal
        for (int attempt = 0; attempt < attempts; ++attempt) {
            try {
                function_();
                break;
            } catch (nb::python_error& error) {
                if (error.matches(PyExc_RecursionError) && call_in_a_thread(function_)) break;
                if (error.matches(PyExc_Exception) && !never_raises_) {
                    error.discard_as_unraisable(function_);
                    break;
                }
                interrupt = std::make_unique<nb::python_error>(std::move(error));
            }
        }
        if (!interrupt) return;
        if (Py_AddPendingCall(&raise_pending, interrupt.get()) == 0)
            interrupt.release();
        else  // the queue of pending calls is full
            interrupt->discard_as_unraisable(function_);
    }

    PyObject* function() const { return function_.ptr(); }
    void forget() { function_.reset(); }

  private:
    nb::object function_;
    const bool never_raises_;  // so each exception is a signal handler's, of any class; and the call may be skipped
    bool called_ = false;
};

// For the garbage collector, since an owner may be dropped with a cycle through the function.

int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<CallWhenDropped>(self)->function());
    return 0;
}

int clear(PyObject* self) {
    if (nb::inst_ready(self)) nb::inst_ptr<CallWhenDropped>(self)->forget();
    return 0;
}

void finalize(PyObject* self) {
    if (nb::inst_ready(self)) nb::inst_ptr<CallWhenDropped>(self)->call();
}

PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(&clear)},
                       {Py_tp_finalize, reinterpret_cast<void*>(&finalize)},
                       {0, nullptr}};

}  // namespace

void bind_closing(nb::module_& module) {
    nb::class_<CallWhenDropped>(module, "CallWhenDropped", nb::type_slots(slots),
                                "Calls a function when it is dropped, and again if a signal's handler raised in it.")
        .def(nb::init<nb::object, bool>(), "function"_a, "never_raises"_a = false);
}

}  // namespace penstock::bindings
