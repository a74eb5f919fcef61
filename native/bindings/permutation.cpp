// Binds the permutation. The wrapper, penstock.sampling._permutation, checks the arguments and raises the errors.
#include "core/permutation.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {
namespace {

using Input = nb::ndarray<nb::numpy, const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BlockMethod = std::size_t (Permutation::*)(std::span<const std::int64_t>, std::span<std::int64_t>,
                                                 Instructions) const;

template <BlockMethod method>
std::size_t fill(const Permutation& self, const Input& from, const Output& to) {
    if (from.size() != to.size()) {
        throw std::invalid_argument("the two arrays must be equally long");
    }
    const std::span<const std::int64_t> input(from.data(), from.size());
    const std::span<std::int64_t> output(to.data(), to.size());
    const nb::gil_scoped_release release;
    return (self.*method)(input, output, best_instructions());
}

}  // namespace

void bind_permutation(nb::module_& module) {
    nb::class_<Permutation>(module, "Permutation", "A keyed bijection of [0, length), computed per position.")
        .def(nb::init<std::uint64_t, std::uint64_t>(), "length"_a, "key"_a, nb::call_guard<nb::gil_scoped_release>())
        .def("key_at", &Permutation::key_at, "position"_a, "Return the key at `position`, which must be in range.")
        .def("position_of", &Permutation::position_of, "key"_a, "Return the position of `key`, which must be in range.")
        .def("keys_at", &fill<&Permutation::keys_at>, "positions"_a, "keys"_a.noconvert(),
             "Fill `keys` until the first position out of range, and return the number filled.")
        .def("positions_of", &fill<&Permutation::positions_of>, "keys"_a, "positions"_a.noconvert(),
             "Fill `positions` until the first key out of range, and return the number filled.");
}

}  // namespace penstock::bindings
