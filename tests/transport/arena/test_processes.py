"""Real processes hold slots, drop them, fork, and are killed: the counters stay exact and slots come back."""

import os
import select
import signal
import subprocess
import sys

import pytest

from penstock.errors import UsageError
from penstock.transport import Arena, AttachedArena, leased_slots
from tests.transport.arena import peers
from tests.transport.arena.peers import bytes_of, filled


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_of_every_start_method_share_slots(method: str) -> None:
    """Two participants see the bytes that the owner wrote, and the slot comes back when both have dropped it."""
    program = [sys.executable, peers.__file__, method]
    ended = subprocess.run(program, env=peers.environment(), capture_output=True, text=True, timeout=50, check=False)
    assert (ended.stdout, ended.stderr) == ("leased 156, returned 156\n", "")


def test_an_unrelated_process_shares_slots() -> None:
    """A process that shares nothing but a path holds slots beyond the owner's own leases, and its drop rings."""
    with Arena() as arena, peers.unrelated(arena) as (peer, _):
        lease = filled(arena, 100_000, 7)
        slot = lease.slot
        assert peer.give(slot, 7) == 1
        del lease
        other = filled(arena, 100_000, 8)
        other_slot = other.slot
        assert other_slot != slot
        assert peer.give(other_slot, 8) == 2
        assert arena.held_by(peer.participant) == 2
        arena.clear_bell()
        assert peer.drop(slot) == 1
        assert select.select([arena.fileno()], [], [], 0)[0]
        assert filled(arena, 100_000, 9).slot == slot
        del other
        assert peer.drop(other_slot) == 0
        assert arena.counters.leased == arena.counters.returned == 5


def test_the_holds_of_a_killed_process_are_removed() -> None:
    """After SIGKILL the holds are removed, the counters are exact, and slot and number are used again."""
    with Arena() as arena, peers.unrelated(arena) as (peer, pid):
        pidfd = os.pidfd_open(pid)
        lease = filled(arena, 50_000, 3)
        slot = lease.slot
        peer.give(slot, 3)
        assert peer.give(slot, 3) == 2
        del lease
        os.kill(pid, signal.SIGKILL)
        select.select([pidfd], [], [])
        os.close(pidfd)
        assert arena.held_by(peer.participant) == 2
        arena.clear_bell()
        assert arena.release_participant(peer.participant) == 2
        assert select.select([arena.fileno()], [], [], 0)[0]
        assert arena.counters.leased == arena.counters.returned == 3
        assert filled(arena, 50_000, 4).slot == slot
        assert arena.invite() == peer.participant


def test_a_forked_child_returns_nothing() -> None:
    """A child's copies of leases, dropped there, leave the slots held; and the child can't use the arena."""
    with Arena() as arena:
        attached = AttachedArena(arena.table_descriptor, arena.bell_descriptor, arena.invite())
        lease = filled(arena, 5000, 5)
        arena.hold(lease.slot, 1)
        attached.add_region(0, arena.region_descriptor(0))
        place = arena.place_of(lease.slot)
        leases = [lease, attached.adopt(place)]
        del lease
        child = os.fork()
        if child == 0:
            status = 1
            try:
                leases.clear()
                with pytest.raises(UsageError, match="a forked child of it"):
                    arena.lease_nowait(1)
                with pytest.raises(UsageError, match="attach to it again in the child"):
                    attached.adopt(place)
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert arena.counters.leased - arena.counters.returned == 2
        assert bytes_of(leases[0]).tolist() == [5] * 5000
        leases.clear()
        assert arena.counters.leased == arena.counters.returned == 2
        attached.close()


def test_only_living_leases_are_counted() -> None:
    """The process's count of leases includes those that it adopted and those of its own arena."""
    before = leased_slots()
    with Arena() as arena:
        attached = AttachedArena(arena.table_descriptor, arena.bell_descriptor, arena.invite())
        lease = filled(arena, 10, 1)
        arena.hold(lease.slot, 1)
        assert leased_slots() == before + 1
        attached.add_region(0, arena.region_descriptor(0))
        adopted = attached.adopt(arena.place_of(lease.slot))
        assert leased_slots() == before + 2
        del lease, adopted
        assert leased_slots() == before
        attached.close()
