// Binds an object that calls a function when it is dropped, and loses no Ctrl-C.
//
// The problem: Python code that runs for a dropped object (`__del__`, the callback of a weak reference) can't raise;
// the interpreter prints the exception and continues. It checks for signals at the first instruction of every call, so
// no code in that call can prevent the loss of a Ctrl-C.
//
// The solution: C++ makes the call. It catches the exception in any case, repeats the call, and has the exception
// raised in the main thread when the program continues. An exception of the function itself can't be raised: Python
// prints it. Whether one is the function's or a signal handler's is for `penstock._caught` to say.
//
// As for any exception that is raised while another one is handled, the other one is its context.
//
// The garbage collector runs at any point, also at the bottom of a recursion, where the function's own calls exceed the
// recursion limit. Then a new thread, with an empty stack, calls the function.
#include <nanobind/nanobind.h>

#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "bindings/interpreter_lock.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

namespace {

constexpr int max_links = 1000;   // of the context of an exception
constexpr int max_attempts = 10;  // after as many interrupts the call is abandoned

nb::object context_of(nb::handle error) { return nb::steal(PyException_GetContext(error.ptr())); }

// Whether an error is another one, or in its context. A program may have made that context a circle, so it is followed
// for a while only; then the answer is that the error is in it, which leaves contexts as they are.
bool is_in_chain(nb::handle error, nb::handle last) {
    nb::object each = nb::borrow(last);
    for (int link = 0; link < max_links; ++link, each = context_of(each)) {
        if (!each.is_valid()) return false;
        if (each.is(error)) return true;
    }
    return true;
}

// Puts an earlier exception, with its context, behind those of the context of an error that it doesn't have already.
void add_context(nb::handle error, nb::handle earlier) {
    if (is_in_chain(error, earlier) || is_in_chain(earlier, error)) return;
    nb::object last = nb::borrow(error);
    for (nb::object next = context_of(last); next.is_valid() && !is_in_chain(next, earlier); next = context_of(last)) {
        last = next;
    }
    PyException_SetContext(last.ptr(), nb::borrow(earlier).release().ptr());
}

// Prints an exception that can't be raised.
void print_ignored(nb::python_error& error, nb::handle function) {
    error.restore();
    call_or_wait_forever([function] { PyErr_WriteUnraisable(function.ptr()); });
}

int raise_pending(void* pending) {
    const std::unique_ptr<nb::python_error> error(static_cast<nb::python_error*>(pending));
    const nb::object handled = nb::steal(PyErr_GetHandledException());
    if (handled.is_valid() && !handled.is_none()) add_context(error->value(), handled);
    error->restore();
    return -1;
}

// The exceptions of signals' handlers in one call, of which the last one is raised, with the others as its context.
class Interrupts {
  public:
    void add(nb::python_error& error) {
        auto next = std::make_unique<nb::python_error>(std::move(error));
        if (last_) add_context(next->value(), last_->value());
        last_ = std::move(next);
    }

    // Whether a handler raised an error; another one may be raised meanwhile.
    bool has_raised(nb::python_error& error) {
        try {
            return call_or_wait_forever([&error] {
                const nb::module_ caught = nb::module_::import_("penstock._caught");
                return nb::cast<bool>(caught.attr("raised_by_handler")(error.value()));
            });
        } catch (nb::python_error& other) {
            if (other.matches(PyExc_ImportError)) return false;  // the program ends
            add(other);
            return true;
        }
    }

    void raise_later(nb::handle function) {
        if (!last_) return;
        if (Py_AddPendingCall(&raise_pending, last_.get()) == 0)
            last_.release();
        else  // the queue of pending calls is full
            print_ignored(*last_, function);
    }

  private:
    std::unique_ptr<nb::python_error> last_;
};

// Returns whether a thread could be started.
bool call_in_a_thread(const nb::object& function) {
    const auto run = [&function] {
        const PyGILState_STATE state = PyGILState_Ensure();  // may end the thread, whose frames below aren't noexcept
        try {
            call_or_wait_forever([&function] { function(); });
        } catch (nb::python_error& error) {
            print_ignored(error, function);
        }
        PyGILState_Release(state);
    };
    const WithoutLock released;
    try {
        std::thread(run).join();
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
        Interrupts interrupts;
        const int attempts = never_raises_ ? 1 : max_attempts;  // another call could be interrupted by another signal
        for (int attempt = 0; attempt < attempts; ++attempt) {
            try {
                call_or_wait_forever([this] { function_(); });
                break;
            } catch (nb::python_error& error) {
                if (error.matches(PyExc_RecursionError) && call_in_a_thread(function_)) break;
                if (error.matches(PyExc_Exception) && !never_raises_ && !interrupts.has_raised(error)) {
                    print_ignored(error, function_);
                    break;
                }
                interrupts.add(error);
            }
        }
        interrupts.raise_later(function_);
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
