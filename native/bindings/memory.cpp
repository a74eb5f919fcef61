// Binds regions and leases as objects with the buffer protocol, over which NumPy builds arrays.
//
// The base of such an array is the object, so the object is dropped with the last view; its destructor is plain C++.
#include "core/memory.hpp"

#include "core/atomic_word.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>

#include "bindings/interpreter_lock.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

std::shared_ptr<Bell> core_bell(nb::handle bell);

namespace {

template <class Holder>
int get_buffer(PyObject* object, Py_buffer* view, int flags) {
    const auto& holder = *nb::inst_ptr<Holder>(object);
    return PyBuffer_FillInfo(view, object, holder.data(), static_cast<Py_ssize_t>(holder.size()), 0, flags);
}

std::uint64_t add_to_word(const Region& region, std::size_t start, std::int64_t amount) {
    if (start % sizeof(AtomicWord) != 0 || region.size() < sizeof(AtomicWord) ||
        start > region.size() - sizeof(AtomicWord))
        throw std::out_of_range("start must be that of a word inside the region");
    return reinterpret_cast<AtomicWord*>(region.data() + start)->add(amount);
}

template <class Holder>
PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(&get_buffer<Holder>)}, {0, nullptr}};

}  // namespace

void bind_memory(nb::module_& module) {
    nb::class_<Region>(module, "Region", nb::type_slots(buffer_slots<Region>),
                       "A region of memory, as a writable buffer.")
        .def("__len__", &Region::size)
        .def_prop_ro("descriptor", &Region::descriptor, "The descriptor of shared memory; -1 for private memory.")
        .def_prop_ro(
            "address", [](const Region& region) { return reinterpret_cast<std::uintptr_t>(region.data()); },
            "The address of its mapping in this process.")
        .def("populate", &Region::populate, "start"_a, "size_bytes"_a, "reading"_a, nb::call_guard<WithoutLock>(),
             "Map the pages of a part, so that accesses cause no page fault.")
        .def("add", &add_to_word, "start"_a, "amount"_a,
             "Add to a 64-bit word, atomically between all processes; return the word before.")
        .def("discard", &Region::discard, "start"_a, "size_bytes"_a, nb::call_guard<WithoutLock>(),
             "Return the pages of a part of shared memory to the system.");

    nb::class_<Lease>(module, "Lease", nb::type_slots(buffer_slots<Lease>),
                      "The right to use a part of a region, as a writable buffer, until it is dropped.")
        .def_prop_ro("slot", &Lease::slot, "The slot that is returned when the lease is dropped.")
        .def("__len__", &Lease::size);

    nb::class_<ReturnedLeases>(module, "ReturnedLeases", "Collects the slots of dropped leases.")
        .def("take", &ReturnedLeases::take, "Return the slots of leases dropped since the last call.")
        .def_prop_ro("leased", &ReturnedLeases::leased, "The number of leases created.")
        .def_prop_ro("returned", &ReturnedLeases::returned, "The number of leases dropped.");

    module.def(
        "region", [](std::size_t size, bool prefault) { return std::make_shared<Region>(size, prefault); },
        "size_bytes"_a, "prefault"_a, nb::call_guard<WithoutLock>(), "Map a new region.");
    module.def("shared_region", &Region::create_shared, "size_bytes"_a, nb::call_guard<WithoutLock>(),
               "Map new memory that other processes can map.");
    module.def("open_region", &Region::open_shared, "descriptor"_a, nb::call_guard<WithoutLock>(),
               "Map the shared memory of another process.");
    module.def(
        "returned_leases",
        [](nb::handle bell) {
            return std::make_shared<ReturnedLeases>(bell.is_none() ? std::weak_ptr<Bell>() : core_bell(bell));
        },
        "bell"_a.none(), "Create a collection; the bell, if any, is rung at each drop.");
    module.def("living_leases", &Lease::living, "Return the number of leases in this process now.");
    module.def(
        "lease",
        [](std::shared_ptr<Region> region, std::size_t start, std::size_t size, std::shared_ptr<ReturnedLeases> returns,
           std::uint64_t slot, nb::handle) {
            return std::make_unique<Lease>(std::move(region), start, size, std::move(returns), slot).release();
        },
        "region"_a, "start"_a, "size_bytes"_a, "returns"_a, "slot"_a, "after"_a.none(), nb::rv_policy::take_ownership,
        nb::keep_alive<0, 6>(), "Lease a part of a region; `after` is dropped once the slot has been returned.");
}

}  // namespace penstock::bindings
