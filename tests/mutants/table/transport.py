"""Mutants of bells, arenas and the tensor pipe."""

from typing import Final

from tests.mutants.planting import Faults

TRANSPORT: Final[Faults] = {
    "_ring.py": {
        "ring: a wait looks only before it clears the bell": (
            *("self.bell.clear()\n if self.ready(slot) or self.stopped:\n break", "self.bell.clear()"),
            "transport/test_ring.py::test_a_slot_that_becomes_ready_before_the_bell_is_cleared_is_seen",
        ),
    },
    "_os/_bell.py": {
        "listener: a ring that one listener clears is lost to the others": (
            *("if other is not self:\n other.ring()", "pass"),
            *("os/test_bell.py", "loader/sharing/test_sharing.py"),
        ),
    },
    "_os/_closer.py": {
        "closer: closing twice closes twice": (
            *("self._close()\n self.is_open = False", "self._close()"),
            "os/test_closer.py",
        ),
        "closer: an interrupted close counts as done": (
            *("self._close()\n self.is_open = False", "self.is_open = False\n            self._close()"),
            "os/test_closer.py",
        ),
    },
    "_os/_interrupts.py": {
        "interrupts: a signal that arrives while they are held is lost": (
            *("self._arrived.append(number)", "pass"),
            "failures/test_lost_interrupts.py",
            "transport/pipe/test_interrupts.py",
            "loader/test_signal_handlers.py",
        ),
        "interrupts: handlers stay replaced after the scope": (
            *("try:\n self._restore()\n finally:", "try:\n                pass\n            finally:"),
            *("failures/test_lost_interrupts.py", "loader/test_signal_handlers.py"),
        ),
        "daemon thread: its end isn't signalled where the work fails": (
            *("work()\n finally:\n ended.ring()", "work()\n        ended.ring()\n    finally:"),
            "os/test_daemon_thread.py",
        ),
    },
    "transport/_arena/_region_pool.py": {
        "arena: a slot is a page short": (
            *("max(-(-size_bytes // PAGE_BYTES), 1) * PAGE_BYTES", "max(size_bytes // PAGE_BYTES, 1) * PAGE_BYTES"),
            "transport/arena/test_owner.py",
        ),
        "arena: a slot that is too small is leased": (
            *("bisect_left(sizes, need.touched_bytes)", "bisect_left(sizes, need.touched_bytes) - 1"),
            "transport/arena/test_owner.py",
        ),
        "arena: less memory than needed is returned to the system": (
            *("if excess_bytes <= 0:\n break", "if chosen:\n            break"),
            "transport/arena/test_owner.py",
        ),
        "arena: touched pages count once for each lease": (
            "self.touched_bytes += need.touched_bytes - slot.touched_bytes",
            "self.touched_bytes += need.touched_bytes",
            "transport/arena/test_owner.py",
        ),
        "arena: an array that ends behind its lease is found in it": (
            *("offset_bytes + size_bytes > leased.size_bytes", "offset_bytes > leased.size_bytes"),
            "transport/arena/test_owner.py",
        ),
    },
    "transport/_arena/_owner.py": {
        "arena: a hold for a participant isn't taken": (
            *("table.hold(slot, participant)", "pass"),
            *("transport/arena/test_owner.py", "transport/pipe/test_pipe.py"),
        ),
        "arena: a crashed participant keeps its holds": (
            *("if process.fileno() in descriptors}", "if process.fileno() not in descriptors}"),
            "transport/arena/test_attached.py",
        ),
        "arena: a participant leaves before it has acknowledged": (
            *("(done and empty)", "(done or empty)"),
            "transport/arena/test_attached.py",
        ),
        "arena: a waiter that gives up stays listed": (
            *("arena.listen_no_longer(bell)", "pass"),
            "transport/arena/test_owner.py",
        ),
        "arena: a waiter's wish outlives its wait": ("table.wanted = 0", "pass", "transport/arena/test_owner.py"),
    },
    "transport/_arena/_attached.py": {
        "attached: a place beyond its region is adopted": (
            *("0 <= place.start_bytes <= end <= len(region)", "0 <= place.start_bytes <= end"),
            *("transport/arena/test_attached.py", "transport/pipe/test_hostile.py"),
        ),
    },
    "transport/_pipe/_reader.py": {
        "reader: writers that end aren't counted": (
            'connection.close(Frame(Kind.CLOSED, b""))\n self._ended += 1',
            'connection.close(Frame(Kind.CLOSED, b""))',
            "transport/pipe/test_pipe.py",
        ),
        "reader: one writer too many is admitted": (
            *("self._accepted >= self._num_writers", "self._accepted > self._num_writers"),
            *("transport/pipe/test_pipe.py", "transport/pipe/test_ends.py"),
        ),
        "reader: a process that ends before it becomes a writer is waited for": (
            *("if pid not in self._writer_pids:", "if pid in self._writer_pids:"),
            *("transport/pipe/test_deaths.py", "transport/pipe/test_ends.py"),
        ),
        "connection: a message isn't acknowledged": (
            *("arena.acknowledge()\n self._starved = None", "self._starved = None"),
            *("transport/pipe/test_pipe.py", "transport/pipe/test_limits.py"),
        ),
        "connection: slots of unread messages are not returned": (
            *("self._arena.drop(slot)", "pass"),
            *("transport/pipe/test_ends.py", "transport/pipe/test_deaths.py", "transport/pipe/test_limits.py"),
        ),
        "connection: a dead writer's child keeps the reader waiting": (
            *("if self._process is None or not has_ended(self._process):", "if True:"),
            *("transport/pipe/test_deaths.py", "transport/pipe/test_ends.py"),
        ),
    },
    "transport/_pipe/_sender.py": {
        "sender: the reader's hold is not taken before the message is sent": (
            *("self.arena.hold(slot, self._participant)", "pass"),
            "transport/pipe/test_pipe.py",
        ),
        "sender: a withdrawn message keeps its holds": (
            *("self.arena.unhold(slot, self._participant)", "pass"),
            *("transport/pipe/test_interrupts.py", "transport/pipe/test_limits.py"),
        ),
        "sender: one message more than promised is in flight": (
            "self.arena.acknowledged(self._participant) < self._capacity",
            "self.arena.acknowledged(self._participant) <= self._capacity",
            *("transport/pipe/test_limits.py", "transport/pipe/test_pipe.py"),
        ),
        "outbox: an unsent packet is forgotten": (
            *("except BlockingIOError:\n return False", "except BlockingIOError:\n                pass"),
            "transport/pipe/test_interrupts.py",
        ),
    },
    "transport/_pipe/_socket.py": {
        "frames: a long frame's pieces overlap": (
            "body[start * _PACKET_BYTES : (start + 1) * _PACKET_BYTES]",
            "body[start * _PACKET_BYTES : (start + 1) * _PACKET_BYTES + 1]",
            "transport/pipe/test_interrupts.py",
        ),
        "frames: a withdrawn message's pieces stay": (
            "if kind is Kind.VOID:\n close_all(descriptors)\n self._pieces, self._size = [], 0",
            "if kind is Kind.VOID:\n                close_all(descriptors)",
            *("transport/pipe/test_interrupts.py", "transport/pipe/test_long.py"),
        ),
    },
    "transport/_encoding/_layout.py": {
        "layout: arrays overlap by what aligns them": (
            *("aligned(leaf.start + leaf.nbytes)", "leaf.start + leaf.nbytes"),
            *("transport/encoding/test_memory.py", "transport/encoding/test_round_trip.py"),
        ),
        "layout: a negative stride starts one item late": (
            *("sum((size - 1) * -step", "sum(size * -step"),
            *("transport/pipe/test_by_reference.py", "transport/encoding/test_round_trip.py"),
        ),
    },
    "transport/_encoding/_decoder.py": {
        "decoder: a small array is a view of memory that is reused": (
            *("copied_items(array, leaf.order) if leaf.nbytes <= message.copied_bytes else array", "array"),
            *("transport/encoding/test_memory.py", "transport/pipe/test_pipe.py"),
        ),
    },
}
