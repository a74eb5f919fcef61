// Binds what calls a function when it is dropped, and loses no Ctrl-C over it.
//
// What Python code runs for a dropped object (`__del__`, the callback of a weak reference) can't raise: the interpreter
// prints the exception and goes on. It looks for signals at the first instruction of every call, so a Ctrl-C can be
// lost there whatever that code does about it. Here the call comes from C++, which sees the exception in any case,
// makes the call again, and has the exception raised in the main thread as soon as the program itself goes on.
//
// The garbage collector runs anywhere, also at the bottom of a recursion, where the function finds no room for calls of
// its own. A thread made for it has all the room.
#include <nanobind/nanobind.h>

#include <memory>
#include <system_error>
#include <thread>
#include <utility>

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

namespace {

constexpr int most_attempts = 10;  // who interrupts so often means it

int raise_pending(void* pending) {
    const std::unique_ptr<nb::python_error> error(static_cast<nb::python_error*>(pending));
    error->restore();
    return -1;
}

// Returns whether there was a thread for it.
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
    explicit CallWhenDropped(nb::object function) : function_(std::move(function)) {}
    CallWhenDropped(const CallWhenDropped&) = delete;
    CallWhenDropped& operator=(const CallWhenDropped&) = delete;
    ~CallWhenDropped() { call(); }

    void call() {
        if (called_ || !function_.is_valid()) return;
        called_ = true;
        const nb::error_scope of_who_drops;
        std::unique_ptr<nb::python_error> interrupt;
        for (int attempt = 0; attempt < most_attempts; ++attempt) {
            try {
                function_();
                break;
            } catch (nb::python_error& error) {
                if (error.matches(PyExc_RecursionError) && call_in_a_thread(function_)) break;
                if (error.matches(PyExc_Exception)) {
                    error.discard_as_unraisable(function_);
                    break;
                }
                interrupt = std::make_unique<nb::python_error>(std::move(error));
            }
        }
        if (!interrupt) return;
        if (Py_AddPendingCall(&raise_pending, interrupt.get()) == 0)
            interrupt.release();
        else  // no room among what is pending
            interrupt->discard_as_unraisable(function_);
    }

    PyObject* function() const { return function_.ptr(); }
    void forget() { function_.reset(); }

  private:
    nb::object function_;
    bool called_ = false;
};

// What the garbage collector asks, as an owner may be dropped with a cycle that goes through the function.

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
                                "Calls a function when it is dropped, again where a signal's handler raised in it.")
        .def(nb::init<nb::object>(), "function"_a);
}

}  // namespace penstock::bindings
