"""The choice of workers is a function of the cost of elements and of the machine."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.runtime.autotune.choices import (
    Cost,
    Room,
    Workers,
    choose_kind,
    choose_number,
    worth_processes,
    worth_workers,
)

BUSY = Cost(0.01, 0.01, 1.0)
RELEASING = Cost(0.01, 0.01, 1.9)
WAITING = Cost(0.02, 0.001)
CHEAP = Cost(1e-6, 1e-6)
WIDE = Room(32, 100_000, 8)
NARROW = Room(32, 100_000, 8, "it can't be pickled")


@pytest.mark.parametrize(
    ("cost", "room", "place"),
    [
        (BUSY, WIDE, "processes"),
        (Cost(2.0, 2.0), WIDE, "processes"),
        (BUSY, NARROW, "threads"),
        (RELEASING, WIDE, "threads"),
        (WAITING, WIDE, "threads"),
        (CHEAP, WIDE, "threads"),
        (None, WIDE, "threads"),
        (BUSY, Room(32, 100, 8), "threads"),
        (BUSY, Room(32, 100_000, 1), "threads"),
    ],
)
def test_processes_are_chosen_for_long_functions_that_hold_the_gil(cost: Cost | None, room: Room, place: str) -> None:
    """Threads compute all other functions: those that wait, release the GIL, cost little, or can't be sent."""
    assert choose_kind(3, cost, room)[:2] == (place, 3)


def test_the_reason_names_what_takes_little() -> None:
    """It is a batch, or all rows of an epoch together, which decide whether starting processes pays."""
    assert choose_kind(3, CHEAP, WIDE).why == "a batch takes 0.032 ms, too little for processes to pay"
    all_rows = choose_kind(3, BUSY, Room(32, 100, 8)).why
    assert all_rows == "an epoch takes 1 s of computing, too little for processes to pay"


@pytest.mark.parametrize(
    ("cost", "room", "expected"),
    [
        (CHEAP, WIDE, ("inline", 0)),
        (BUSY, WIDE, ("processes", 8)),
        (BUSY, Room(32, 100_000, 2), ("processes", 2)),
        (BUSY, NARROW, ("threads", 1)),
        (Cost(0.01, 0.01, 1.4), NARROW, ("threads", 2)),
        (Cost(1e-5, 1e-5, 1.0), NARROW, ("inline", 0)),
        (Cost(1e-5, 1e-5, 1.0), Room(32, 1_000_000, 8), ("processes", 8)),
        (Cost(1e-5, 1e-5, 1.9), WIDE, ("threads", 8)),
        (RELEASING, WIDE, ("threads", 8)),
        (WAITING, WIDE, ("threads", 32)),
        (Cost(0.04, 0.01), WIDE, ("threads", 32)),
        (Cost(0.03, 0.01), WIDE, ("threads", 24)),
        (WAITING, Room(4, 5, 8), ("threads", 5)),
        (None, WIDE, ("threads", 8)),
        (BUSY, Room(4, 100_000, 1), ("threads", 1)),
    ],
)
def test_the_number_of_workers_follows_from_the_cost(cost: Cost | None, room: Room, expected: tuple[str, int]) -> None:
    """No workers for cheap rows, one for each processor for rows that compute, more for rows that wait."""
    assert choose_number("auto", cost, room)[:2] == expected


COSTS = st.none() | st.builds(
    Cost, st.floats(1e-7, 10), st.floats(1e-7, 10), st.none() | st.floats(0.2, 3, allow_nan=False)
)
ROOMS = st.builds(
    Room, st.integers(1, 4096), st.integers(1, 10**7), st.integers(1, 256), st.sampled_from(["", "it can't be pickled"])
)


KINDS: list[Workers] = ["auto", "threads", "processes"]


@given(st.integers(1, 64), st.sampled_from(KINDS), COSTS, ROOMS)
def test_a_given_number_or_kind_of_workers_is_kept(
    number: int, workers: Workers, cost: Cost | None, room: Room
) -> None:
    """Only the rest is chosen, up to the rows of an epoch, with a reason, and no processes where there is an obstacle.

    Rows that are too cheap for any worker are too cheap for processes.
    """
    choice = choose_kind(number, cost, room)
    assert (choice.num_workers, choice.why != "") == (number, True)
    assert choice.place == "threads" or not room.obstacle
    choice = choose_number(workers, cost, room)
    assert choice.why
    assert 0 <= choice.num_workers <= max(room.epoch_rows, 1)
    assert (choice.place == "inline") == (choice.num_workers == 0)
    assert workers == "auto" or choice.place in ("inline", workers)
    assert not (workers == "auto" and room.obstacle and choice.place == "processes")
    assert choice.place != "processes" or choice.num_workers <= room.processors
    assert worth_processes(room) >= worth_workers(room) > 0
