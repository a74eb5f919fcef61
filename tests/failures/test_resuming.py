"""Failures of saving and resuming that are known from other loaders, and that must not happen here."""

import json
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.equivalence.definition import close_all, concatenated, digest, digests, ranks_of

WORKERS = pytest.mark.parametrize("workers", [0, 2])
KINDS = pytest.mark.parametrize("kind", ["indexable", "ordered"])
BAD = 37


def noisy(number: int, rng: np.random.Generator) -> Any:
    """Return the number and a random one."""
    return {"number": number, "noise": rng.random()}


def is_odd(element: Any) -> bool:
    """Keep odd numbers."""
    return bool(element["number"] % 2)


def start(seed: int = 1, length: int = 120) -> ps.Dataset:
    """Return shuffled, noisy numbers."""
    return ps.range(length, seed=seed).shuffle().random_map(noisy)


MANY_TO_ONE: dict[str, ps.Dataset] = {
    "batches": start().batch(7),
    "dropped remainders": start().batch(7, remainder="drop"),
    "filtered": start().filter(is_odd).batch(7),
    "windows": start().filter(is_odd).window_shuffle(9).batch(4),
    "batched again": start().batch(6).rebatch(5, remainder="drop"),
    "flat": start().flat_map(lambda element: [element] * (element["number"] % 3)).batch(7),
    "packed": ps.range(50).map(lambda number: np.arange(number % 9)).pack(10).batch(3),
    "mixed": ps.mix({"a": start(), "b": start(2).filter(is_odd)}, {"a": 2, "b": 1}).batch(5),
    "random above": start().filter(is_odd).batch(4).unbatch().random_map(lambda e, rng: {**e, "more": rng.random()}),
}


@pytest.mark.parametrize("name", MANY_TO_ONE)
def test_the_number_of_workers_changes_nothing(name: str) -> None:
    """Steps that make one element of many give the same bytes for any number of workers."""
    found: list[Any] = []
    for workers in (0, 1, 2, 5):
        with ps.Loader(MANY_TO_ONE[name], num_workers=workers) as loader:
            found.append([digests(loader) for _ in range(2)])
    assert found[0][0]
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("name", MANY_TO_ONE)
def test_a_state_fits_any_number_of_workers(name: str) -> None:
    """A state of 2 workers, which computed ahead of it, resumes with 0, 1, 3 or 5."""
    with ps.Loader(MANY_TO_ONE[name]) as loader:
        expected = digests(loader) + digests(loader)
    with ps.Loader(MANY_TO_ONE[name], num_workers=2, prefetch=6) as loader:
        begun = digests(islice(loader, 3))
        state = json.dumps(loader.state_dict())
    for workers in (0, 1, 3, 5):
        with ps.Loader(MANY_TO_ONE[name], num_workers=workers) as loader:
            loader.load_state_dict(state)
            assert begun + digests(loader) + digests(loader) == expected


OTHERS: dict[str, Callable[[], ps.Dataset]] = {
    "another seed": lambda: start(2).batch(4),
    "another length": lambda: start(length=121).batch(4),
    "another source": lambda: ps.read(list(range(120)), seed=1).shuffle().random_map(noisy).batch(4),
    "no shuffle": lambda: ps.range(120, seed=1).random_map(noisy).batch(4),
    "a slice": lambda: start()[:100].batch(4),
    "a filter": lambda: start().filter(is_odd).batch(4),
    "batches in another order": lambda: start().batch(4).shuffle(),
    "a mixture": lambda: ps.mix({"a": start()}).batch(4),
    "repeated": lambda: start().repeat(2).batch(4),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_state_of_another_dataset_is_refused(name: str) -> None:
    """A dataset refuses, unchanged, the state of a dataset with other data or another order, and vice versa."""
    own, other = ps.Loader(start().batch(4)), ps.Loader(OTHERS[name]())
    for one, two in ((own, other), (other, own)):
        next(iter(one))
        state = two.state_dict()
        with pytest.raises(ps.errors.StateError, match=r"another|reorders|indexable"):
            two.load_state_dict(one.state_dict())
        assert two.state_dict() == state


def test_the_state_of_other_weights_or_parts_is_refused() -> None:
    """A mixture refuses a state with another past of weights or parts, and takes one with another future."""

    def loader(schedule: Any, names: str = "ab") -> ps.Loader:
        parts = {name: ps.range(1000 * ord(name), 1000 * ord(name) + 100).shuffle() for name in names}
        return ps.Loader(ps.mix(parts, schedule, stop="all").batch(8))

    saved = loader({0: {"a": 1, "b": 1}})
    begun = list(islice(saved, 3))
    state = saved.state_dict()
    for other in (loader({0: {"a": 2, "b": 1}}), loader({0: {"a": 1, "b": 1}, 20: {"a": 1}}), loader(None, "abc")):
        with pytest.raises(ps.errors.StateError, match="another"):
            other.load_state_dict(state)
    other = loader({0: {"a": 1, "b": 1}, 24: {"a": 1, "b": 2, "c": 3}}, "cab")
    other.load_state_dict(state)
    rows = np.concatenate([*begun, *other]).tolist()
    assert sorted(rows) == [1000 * ord(name) + number for name in "abc" for number in range(100)]


HOLDS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "window": lambda dataset: dataset.window_shuffle(8),
    "rows": lambda dataset: dataset.batch(8).unbatch(),
    "flat_map": lambda dataset: dataset.flat_map(lambda number: [10 * number + copy for copy in range(8)]),
}


@pytest.mark.parametrize("name", HOLDS)
def test_weights_do_not_change_within_a_window(name: str) -> None:
    """No window resumes half with other weights: they change after the elements that were read, or it is an error."""

    def loader(schedule: Any) -> ps.Loader:
        parts = {"a": ps.range(20).filter(lambda _: True), "b": ps.range(100, 120).filter(lambda _: True)}
        return ps.Loader(HOLDS[name](ps.mix(parts, schedule, stop="all")).batch(4, merge=list))

    old = {0: {"a": 1, "b": 1}}
    saved = loader(old)
    begun = next(iter(saved))
    state = saved.state_dict()
    for position in (0, 4, 8):
        other = loader({**old, position: {"b": 5, "a": 1} if position else {"b": 1}})
        other.load_state_dict(state)
        if position == 0 or (position == 4 and name != "flat_map"):
            with pytest.raises(ps.errors.StateError, match=r"saved within .* which has other elements"):
                next(iter(other))
        else:
            found = [int(row) for batch in [begun, *other] for row in batch]
            assert sorted(found) == sorted(int(row) for batch in loader(old) for row in batch)


class Records:
    """A source of numbers, without a repr of its own."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, key: int) -> int:
        return key


SAVE = """
import json, sys
from itertools import islice
import penstock as ps
from tests.failures.test_resuming import Records
loader = ps.Loader(ps.read(Records(), seed=4).shuffle().batch(4))
list(islice(loader, 3))
print(json.dumps(loader.state_dict()))
"""


def test_a_state_resumes_in_another_process() -> None:
    """A source has the same fingerprint in another process, also where its repr is an address."""
    state = subprocess.run([sys.executable, "-c", SAVE], check=True, capture_output=True, text=True).stdout
    loader = ps.Loader(ps.read(Records(), seed=4).shuffle().batch(4))
    whole = digests(loader)
    loader.load_state_dict(state)
    assert digests(loader) == whole[3:]


@WORKERS
@pytest.mark.parametrize("stop", range(6))
def test_a_resume_at_an_epochs_end_repeats_and_skips_nothing(stop: int, workers: int) -> None:
    """A state of any step, also an epoch's last, resumes with the next step."""
    dataset = start(length=20).batch(4)
    with ps.Loader(dataset, num_workers=workers) as loader:
        expected = digests(loader) + digests(loader)
        loader.seek(0)
        begun = digests(islice(loader, stop))
        state = loader.state_dict()
    with ps.Loader(dataset, num_workers=workers) as loader:
        loader.load_state_dict(state)
        rest = digests(loader)
        assert rest
        assert begun + rest == expected[: len(begun) + len(rest)]
        assert loader.step == len(begun) + len(rest) - 1


def test_a_state_of_a_far_step_is_small() -> None:
    """At step 10**9 of an endless run over 10**10 records, a state is below a kilobyte and resumes at once."""
    dataset = ps.range(10**10, seed=2).shuffle().repeat().batch(256)
    loader = ps.Loader(dataset)
    loader.seek(10**9)
    first = next(iter(loader))
    state = loader.state_dict()
    assert len(json.dumps(state)) < 1000
    other = ps.Loader(dataset)
    other.load_state_dict(state)
    assert np.array_equal(next(iter(other)), loader.batch_at(10**9 + 1))
    assert not np.array_equal(first, other.batch_at(10**9 + 1))


@pytest.mark.parametrize("ranks", [(1, 4), (4, 1), (4, 3), (3, 4)])
@KINDS
def test_a_state_fits_any_number_of_ranks(ranks: tuple[int, int], kind: str) -> None:
    """More or fewer ranks resume with the remaining records, each of them once."""
    ordered = kind == "ordered"
    rows = start().filter(is_odd) if ordered else start()
    dataset = rows.batch(12, merge=list)
    before, after = (
        [ps.Loader(dataset, shard=ps.Shard(rank, count, uneven=ordered)) for rank in range(count)] for count in ranks
    )
    found = [row["number"] for loader in before for batch in islice(loader, 2) for row in batch]
    states = [loader.state_dict() for loader in before]
    for loader in after:
        loader.load_state_dict(states if ordered else states[0])
    found += [row["number"] for loader in after for batch in loader for row in batch]
    assert sorted(found) == [number for number in range(120) if not ordered or number % 2]


def bad(element: Any) -> Any:
    """Raise at one record."""
    if element["number"] == BAD:
        raise OSError("corrupt")
    return element


class CorruptError(ValueError):
    """An exception that can't be made again from its text."""

    def __init__(self, name: str, *, offset: int) -> None:
        super().__init__(f"{name} at {offset}")


def worse(element: Any) -> Any:
    """Raise an error of a class of this file at one record."""
    if element["number"] == BAD:
        raise CorruptError("shard", offset=BAD)
    return element


@WORKERS
@pytest.mark.parametrize("function", [bad, worse])
@KINDS
def test_an_exception_loses_no_other_row(workers: int, function: Any, kind: str) -> None:
    """An exception is raised unchanged at its step, again at each retry; past it all other rows come."""
    ordered = kind == "ordered"
    rows = start().filter(lambda element: element["number"] < 80) if ordered else start()
    whole = digests(ps.Loader(rows.batch(4)))
    failing = next(step for step, batch in enumerate(ps.Loader(rows.batch(4))) if BAD in batch["number"])
    with ps.Loader(rows.map(function, name="decode").batch(4), num_workers=workers) as loader:
        found: list[Any] = []
        for _ in range(2):
            with pytest.raises((OSError, CorruptError), match=r"corrupt|shard at 37") as caught:
                found.extend(map(digest, loader))
            assert "step 'decode'" in "".join(caught.value.__notes__)
            assert found == whole[:failing]
            loader.load_state_dict(loader.state_dict())
        if not ordered:
            loader.seek(failing + 1)
            assert digests(loader) == whole[failing + 1 :]
        state = loader.state_dict(failing)
    with ps.Loader(rows.map(function, name="decode", on_error="skip").batch(4)) as loader:
        if ordered:  # nothing but that record is left out
            loader.load_state_dict(state, allow={"order"})
            numbers = [number for batch in loader for number in batch["number"].tolist()]
            expected = [number for batch in ps.Loader(rows.batch(4)) for number in batch["number"].tolist()]
            assert numbers == [number for number in expected[4 * failing :] if number != BAD]


@WORKERS
def test_a_bad_range_can_be_skipped(workers: int) -> None:
    """After a loss spike, the run can continue some batches further, with the batches of those steps."""
    with ps.Loader(start().batch(4), num_workers=workers) as loader:
        whole = digests(loader)
        loader.seek(5)
        next(iter(loader))
        loader.seek(loader.step + 10)
        assert digests(loader) == whole[15:]


@WORKERS
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_substitute_moves_no_other_record(workers: int, ranks: int) -> None:
    """A record that can't be read changes only its own row, on all ranks."""
    clean = ranks_of(start().batch(8), ranks, num_workers=workers)
    whole = [concatenated(parts) for parts in zip(*clean, strict=True)]
    dataset = start().map(bad, on_error=ps.Substitute())
    loaders = ranks_of(dataset.batch(8), ranks, num_workers=workers)
    found = [concatenated(parts) for parts in zip(*loaders, strict=True)]
    assert len(found) == len(whole) == 15
    differing = [
        int(number)
        for batch, other in zip(whole, found, strict=True)
        for number, own in zip(batch["number"], other["number"], strict=True)
        if number != own
    ]
    assert differing == [BAD]
    assert sum(loader.stats()["substituted"] for loader in loaders) == 1
    close_all([*clean, *loaders])


@pytest.mark.parametrize("drop", ["filter", "skip"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_leaves_out_the_same_records(drop: str, ranks: int) -> None:
    """A filter or `on_error="skip"` leaves out the same records on all ranks, with any workers."""
    rows = start()
    rows = rows.filter(lambda e: e["number"] != BAD) if drop == "filter" else rows.map(bad, on_error="skip")
    expected: list[Any] | None = None
    for workers in (0, 1, 3):
        found: list[Any] = []
        for rank in range(ranks):
            shard = ps.Shard(rank, ranks, uneven=True)
            with ps.Loader(rows.batch(6), num_workers=workers, shard=shard) as loader:
                found.append(digests(loader))
        expected = expected or found
        assert found == expected
    numbers: list[int] = []
    for rank in range(ranks):
        with ps.Loader(rows.batch(6), shard=ps.Shard(rank, ranks, uneven=True)) as loader:
            numbers += np.concatenate([batch["number"] for batch in loader]).tolist()
    assert sorted(numbers) == [number for number in range(120) if number != BAD]
