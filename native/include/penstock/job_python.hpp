// Conversion of a job to Python, for any extension: pybind11, nanobind or the plain C API (limited or not).
//
//     PyObject* parsing(PyObject*, PyObject* argument) {
//         try {
//             penstock::Bytes bytes = penstock::from_python(argument);
//             return penstock::to_capsule(penstock::make_job([bytes] { return parse(bytes); }));
//         } catch (const penstock::PythonErrorSet&) {
//             return nullptr;
//         }
//     }
//
// and in Python: `await pool.submit(NativeJob.from_extension(parsing(data)))`.
#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include "bytes_python.hpp"
#include "job.hpp"

namespace penstock {

namespace detail {

// Called while an exception is handled, with the GIL: sets a Python exception, unless one is set.
inline void set_python_error() noexcept {
    try {
        throw;
    } catch (const PythonErrorSet&) {
        return;
    } catch (...) {
        describe_exception([](PythonError error, int error_number, const char* text) noexcept {
            PyObject* types[] = {PyExc_RuntimeError, PyExc_ValueError,  PyExc_IndexError,
                                 PyExc_OSError,      PyExc_MemoryError, PyExc_OverflowError};
            PyObject* type = types[static_cast<std::uint32_t>(error)];
            PyObject* arguments = nullptr;
            PyObject* message = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(std::strlen(text)), "replace");
            if (message != nullptr && error == PythonError::os_error && error_number != 0) {
                arguments = Py_BuildValue("(iO)", error_number, message);
            } else if (message != nullptr) {
                arguments = Py_BuildValue("(O)", message);
            }
            if (arguments != nullptr) PyErr_SetObject(type, arguments);
            Py_XDECREF(arguments);
            Py_XDECREF(message);
        });
    }
}

struct Nothing {};

// A function that is called once without the GIL, its result, and a function that is called with the GIL.
template <class Work, class Finish>
class OwnedPythonJob final : public JobOwner {
    using Made = std::invoke_result_t<Work&>;

  public:
    OwnedPythonJob(Work work, Finish finish) : work_(std::move(work)), finish_(std::move(finish)) {}

    static std::uint32_t run(void* self, penstock_job_failure_v2* failure) noexcept {
        auto& job = *static_cast<OwnedPythonJob*>(self);
        try {
            if constexpr (std::is_void_v<Made>) {
                job.work_();
            } else {
                job.made_.emplace(job.work_());
            }
            return 1;
        } catch (...) {
            return job.fail(failure);
        }
    }

    static void* finish(void* self) noexcept {
        auto& job = *static_cast<OwnedPythonJob*>(self);
        try {
            if constexpr (std::is_void_v<Made>) {
                return job.finish_();
            } else {
                return job.finish_(std::move(*job.made_));
            }
        } catch (...) {
            set_python_error();
            return nullptr;
        }
    }

    static void retain(void* self) noexcept { static_cast<OwnedPythonJob*>(self)->share(); }
    static void release(void* self) noexcept {
        auto* job = static_cast<OwnedPythonJob*>(self);
        if (job->drop()) delete job;
    }

  private:
    Work work_;
    Finish finish_;
    std::optional<std::conditional_t<std::is_void_v<Made>, Nothing, Made>> made_;
};

}  // namespace detail

// A job of two functions: `work()` runs on a thread of the pool, without the GIL, and returns any value, or nothing.
// Then `finish(value)`, or `finish()`, makes the result in the awaiting loop's thread, with the GIL: a new reference to
// any PyObject. It should be short, since the loop waits for it.
//
//     penstock::make_python_job([bytes] { return parse(bytes); },                                   // a vector of
//     doubles
//                               [](std::vector<double> values) { return to_list(values); });        // a list
//
// An exception of either is raised in the awaiting task, as for `make_job`; `finish` may also throw PythonErrorSet, or
// return null with an exception set. `finish` isn't called if `work` has failed, or the pool has abandoned the job.
template <class Work, class Finish>
Job make_python_job(Work&& work, Finish&& finish) {
    using Kept = detail::OwnedPythonJob<std::decay_t<Work>, std::decay_t<Finish>>;
    auto* job = new Kept(std::forward<Work>(work), std::forward<Finish>(finish));
    return Job::adopt({2, 0, job, &Kept::run, nullptr, &Kept::finish, &Kept::retain, &Kept::release});
}

// A new capsule that shares the job. The pool renames the capsule when it takes the job, so that it runs once. Needs
// the GIL; throws PythonErrorSet.
inline PyObject* to_capsule(Job job) { return detail::keep_in_capsule(std::move(job), job_capsule_name); }

}  // namespace penstock
