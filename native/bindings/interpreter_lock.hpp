// Native code that gives the interpreter's lock (GIL) up, or calls Python, while the program may end.
//
// The problem: once the interpreter is being finalized, a thread that takes the lock never gets it. Python 3.14 has the
// thread wait for ever; before, Python ends it by pthread_exit, for which glibc unwinds the thread's stack. Destructors
// and nanobind's functions are noexcept, and an unwinding that meets one aborts the program. The destructors before it
// would drop Python's objects without the lock.
//
// The solution: the thread waits for ever in the first frame of this module that is unwound, as it does on Python 3.14.
// Where pthread_exit unwinds nothing, as of other C libraries, there is nothing to do.
//
// Rejected: to ask whether the interpreter is being finalized before the lock is taken, since that may begin meanwhile.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#ifdef __GLIBCXX__
#include <cxxabi.h>
#endif

namespace penstock::bindings {

// Returns the result of a function that takes the lock, or calls Python, which may give it up and take it again.
template <class Function>
auto call_or_wait_forever(Function function) {
#ifdef __GLIBCXX__
    try {
        return function();
    } catch (const abi::__forced_unwind&) {
        for (;;) ::pause();
    }
#else
    return function();
#endif
}

// Gives the lock up while it exists.
class WithoutLock {
  public:
    WithoutLock() noexcept : state_(PyEval_SaveThread()) {}
    ~WithoutLock() {
        call_or_wait_forever([this] { PyEval_RestoreThread(state_); });
    }
    WithoutLock(const WithoutLock&) = delete;
    WithoutLock& operator=(const WithoutLock&) = delete;

  private:
    PyThreadState* state_;
};

}  // namespace penstock::bindings
