"""A participant adopts each hold on its behalf once, refuses other places, and keeps its number to the last return."""

import mmap
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from penstock.errors import ClosedError, MessageError, UsageError
from penstock.transport import Arena, AttachedArena, SlotPlace, leased_slots
from tests.transport.arena.peers import Bytes, bytes_of, filled, lease_of

PARTICIPANT = 1


@pytest.fixture
def arena() -> Iterator[Arena]:
    """An owner that has invited participant 1."""
    with Arena() as arena:
        assert arena.invite() == PARTICIPANT
        yield arena


@pytest.fixture
def attached(arena: Arena) -> Iterator[AttachedArena]:
    """That participant."""
    attached = AttachedArena(arena.table_descriptor, arena.bell_descriptor, PARTICIPANT)
    yield attached
    attached.close()


def given(arena: Arena, size_bytes: int) -> SlotPlace:
    """Return the place of a new slot that only the participant holds, with bytes that count upwards."""
    lease = filled(arena, size_bytes, np.arange(size_bytes).astype(np.uint8))
    arena.hold(lease.slot, PARTICIPANT)
    return arena.place_of(lease.slot)


def adopted(arena: Arena, attached: AttachedArena, size_bytes: int) -> Bytes:
    """Return an array over a slot that the participant has adopted."""
    place = given(arena, size_bytes)
    attached.add_region(place.region, arena.region_descriptor(place.region))
    return bytes_of(attached.adopt(place))


def test_every_kind_of_view_keeps_the_slot() -> None:
    """As long as any view is alive, the slot is held and has its bytes; the last one returns it."""
    torch: Any = pytest.importorskip("torch")
    kinds: list[Callable[[Bytes], Any]] = [
        lambda array: array[2:3],
        lambda array: array.T,
        lambda array: array.data,
        torch.from_numpy,
        np.from_dlpack,
        lambda array: torch.from_dlpack(array)[3:].t(),
    ]
    for kind in kinds:
        with (
            Arena() as arena,
            closing(AttachedArena(arena.table_descriptor, arena.bell_descriptor, arena.invite())) as own,
        ):
            view = kind(adopted(arena, own, 1000).reshape(10, 100))
            expected = np.asarray(view).tolist()
            other = filled(arena, 1000, 255)
            assert other.slot != 0
            assert np.asarray(view).tolist() == expected
            assert own.held == arena.held_by(PARTICIPANT) == 1
            del view
            assert own.held == arena.held_by(PARTICIPANT) == 0
            assert lease_of(arena, 1000).slot == 0
            del other


def test_each_hold_is_adopted_or_dropped_once(arena: Arena, attached: AttachedArena) -> None:
    """There are as many leases as holds; a hold that was never adopted can be dropped, and none twice."""
    place = given(arena, 10)
    attached.add_region(0, arena.region_descriptor(0))
    leases = [attached.adopt(place)]
    with pytest.raises(
        MessageError, match="the owner must hold a slot on behalf of the process that adopts it: slot 0"
    ):
        attached.adopt(place)
    with pytest.raises(MessageError, match="only a hold can be returned: slot 0"):
        attached.drop(0)
    arena.hold(0, PARTICIPANT)
    assert attached.held == 2
    attached.drop(0)
    arena.hold(0, PARTICIPANT)
    arena.unhold(0, PARTICIPANT)
    assert attached.held == 1
    leases.clear()
    assert attached.held == 0
    assert arena.counters.leased == arena.counters.returned == 4


def test_a_wrong_place_is_refused(arena: Arena, attached: AttachedArena) -> None:
    """A place outside of the memory, misaligned, or of a slot that isn't held, touches nothing and raises."""
    place = given(arena, 1000)
    attached.add_region(0, arena.region_descriptor(0))
    for change in (
        *({"slot": -1}, {"slot": 1}, {"slot": 1 << 60}, {"region": 1}, {"region": -1}, {"start_bytes": -64}),
        *({"start_bytes": 1}, {"start_bytes": 1 << 60}, {"size_bytes": -1}, {"size_bytes": 1 << 40}),
    ):
        with pytest.raises(MessageError):
            attached.adopt(place._replace(**change))
    assert len(attached.adopt(place)) == 1000


def test_a_wrong_region_is_refused(arena: Arena, attached: AttachedArena) -> None:
    """Memory that isn't sealed, a descriptor of no memory, and a second region of one number are not mapped."""
    unsealed = os.memfd_create("unsealed", os.MFD_ALLOW_SEALING)
    os.truncate(unsealed, 100)
    for descriptor in (unsealed, arena.bell_descriptor, -1):
        with pytest.raises(MessageError, match="the descriptor must be that of a shared region"):
            attached.add_region(0, descriptor)
    os.close(unsealed)
    given(arena, 10)
    attached.add_region(0, arena.region_descriptor(0))
    assert len(attached.region(0)) == mmap.PAGESIZE
    with pytest.raises(MessageError, match="region 0 was sent before"):
        attached.add_region(0, arena.region_descriptor(0))
    with pytest.raises(MessageError, match="region 1 was not"):
        attached.region(1)


def test_a_wrong_table_is_refused(arena: Arena) -> None:
    """An arena can't be joined by other descriptors, or by an invalid number."""
    _lease = filled(arena, mmap.PAGESIZE, 0)
    for table in (arena.bell_descriptor, arena.region_descriptor(0), -1):
        with pytest.raises(MessageError, match="the descriptors must be those of an arena's table and bell"):
            AttachedArena(table, arena.bell_descriptor, 1)
    with pytest.raises(MessageError, match="the descriptors must be those of an arena's table and bell"):
        AttachedArena(arena.table_descriptor, -1, 1)
    for participant in (-1, 0, 64):
        with pytest.raises(MessageError, match="a participant's number must be in 1 … 63"):
            AttachedArena(arena.table_descriptor, arena.bell_descriptor, participant)


def test_words_pass_both_ways(arena: Arena, attached: AttachedArena) -> None:
    """The owner says what it wants, the participant acknowledges; each sees it at once."""
    assert attached.wanted == 0
    arena.want(1 << 40)
    assert attached.wanted == 1 << 40
    attached.acknowledge()
    attached.acknowledge()
    assert arena.acknowledged(PARTICIPANT) == 2


def test_arrays_outlive_both(arena: Arena, attached: AttachedArena) -> None:
    """After both ends were closed an array stays valid; the participant's end does nothing more."""
    array = adopted(arena, attached, 300)
    attached.close()
    attached.close()
    arena.close()
    with pytest.raises(ClosedError, match="the arena was closed here"):
        attached.adopt(SlotPlace(0, 0, 0, 1))
    assert array.tolist() == [number % 256 for number in range(300)]
    before = leased_slots()
    del array
    assert leased_slots() == before - 1


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
