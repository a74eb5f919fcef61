// Binds the table of an arena, and the leases of its participants.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "core/arena_table.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

void bind_arena(nb::module_& module) {
    nb::class_<ArenaTable>(module, "ArenaTable", "The holds of processes on the slots of shared memory.")
        .def_prop_ro("slots", &ArenaTable::slots, "The number of slots.")
        .def_prop_ro("descriptor", &ArenaTable::descriptor, "The descriptor of its memory.")
        .def_prop_ro(
            "bell_descriptor", [](ArenaTable& table) { return table.bell().fileno(); },
            "The descriptor of the owner's bell.")
        .def_prop_rw(
            "wanted", [](const ArenaTable& table) { return table.wanted().load(); },
            [](const ArenaTable& table, std::uint64_t size) { table.wanted().store(size); }, "size_bytes"_a,
            "The number of bytes that the owner waits for.")
        .def(
            "ring", [](ArenaTable& table) { table.bell().ring(); }, "Ring the owner's bell.")
        .def(
            "clear_bell", [](ArenaTable& table) { return table.bell().clear(); },
            "Make the bell's descriptor unreadable; return whether it was readable.")
        .def("hold", &ArenaTable::hold, "slot"_a, "participant"_a, "Add a hold on a participant's behalf.")
        .def("give_back", &ArenaTable::give_back, "slot"_a, "participant"_a,
             "Remove a hold; return False if there is none.")
        .def("holds", &ArenaTable::holds, "slot"_a, "participant"_a,
             "Return the number of holds of a participant on a slot.")
        .def("idle", &ArenaTable::idle, "slot"_a, "Return whether no participant holds the slot.")
        .def(
            "leased", [](const ArenaTable& table, std::uint64_t participant) { return table.leased(participant); },
            "participant"_a, "Return the number of holds that were added for a participant.")
        .def(
            "returned", [](const ArenaTable& table, std::uint64_t participant) { return table.returned(participant); },
            "participant"_a, "Return the number of a participant's holds that have ended.")
        .def_prop_ro(
            "all_leased", [](const ArenaTable& table) { return table.leased(); },
            "The number of holds that were added for all participants.")
        .def_prop_ro(
            "all_returned", [](const ArenaTable& table) { return table.returned(); },
            "The number of all holds that have ended.")
        .def("acknowledge", &ArenaTable::acknowledge, "participant"_a,
             "Count one more acknowledgement of a participant, and ring the bell.")
        .def("acknowledged", &ArenaTable::acknowledged, "participant"_a,
             "Return the number of acknowledgements of a participant.")
        .def("release", &ArenaTable::release, "participant"_a,
             "Remove all holds of a participant that has ended; return their number.")
        .def("welcome", &ArenaTable::welcome, "participant"_a, "Prepare a number for a new participant.");

    nb::class_<ArenaParticipant>(module, "ArenaParticipant", "One process's part in an arena.")
        .def_prop_ro("number", &ArenaParticipant::number, "Its number; 0 for the owner.")
        .def_prop_ro("here", &ArenaParticipant::here, "Whether this process created it; False in a forked child.")
        .def(
            "lease",
            [](std::shared_ptr<ArenaParticipant> participant, std::shared_ptr<Region> region, std::size_t start,
               std::size_t size, std::uint64_t slot) {
                return std::make_unique<Lease>(std::move(region), start, size, std::move(participant), slot).release();
            },
            "region"_a, "start"_a, "size_bytes"_a, "slot"_a, nb::rv_policy::take_ownership,
            "Lease a slot: for the owner an idle one, for others one that is held on their behalf.")
        .def("drop", &ArenaParticipant::drop, "slot"_a, "Return a hold that no lease has adopted.")
        .def("take_idle", &ArenaParticipant::take_idle,
             "Return the leased slots that have become idle since the last call.");

    module.def("arena_table", &ArenaTable::create, "slots"_a, "Create a table; the caller is its owner.");
    module.def("open_arena_table", &ArenaTable::open, "table_descriptor"_a, "bell_descriptor"_a,
               "Map the table of another process.");
    module.def(
        "arena_participant",
        [](std::shared_ptr<ArenaTable> table, std::uint64_t number) {
            return std::make_shared<ArenaParticipant>(std::move(table), number);
        },
        "table"_a, "number"_a, "Create this process's part in an arena.");
}

}  // namespace penstock::bindings
