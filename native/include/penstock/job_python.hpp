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

#include <utility>

#include "bytes_python.hpp"
#include "job.hpp"

namespace penstock {

// A new capsule that shares the job. Whoever takes the job renames the capsule, so that it runs once. Needs the
// interpreter's lock; throws PythonErrorSet.
inline PyObject* to_capsule(Job job) { return detail::keep_in_capsule(std::move(job), job_capsule_name); }

}  // namespace penstock
