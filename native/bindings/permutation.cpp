// Binds the orders of shuffles. The wrappers, penstock.sampling._permutation and ._block_shuffle, check the arguments
// and raise the errors.
#include "core/permutation.hpp"

#include "core/lanes.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>
#include <vector>

#include "bindings/interpreter_lock.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {
namespace {

using Input = nb::ndarray<nb::numpy, const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<nb::numpy, std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BlockMethod = std::size_t (Permutation::*)(std::span<const std::int64_t>, std::span<std::int64_t>,
                                                 Instructions) const;

std::span<std::int64_t> as_long_as(const Input& from, const Output& to) {
    if (from.size() != to.size()) {
        throw std::invalid_argument("the two arrays must be equally long");
    }
    return {to.data(), to.size()};
}

// A thread that gives the interpreter's lock up for microseconds may wait for it for milliseconds, and the shuffle
// would seem to take them.
constexpr std::size_t release_from_positions = 1 << 13;

template <class Work>
std::size_t without_lock(std::size_t positions, Work work) {
    if (positions < release_from_positions) {
        return work();
    }
    const WithoutLock released;
    return work();
}

template <BlockMethod method>
std::size_t fill(const Permutation& self, const Input& from, const Output& to) {
    const std::span<std::int64_t> output = as_long_as(from, to);
    return without_lock(from.size(),
                        [&] { return (self.*method)({from.data(), from.size()}, output, best_instructions()); });
}

std::size_t fill_by_lanes(const Lanes& self, const Input& from, const Output& to) {
    const std::span<std::int64_t> output = as_long_as(from, to);
    return without_lock(from.size(), [&] { return self.keys_at({from.data(), from.size()}, output); });
}

void make_lanes(Lanes* self, std::uint64_t rows, std::uint64_t columns, std::uint64_t lanes, std::uint64_t block,
                const Input& ends, const Input& begins, std::uint64_t piece_seed, std::uint64_t lane_seed) {
    const std::uint64_t length = ends.size() == 0 ? 0 : static_cast<std::uint64_t>(ends.data()[ends.size() - 1]);
    new (self) Lanes({length, rows, columns, lanes, block}, {ends.data(), ends.data() + ends.size()},
                     {begins.data(), begins.data() + begins.size()}, piece_seed, lane_seed);
}

}  // namespace

void bind_permutation(nb::module_& module) {
    nb::class_<Permutation>(module, "Permutation", "A keyed bijection of [0, length), computed per position.")
        .def(nb::init<std::uint64_t, std::uint64_t>(), "length"_a, "key"_a, nb::call_guard<WithoutLock>())
        .def("key_at", &Permutation::key_at, "position"_a, "Return the key at `position`, which must be in range.")
        .def("position_of", &Permutation::position_of, "key"_a, "Return the position of `key`, which must be in range.")
        .def("keys_at", &fill<&Permutation::keys_at>, "positions"_a, "keys"_a.noconvert(),
             "Fill `keys` until the first position out of range, and return the number filled.")
        .def("positions_of", &fill<&Permutation::positions_of>, "keys"_a, "positions"_a.noconvert(),
             "Fill `positions` until the first key out of range, and return the number filled.");
    nb::class_<Lanes>(module, "Lanes", "The order of one epoch of a block shuffle, computed per position.")
        .def("__init__", &make_lanes, "rows"_a, "columns"_a, "lanes"_a, "block"_a, "ends"_a, "begins"_a, "piece_seed"_a,
             "lane_seed"_a)
        .def("keys_at", &fill_by_lanes, "positions"_a, "keys"_a.noconvert(),
             "Fill `keys` until the first position out of range, and return the number filled.");
}

}  // namespace penstock::bindings
