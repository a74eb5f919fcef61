"""Real processes hold slots, drop them, fork, and are killed: the counters stay exact and slots come back."""

import os
import select
import signal

import pytest

from penstock.errors import UsageError
from penstock.transport import Arena, AttachedArena
from tests.processes.helping import watched
from tests.promptness import PATIENCE_SECONDS
from tests.transport.arena import peers
from tests.transport.arena.peers import bytes_of, filled


@pytest.mark.usefixtures("forked_programs")
def test_an_unrelated_process_shares_slots_until_it_is_killed() -> None:
    """It holds slots beyond the owner's own leases, and its drop rings; after SIGKILL its holds are removed.

    The counters are exact, and slots and number are used again.
    """
    with Arena() as arena, peers.unrelated(arena) as (peer, pid):
        lease = filled(arena, 100_000, 7)
        slot = lease.slot
        assert peer.give(slot, 7) == 1
        del lease
        other = filled(arena, 100_000, 8)
        other_slot = other.slot
        assert other_slot != slot
        assert peer.give(other_slot, 8) == 2
        assert peer.give(other_slot, 8) == 3
        assert arena.held_by(peer.participant) == 3
        arena.clear_bell()
        assert peer.drop(slot) == 2
        assert select.select([arena.fileno()], [], [], 0)[0]
        assert filled(arena, 100_000, 9).slot == slot
        del other
        with watched(pid) as has_ended:
            os.kill(pid, signal.SIGKILL)
            assert has_ended(PATIENCE_SECONDS)
        assert arena.held_by(peer.participant) == 2
        arena.clear_bell()
        assert arena.release_participant(peer.participant) == 2
        assert select.select([arena.fileno()], [], [], 0)[0]
        assert arena.counters.leased == arena.counters.returned == 6
        leases = [filled(arena, 100_000, value) for value in range(2)]
        assert {each.slot for each in leases} == {slot, other_slot}
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
