// A job to Python, for any kind of extension: pybind11, nanobind or the plain C API (limited or not).
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

#include <memory>
#include <utility>

#include "bytes_python.hpp"
#include "job.hpp"

namespace penstock {

namespace detail {

inline void drop_job_capsule(PyObject* capsule) { delete static_cast<Job*>(PyCapsule_GetContext(capsule)); }

}  // namespace detail

// A new capsule that shares the job. Whoever takes the job renames the capsule, so that it runs once. Needs the
// interpreter's lock; throws PythonErrorSet.
inline PyObject* to_capsule(Job job) {
    auto kept = std::make_unique<Job>(std::move(job));
    auto* pointer = const_cast<penstock_job_v1*>(&kept->handle());  // const to its readers
    PyObject* capsule = PyCapsule_New(pointer, job_capsule_name, &detail::drop_job_capsule);
    if (capsule == nullptr) throw PythonErrorSet();
    if (PyCapsule_SetContext(capsule, kept.get()) != 0) {
        PyCapsule_SetDestructor(capsule, nullptr);
        Py_DECREF(capsule);
        throw PythonErrorSet();
    }
    kept.release();
    return capsule;
}

}  // namespace penstock
