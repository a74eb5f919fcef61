// Binds the watch that ends a process with its parent.
#include "core/parent_watch.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <utility>
#include <vector>

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

void bind_parent_watch(nb::module_& module) {
    module.def(
        "end_when_readable", [](std::vector<int> descriptors) { end_when_readable(std::move(descriptors)); },
        "descriptors"_a,
        "End this process when one of the descriptors becomes readable, also during a call that keeps the GIL.");
}

}  // namespace penstock::bindings
