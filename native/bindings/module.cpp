// The extension module: each unit of the core registers itself through one function.
#include <nanobind/nanobind.h>

#include <exception>
#include <system_error>

namespace nb = nanobind;

namespace {

// Converts std::system_error to Python's OSError, whose subclass depends on the number.
void translate_system_error(const std::exception_ptr& thrown, void*) {
    try {
        std::rethrow_exception(thrown);
    } catch (const std::system_error& error) {
        const nb::object raised = nb::borrow(PyExc_OSError)(error.code().value(), error.what());
        PyErr_SetObject(raised.type().ptr(), raised.ptr());
    }
}

}  // namespace

namespace penstock::bindings {

void bind_arena(nb::module_& module);
void bind_bell(nb::module_& module);
void bind_bytes(nb::module_& module);
void bind_closing(nb::module_& module);
void bind_gather(nb::module_& module);
void bind_image_stage(nb::module_& module);
void bind_images(nb::module_& module);
void bind_jobs(nb::module_& module);
void bind_memory(nb::module_& module);
void bind_packing(nb::module_& module);
void bind_parent_watch(nb::module_& module);
void bind_permutation(nb::module_& module);
void bind_pool(nb::module_& module);
void bind_records(nb::module_& module);
void bind_recycled(nb::module_& module);
void bind_ring(nb::module_& module);
void bind_stack(nb::module_& module);
void bind_step_times(nb::module_& module);
void bind_strings(nb::module_& module);

}  // namespace penstock::bindings

NB_MODULE(_native, module) {
    // Python may end while a cache or a test runner still references an object of ours: that needs no warning.
    nb::set_leak_warnings(false);
    nb::register_exception_translator(translate_system_error);
    module.doc() = "The native core of Penstock. Use it through its Python wrappers.";
    penstock::bindings::bind_arena(module);
    penstock::bindings::bind_bell(module);
    penstock::bindings::bind_bytes(module);
    penstock::bindings::bind_closing(module);
    penstock::bindings::bind_gather(module);
    penstock::bindings::bind_image_stage(module);
    penstock::bindings::bind_images(module);
    penstock::bindings::bind_jobs(module);
    penstock::bindings::bind_memory(module);
    penstock::bindings::bind_packing(module);
    penstock::bindings::bind_parent_watch(module);
    penstock::bindings::bind_permutation(module);
    penstock::bindings::bind_pool(module);
    penstock::bindings::bind_records(module);
    penstock::bindings::bind_recycled(module);
    penstock::bindings::bind_ring(module);
    penstock::bindings::bind_stack(module);
    penstock::bindings::bind_step_times(module);
    penstock::bindings::bind_strings(module);
}
