"""`on_error`: raise, skip, or substitute another position's element; and errors that are retried."""

import errno
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator

import penstock as ps
from penstock.errors import GraphError
from penstock.events import Skipped, Substituted
from tests.dataset.functions import is_odd, noisy
from tests.equivalence.definition import close_all
from tests.places import in_places, place_of
from tests.seeds import derive

CORRUPT = {3, 6, 7, 20, 21, 29}


def decode(number: int) -> int:
    """Return the number, scaled, or fail for those that are corrupt."""
    if number in CORRUPT:
        raise ValueError(f"corrupt {number}")
    return number * 10


def decode_pair(pair: tuple[int, float], rng: Generator) -> tuple[int, float, float]:
    """Do the same with random numbers below and of its own."""
    number, noise = pair
    return decode(number), noise, rng.random()


def stand_in(name: str, epoch: int, position: int, fails: Callable[[int], bool]) -> int:
    """Return the position of the element that a step of a dataset of seed 5 and 32 elements takes instead.

    It is the first of derive(step's seed, "substitute", epoch, position, ordinal, attempt) % 32 that does not fail.
    """
    step = derive(5, name)
    tried = (derive(step, "substitute", epoch, position, 0, attempt) % 32 for attempt in range(64))
    return next(other for other in tried if not fails(other))


SHUFFLED = ps.range(32, seed=5).shuffle()


def expected_epoch(epoch: int) -> list[int]:
    """Return the elements of `SHUFFLED.map(decode)`, with substitutes for the corrupt ones."""
    order: list[int] = list(SHUFFLED.epoch(epoch))

    def element(position: int) -> int:
        if order[position] not in CORRUPT:
            return order[position] * 10
        return order[stand_in("decode", epoch, position, lambda other: order[other] in CORRUPT)] * 10

    return [element(position) for position in range(32)]


def test_substitutes_follow_from_the_position() -> None:
    """The length stays, and a hash chooses the substitute's position, also on the ranks of a loader.

    The substitute has the random numbers of its own position, below the step and in it.
    """
    dataset = SHUFFLED.map(decode, on_error=ps.Substitute(attempts=32))
    assert len(dataset) == 32
    assert [list(dataset.epoch(epoch)) for epoch in range(2)] == [expected_epoch(0), expected_epoch(1)]
    loaders = [ps.Loader(dataset.batch(8), num_workers=2, shard=ps.Shard(rank, 4)) for rank in range(4)]
    for epoch in range(2):
        assert [row for step in zip(*loaders, strict=True) for part in step for row in part] == expected_epoch(epoch)
    close_all(loaders)
    below = SHUFFLED.random_map(noisy)
    drawn = below.random_map(decode_pair, on_error=ps.Substitute(attempts=32))
    plain = below.random_map(decode_pair, on_error="raise")
    order = list(SHUFFLED)
    for position, element in enumerate(drawn):
        failed = order[position] in CORRUPT
        source = stand_in("decode_pair", 0, position, lambda other: order[other] in CORRUPT) if failed else position
        assert element == plain[source]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_replaced_and_skipped_elements_are_reported(num_workers: int) -> None:
    """Each event has step, place, key, error and the substitute's position; the counters agree, and the others stay."""
    order = list(SHUFFLED)
    places = [position for position, number in enumerate(order) if number in CORRUPT]
    with ps.Loader(SHUFFLED.map(decode, on_error=ps.Substitute(32)).batch(8), num_workers=num_workers) as loader:
        assert (loader.stats()["substituted"], loader.replaced()) == (0.0, ())
        list(loader)
        assert loader.stats()["substituted"] == len(CORRUPT)
        substituted = set(loader.replaced())
    with ps.Loader(SHUFFLED.map(decode, on_error="skip").batch(5), num_workers=num_workers) as loader:
        assert np.concatenate(list(loader)).tolist() == [number * 10 for number in order if number not in CORRUPT]
        assert loader.stats()["skipped"] == len(CORRUPT)
        skipped = set(loader.replaced())
    at = [("decode", 0, place, order[place], f"ValueError: corrupt {order[place]}") for place in places]
    taken = [stand_in("decode", 0, place, lambda other: order[other] in CORRUPT) for place in places]
    assert skipped == {Skipped(*each) for each in at}
    assert substituted == {Substituted(*each, other, order[other]) for each, other in zip(at, taken, strict=True)}


@in_places("inline", "threads", "processes", "isolated")
def test_each_part_and_each_piece_has_an_event(place: dict[str, Any]) -> None:
    """Parts of a mixture or a zip have equal positions, and so have the elements that a step makes of one."""
    pieces = ps.range(32).flat_map(lambda number: [number, number + 1]).map(decode, on_error="skip").batch(8)
    datasets: list[tuple[ps.Dataset, list[str]]] = [(pieces, ["", ""])]
    for on_error in ("skip", ps.Substitute(attempts=32)):
        part = ps.range(32).map(decode, on_error=on_error)
        mixed = ps.mix({"web": ps.concatenate({"en": part, "de": part}), "code": part}, stop="all").batch(8)
        zipped = ps.zip({"x": part, "y": ps.range(32).map(decode, on_error=on_error)}).batch(8)
        datasets += [(mixed, ["code", "web/de", "web/en"]), (zipped, ["x", "y"])]
    for dataset, components in datasets:
        with ps.Loader(dataset, **place) as loader:
            list(loader)
            events, stats = loader.replaced(), loader.stats()
        assert stats["skipped"] + stats["substituted"] == len(events) == len(components) * len(CORRUPT)
        assert sorted(event.component for event in events) == sorted(components * len(CORRUPT))
        assert {event.error for event in events} == {f"ValueError: corrupt {number}" for number in CORRUPT}


def test_attempts_run_out() -> None:
    """After the allowed number of substitutes has failed, the last error is raised, with a note."""

    def fail(number: int) -> int:
        raise ValueError(f"corrupt {number}")

    dataset = ps.range(9).map(fail, name="fail", on_error=ps.Substitute(attempts=4))
    with pytest.raises(ValueError, match="corrupt") as caught:
        dataset[2]
    notes = caught.value.__notes__
    assert notes[-1] == "in step 'fail' at epoch 0, position 2, key 2; 4 substitutes failed too"
    with pytest.raises(ValueError, match="corrupt 0"):
        ps.range(1).map(fail, on_error=ps.Substitute())[0]


def one_by_one(dataset: ps.Dataset, num_workers: int) -> tuple[list[int], ValueError | None]:
    """Return a loader's batches before its first error, and the error."""
    found: list[int] = []
    with ps.Loader(dataset, num_workers=num_workers) as loader:
        try:
            found.extend(int(element) for element in loader)
        except ValueError as error:
            return found, error
    return found, None


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_budget_ends_in_the_original_error(num_workers: int) -> None:
    """After the budget is used up, the next error is raised unchanged, with a note; one of 0 replaces nothing.

    An error elsewhere in a block computes the block again, with the same substitutes, and uses up no budget.
    """
    dataset = ps.range(32, seed=5).map(decode, on_error=ps.Substitute(attempts=32, budget=2)).batch(1)
    with ps.Loader(dataset, num_workers=num_workers) as loader, pytest.raises(ValueError, match="corrupt") as caught:
        list(loader)
    note, _ = caught.value.__notes__  # the other one names the batch
    assert note.startswith("in step 'decode' at epoch 0, position ")
    assert note.endswith("; the budget of 2 substitutions is used up")
    for budget, count, error in ((6, 32, "None"), (0, 3, "corrupt 3"), (1, 6, "corrupt 6")):
        budgeted = ps.range(32, seed=5).map(decode, on_error=ps.Substitute(32, budget=budget)).filter(lambda _: True)
        found, raised = one_by_one(budgeted, num_workers)
        assert (len(found), str(raised)) == (count, error)


NUMBERS = ps.range(32, seed=5).map(decode, on_error=ps.Substitute(attempts=32))
GROUPED = NUMBERS.batch(4).unbatch()


@pytest.mark.parametrize(
    ("numbers", "kept_in", "place"),
    [
        place_of("inline", NUMBERS, "disk"),
        place_of("threads", GROUPED, "disk"),
        place_of("processes", NUMBERS, "memory"),
        place_of("isolated", GROUPED, "disk"),
    ],
)
def test_a_cache_keeps_no_substitute(numbers: ps.Dataset, kept_in: str, place: dict[str, Any], tmp_path: Path) -> None:
    """Each epoch has its own substitutes, whichever was computed first, on every rank and after a seek."""
    folder = tmp_path if kept_in == "disk" else None
    plain, cached = (below.shuffle().batch(8) for below in (numbers, numbers.cache(folder)))
    with ps.Loader(plain) as loader:
        expected = [[batch.tolist() for batch in loader] for _ in range(3)]
    for rank, ranks in ((0, 1), (1, 2)):
        share = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
        with ps.Loader(cached, shard=ps.Shard(rank, ranks), **place) as loader:
            for epoch in (2, 0, 1):
                loader.seek(epoch * len(expected[0]))
                assert [batch.tolist() for batch in loader] == [rows[share] for rows in expected[epoch]]
    assert cached[0].tolist() == expected[0][0]


@pytest.mark.parametrize(("size", "kept"), [("1GiB", 31), (2_000, 8)])
def test_a_cache_keeps_the_others_of_a_block_with_a_substitute(size: int | str, kept: int) -> None:
    """They are computed again only once, and not if the cache has no room for them."""
    calls: list[int] = []

    def refuse_three(number: int) -> int:
        calls.append(number)
        if number == 3:
            raise ValueError(number)
        return number

    cached = ps.range(32, seed=5).map(refuse_three, on_error=ps.Substitute()).cache(size=size)
    with ps.Loader(cached.batch(32)) as loader:
        list(loader)
        assert len(calls) <= 2 * (32 + 1)
        calls.clear()
        list(loader)
    # The absent ones, a substitute, and, for a full cache, the first that have no room.
    assert 32 - kept < len(calls) <= 32 - kept + 4
    (line,) = (line for line in str(cached.explain(evaluate=False)).splitlines() if "are kept" in line)
    assert f"{kept} of 32 elements" in line


def test_a_failure_of_what_a_cache_computes_again_loses_no_element() -> None:
    """A function that fails only in the calls by which a cache finds the substitutes of a block raises no error."""
    calls: list[int] = []

    def fail_later(number: int) -> int:
        calls.append(number)
        if len(calls) > 8:
            raise ValueError("gone")
        return number

    below = NUMBERS.take(8)
    with ps.Loader(below.map(fail_later).cache().batch(8)) as loader:
        assert [batch.tolist() for batch in loader] == [list(below)]
    assert len(calls) > 8


def test_which_datasets_have_positions() -> None:
    """After skipping, only evaluating shows the number of elements; above a filter no other position is known.

    The elements that are left keep their random numbers.
    """
    with pytest.raises(TypeError, match=r"map\(decode, on_error='skip'\) can only be read in order"):
        len(ps.range(32).map(decode, on_error="skip"))
    rest = dict(ps.range(32).map(keep, on_error="skip").random_map(noisy))
    every = dict(ps.range(32).random_map(noisy))
    assert rest == {number: value for number, value in every.items() if number not in CORRUPT}
    with pytest.raises(GraphError) as caught:
        ps.range(9).filter(is_odd).map(decode, on_error=ps.Substitute())
    assert "on_error=Substitute(…) needs a dataset whose elements have positions" in str(caught.value)
    assert 'filter(is_odd) can only be read in order. Use on_error="skip" there.' in str(caught.value)


def keep(number: int) -> int:
    """Return the number, or fail for those that are corrupt."""
    decode(number)
    return number


class Flaky:
    """A function that fails the first `failures` times for each number."""

    def __init__(self, failures: int, make_error: Callable[[], Exception]) -> None:
        self.failures = failures
        self.make_error = make_error
        self.calls: Counter[int] = Counter()
        self.lock = threading.Lock()

    def __call__(self, number: int) -> int:
        """Return the number, or fail."""
        with self.lock:
            self.calls[number] += 1
            calls = self.calls[number]
        if calls <= self.failures:
            raise self.make_error()
        return number


TRANSIENT: list[Callable[[], Exception]] = [
    lambda: OSError(errno.ETIMEDOUT, "timed out"),
    lambda: OSError(errno.EIO, "I/O error"),
    lambda: TimeoutError("late"),
    lambda: ConnectionResetError("reset"),
]
PERMANENT: list[Callable[[], Exception]] = [
    lambda: FileNotFoundError(errno.ENOENT, "no such file"),
    lambda: PermissionError(errno.EACCES, "denied"),
    lambda: OSError("truncated"),
    lambda: ValueError("corrupt"),
]


def test_only_passing_errors_are_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three more attempts are made for each element, one by one and in blocks; after the fourth the error is raised.

    Attempts come before `on_error`: the element is neither replaced nor skipped. A missing file is not read again.
    """
    monkeypatch.setattr("penstock._graph._apply.RETRY_WAITS_SECONDS", (0.0, 0.0, 0.0))
    for make_error in TRANSIENT:
        flaky = Flaky(3, make_error)
        assert list(ps.range(6).map(flaky)) == list(range(6))
        assert set(flaky.calls.values()) == {4}
    for on_error in ("raise", "skip", ps.Substitute()):
        dataset = ps.range(6).map(Flaky(3, TRANSIENT[0]), on_error=on_error).batch(3, merge=list)
        with ps.Loader(dataset, num_workers=2 if on_error == "raise" else 0) as loader:
            assert [row for batch in loader for row in batch] == list(range(6))
            assert loader.replaced() == ()
    for make_error, calls in ((TRANSIENT[0], 4), *((make_error, 1) for make_error in PERMANENT)):
        flaky = Flaky(99, make_error)
        with pytest.raises(type(make_error())) as caught:
            _ = ps.range(6).map(flaky)[4]
        assert flaky.calls == {4: calls}
        assert "key 4" in caught.value.__notes__[0]
