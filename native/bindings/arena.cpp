// Binds the table of an arena, and the leases that its participants hold.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "core/arena_table.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

void bind_arena(nb::module_& module) {
    nb::class_<ArenaTable>(module, "ArenaTable", "Which process holds which slot of shared memory.")
        .def_prop_ro("slots", &ArenaTable::slots, "How many slots it has words for.")
        .def_prop_ro("descriptor", &ArenaTable::descriptor, "The descriptor of its memory.")
        .def_prop_ro(
            "bell_descriptor", [](ArenaTable& table) { return table.bell().fileno(); },
            "The descriptor that is readable when the owner's bell was rung.")
        .def_prop_rw(
            "wanted", [](const ArenaTable& table) { return table.wanted().load(); },
            [](const ArenaTable& table, std::uint64_t size) { table.wanted().store(size); }, "size_bytes"_a,
            "How many bytes the owner waits for.")
        .def(
            "ring", [](ArenaTable& table) { table.bell().ring(); }, "Rings the owner's bell.")
        .def(
            "clear_bell", [](ArenaTable& table) { return table.bell().clear(); },
            "Makes its descriptor unreadable; whether it was readable.")
        .def("hold", &ArenaTable::hold, "slot"_a, "participant"_a, "Adds a hold on a participant's behalf.")
        .def("give_back", &ArenaTable::give_back, "slot"_a, "participant"_a,
             "Takes a hold away; False if none is there.")
        .def("holds", &ArenaTable::holds, "slot"_a, "participant"_a, "How many holds a participant has on a slot.")
        .def("idle", &ArenaTable::idle, "slot"_a, "Whether nobody holds the slot.")
        .def(
            "leased", [](const ArenaTable& table, std::uint64_t participant) { return table.leased(participant); },
            "participant"_a, "How many holds a participant was given.")
        .def(
            "returned", [](const ArenaTable& table, std::uint64_t participant) { return table.returned(participant); },
            "participant"_a, "How many of them are over.")
        .def_prop_ro(
            "all_leased", [](const ArenaTable& table) { return table.leased(); },
            "How many holds were given to all participants.")
        .def_prop_ro(
            "all_returned", [](const ArenaTable& table) { return table.returned(); }, "How many of them are over.")
        .def("acknowledge", &ArenaTable::acknowledge, "participant"_a, "Counts, and rings the bell.")
        .def("acknowledged", &ArenaTable::acknowledged, "participant"_a, "How often a participant did.")
        .def("release", &ArenaTable::release, "participant"_a, "Takes back all that one holds which is gone.")
        .def("welcome", &ArenaTable::welcome, "participant"_a, "Prepares a participant's number for a new one.");

    nb::class_<ArenaParticipant>(module, "ArenaParticipant", "One process's part in an arena.")
        .def_prop_ro("number", &ArenaParticipant::number, "Its number; the owner's is 0.")
        .def_prop_ro("here", &ArenaParticipant::here, "Whether this is the process that made it, not a forked child.")
        .def(
            "lease",
            [](std::shared_ptr<ArenaParticipant> participant, std::shared_ptr<Region> region, std::size_t start,
               std::size_t size, std::uint64_t slot) {
                return std::make_unique<Lease>(std::move(region), start, size, std::move(participant), slot).release();
            },
            "region"_a, "start"_a, "size_bytes"_a, "slot"_a, nb::rv_policy::take_ownership,
            "Leases a slot: the owner an idle one, others one that is held on their behalf.")
        .def("drop", &ArenaParticipant::drop, "slot"_a, "Gives back a hold that no lease has taken over.")
        .def("take_idle", &ArenaParticipant::take_idle, "The slots lent that became idle since the last call.");

    module.def("arena_table", &ArenaTable::create, "slots"_a, "Makes a table; the caller is its owner.");
    module.def("open_arena_table", &ArenaTable::open, "table_descriptor"_a, "bell_descriptor"_a,
               "Maps the table of another process.");
    module.def(
        "arena_participant",
        [](std::shared_ptr<ArenaTable> table, std::uint64_t number) {
            return std::make_shared<ArenaParticipant>(std::move(table), number);
        },
        "table"_a, "number"_a, "This process's part in an arena.");
}

}  // namespace penstock::bindings
