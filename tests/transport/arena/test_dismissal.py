"""A dismissed participant keeps its number until it has returned everything, and no longer."""

import os
import subprocess
import sys

import pytest

from penstock.errors import UsageError
from penstock.transport import Arena, AttachedArena
from tests.transport.arena.peers import bytes_of, lease_of


def test_a_number_is_free_once_all_is_returned_and_acknowledged() -> None:
    """Whichever comes last; before that it is not given to anybody else."""
    with Arena() as arena:
        number = arena.invite()
        attached = AttachedArena(arena.table_descriptor, arena.bell_descriptor, number)
        lease = lease_of(arena, 1000)
        arena.hold(lease.slot, number)
        place = arena.place_of(lease.slot)
        attached.add_region(place.region, arena.region_descriptor(place.region))
        array = bytes_of(attached.adopt(place))
        del lease
        arena.dismiss(number, acknowledgements=1)
        attached.acknowledge()
        assert arena.invite() != number
        del array
        assert arena.invite() == number
        assert arena.acknowledged(number) == 0
        arena.dismiss(number, acknowledgements=1)
        assert arena.invite() != number
        attached.acknowledge()
        assert arena.invite() == number
        attached.close()
        assert arena.counters.leased == arena.counters.returned


def test_a_dismissed_participant_that_dies_is_gone() -> None:
    """Whatever it held; and one that dies before keeps its number until it is dismissed."""
    with Arena() as arena, subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        watched = os.pidfd_open(process.pid)
        first, second = arena.invite(watched), arena.invite(watched)
        os.close(watched)
        lease = lease_of(arena, 1000)
        for number in (first, second):
            arena.hold(lease.slot, number)
        arena.dismiss(first, acknowledgements=7)
        assert arena.reclaim() == 0
        process.kill()
        process.wait()
        assert arena.reclaim() == 2
        assert arena.reclaim() == 0
        assert arena.held_by(second) == 0
        assert arena.invite() == first
        assert arena.invite() not in (first, second)
        arena.dismiss(second, acknowledgements=0)
        assert arena.invite() == second


def test_only_the_invited_are_dismissed() -> None:
    """As `release_participant` refuses, too."""
    with Arena() as arena, pytest.raises(UsageError, match="invite"):
        arena.dismiss(1, acknowledgements=0)
