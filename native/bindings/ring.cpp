// Binds the slot ring. Only claim_wait and rest can sleep, so only they release the GIL; claim_wait does so only if no
// block is free.
#include "core/ring.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>

#include "bindings/interpreter_lock.hpp"
#include "bindings/lock_waits.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace penstock::bindings {

std::shared_ptr<Bell> core_bell(nb::handle bell);
nb::object python_bell(std::shared_ptr<Bell> bell);

namespace {

// The core trusts its callers; a number out of range from Python would access memory outside the words.
Ring& with_slot(Ring& ring, std::uint64_t slot) {
    if (slot >= ring.layout().capacity) throw std::out_of_range("slot must be below the ring's capacity");
    return ring;
}

void check_size(std::uint64_t capacity, std::uint64_t blocks) {
    if (capacity < 1 || capacity > RingWords::max_slots)
        throw std::out_of_range("capacity must be in [1, 1,024] slots");
    if (blocks < 1 || blocks > RingWords::max_blocks) throw std::out_of_range("max_blocks must be in [1, 2**20]");
}

void check_worker(std::uint64_t worker) {
    if (worker > RingWords::max_worker) throw std::out_of_range("worker must be below 2**22");
}

void arm(Ring& ring, std::uint64_t slot, std::uint64_t number, std::uint64_t blocks, bool merge) {
    if (blocks > ring.layout().blocks) throw std::out_of_range("blocks must be in [0, max_blocks]");
    if (blocks < 1 && !merge) throw std::out_of_range("a batch without row blocks must have a merge");
    with_slot(ring, slot).arm(slot, number, blocks, merge);
}

bool finish(Ring& ring, std::uint64_t slot, std::uint64_t block, std::uint64_t worker) {
    check_worker(worker);
    if (block > ring.layout().blocks) throw std::out_of_range("block must be in [0, max_blocks]");
    return with_slot(ring, slot).finish(slot, block, worker);
}

std::optional<Claim> claim(Ring& ring, std::uint64_t worker) {
    check_worker(worker);
    return ring.stopped() ? std::nullopt : ring.claim(worker);
}

std::optional<Claim> claim_wait(Ring& ring, std::uint64_t worker) {
    check_worker(worker);
    if (ring.stopped()) return std::nullopt;
    if (auto claim = ring.claim(worker)) return claim;
    return sleep_without_lock([&] { return ring.claim_wait(worker); });
}

void rest(Ring& ring, double seconds) {
    if (!(seconds > 0)) return;
    constexpr double most = 1e9;  // more would overflow
    const WithoutLock unlocked;
    ring.rest(std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(seconds, most) * 1e9)));
}

}  // namespace

void bind_ring(nb::module_& module) {
    nb::class_<Claim>(module, "Claim", "The right of one worker to write one block of one batch.")
        .def_ro("slot", &Claim::slot, "The slot of the batch.")
        .def_ro("block", &Claim::block, "The block of its rows; for a merge, the number of row blocks.")
        .def_ro("generation", &Claim::generation, "The number of times that the slot had been armed.")
        .def_ro("number", &Claim::number, "The batch's number in delivery order.")
        .def_ro("merge", &Claim::merge, "Whether this is the merge of the batch's rows.")
        .def("__repr__", [](const Claim& claim) {
            return nb::str("Claim(slot={}, block={}, generation={}, number={}, merge={})")
                .format(claim.slot, claim.block, claim.generation, claim.number, claim.merge);
        });

    nb::class_<Ring>(module, "Ring", "The claim protocol over private or shared memory.")
        .def(
            "__init__",
            [](Ring* self, std::uint64_t capacity, std::uint64_t blocks, nb::handle bell) {
                check_size(capacity, blocks);
                new (self) Ring(capacity, blocks, core_bell(bell));
            },
            "capacity"_a, "blocks"_a, "bell"_a)
        .def_static(
            "create_shared",
            [](std::uint64_t capacity, std::uint64_t blocks) {
                check_size(capacity, blocks);
                return Ring::create_shared(capacity, blocks);
            },
            "capacity"_a, "blocks"_a, "Create a ring for several processes, with a new bell.")
        .def_static("attach", &Ring::attach, "memory"_a, "bell"_a,
                    "Return the ring of another process, by its descriptors.")
        .def(
            "bell", [](const Ring& ring) { return python_bell(ring.bell()); }, nb::sig("def bell(self) -> Bell"),
            "Return a new object for the ring's bell.")
        .def_prop_ro("descriptor", &Ring::descriptor, "The descriptor of its memory; -1 for private memory.")
        .def_prop_ro(
            "capacity", [](const Ring& ring) { return ring.layout().capacity; }, "The number of slots.")
        .def_prop_ro(
            "blocks", [](const Ring& ring) { return ring.layout().blocks; },
            "The largest number of row blocks of a slot.")
        .def("arm", &arm, "slot"_a, "number"_a, "blocks"_a, "merge"_a, "Offer a batch to the workers.")
        .def("claim", &claim, "worker"_a,
             "Claim a block without waiting; None if no block is free, or the ring is stopped.")
        .def("claim_wait", &claim_wait, "worker"_a,
             "Wait for a free block and claim it; None once the ring is stopped.")
        .def("rest", &rest, "seconds"_a, "Sleep for so long, or until the ring is stopped.")
        .def("finish", &finish, "slot"_a, "block"_a, "worker"_a,
             "Mark a claimed block as written; return whether the slot was seen complete.")
        .def(
            "ready", [](Ring& ring, std::uint64_t slot) { return with_slot(ring, slot).ready(slot); }, "slot"_a,
            "Return whether every block was written.")
        .def(
            "drained", [](Ring& ring, std::uint64_t slot) { return with_slot(ring, slot).drained(slot); }, "slot"_a,
            "Return whether a cancelled slot has no writer left.")
        .def(
            "retire", [](Ring& ring, std::uint64_t slot) { return with_slot(ring, slot).retire(slot); }, "slot"_a,
            "Make a ready or drained slot idle.")
        .def(
            "cancel", [](Ring& ring, std::uint64_t slot) { return with_slot(ring, slot).cancel(slot); }, "slot"_a,
            "Cancel an armed slot; return whether it is drained already.")
        .def("release_worker", &Ring::release_worker, "worker"_a,
             "Free the blocks of a worker that has ended; return their number.")
        .def("stop", &Ring::stop, "End every claim_wait and rest.")
        .def("stopped", &Ring::stopped, "Return whether stop was called.");
}

}  // namespace penstock::bindings
