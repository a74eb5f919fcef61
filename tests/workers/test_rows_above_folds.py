"""Functions of single elements above streams and folds, below their batch: workers compute them, in blocks of rows."""

import gc
import os
import pickle
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import penstock as ps
from penstock._runtime._sent_blocks import SentRows
from penstock._streaming import Rest
from penstock._tree import flatten
from penstock.errors import WorkerError
from tests.constants import SetConstant
from tests.equivalence.definition import digest, digests, epoch_of
from tests.equivalence.joins import Counter
from tests.places import PLACES, in_places, place_of
from tests.promptness import PATIENCE_SECONDS
from tests.workers.processes import functions

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's"),
    pytest.mark.each_value,
]
HUNDRED = partial(Counter, 100)
EVERYWHERE = in_places("processes", "threads", "isolated threads")
WORKERS = in_places("processes", "threads")
PROCESSES, THREADS = PLACES["processes"], PLACES["threads"]


class Once:
    """Yields each number once, over all its readers."""

    def __init__(self, numbers: range) -> None:
        self._left = iter(numbers)

    def __call__(self) -> Iterator[int]:
        """Return those that are left."""
        return self._left


def refuses(bad: int, number: int) -> int:
    """Return a number but one, as if its file were broken."""
    if number == bad:
        raise OSError(f"{bad} is broken")
    return number


def breaks_off() -> Iterator[int]:
    """Yield some numbers, then break."""
    yield from range(62)
    raise OSError("62 is broken")


def needs_the_main_thread(number: Any) -> Any:
    """Return a number by an object that only its own thread can use."""
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("opened in another thread")
    return number


class Pausing:
    """Yields some numbers at once, and the others after a signal; can't be pickled."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()

    def __iter__(self) -> Iterator[int]:
        yield from range(40)
        assert self.goes_on.wait(PATIENCE_SECONDS)
        yield from range(40, 100)


class Row:
    """An element that is noticed if it lives on."""

    def __init__(self, number: int) -> None:
        self.number = number


def refuses_row(row: Row) -> int:
    """Return a row's number if it is one of the first."""
    if row.number >= 10:
        raise ValueError(f"{row.number} is too large")
    return row.number


def late_in_workers(number: int) -> int:
    """Return a number; in a worker's process one is refused."""
    if number == 37 and functions.is_child():
        raise OSError("only here")
    return number


def whole_chunk_of_sequences(number: int) -> dict[str, Any]:
    """Return a document that fills 64 sequences of 4 tokens, which the pack hands on together."""
    return {"tokens": np.arange(256, dtype=np.int32) + 256 * number}


def shifted(sequence: dict[str, Any]) -> dict[str, Any]:
    """Return inputs and targets."""
    return {"inputs": sequence["tokens"][:-1], "targets": sequence["tokens"][1:]}


@pytest.mark.parametrize("function", [functions.same, shifted])
@in_places("inline", "processes", "threads", "isolated threads")
def test_a_batch_that_is_a_whole_chunk_of_a_pack_has_its_rows(place: dict[str, Any], function: Any) -> None:
    """A chunk of as many sequences as a batch has is passed to the function one by one, like all others."""
    dataset = ps.range(6).map(whole_chunk_of_sequences).pack(4).map(function).batch(64)
    with ps.Loader(dataset, **place) as loader:
        assert digests(loader) == digests(epoch_of(dataset, 0))


def test_a_batch_that_is_dropped_fills_no_limit() -> None:
    """A rank that has a batch too few says so."""
    rows = ps.stream(partial(Counter, 60)).map(functions.same)
    dataset = rows.batch(16, remainder="drop").limit(4)
    with ps.Loader(dataset, **THREADS, shard=ps.Shard(0, 2)) as loader:
        batches = iter(loader)
        assert [len(next(batches)) for _ in range(3)] == [8, 8, 8]
        with pytest.raises(ps.errors.PenstockError, match="limit"):
            next(batches)


def met(folder: Path, number: int) -> dict[str, int]:
    """Return the process that computes a number, once two processes compute some."""
    (folder / str(os.getpid())).touch()
    until = time.monotonic() + PATIENCE_SECONDS
    while len(list(folder.iterdir())) < 2 and time.monotonic() < until:
        threading.Event().wait(0.001)
    return functions.process_of(number)


MIXTURE = ps.interleave([ps.stream(HUNDRED), ps.range(40).filter(functions.is_odd)])


@pytest.mark.parametrize("numbers", [ps.range(100, seed=3).window_shuffle(9), MIXTURE], ids=["window", "mixture"])
def test_several_processes_share_a_batch(numbers: ps.Dataset[int], tmp_path: Path) -> None:
    """The trainer's process computes no row, and each of the workers some."""
    with ps.Loader(numbers.map(partial(met, tmp_path)).batch(20), **PROCESSES) as loader:
        first, *others = (set(batch["row_process"].tolist()) for batch in loader)
    assert len(first) == 2
    assert os.getpid() not in first.union(*others)


@pytest.mark.filterwarnings("ignore:.* has no state:UserWarning")  # it is read again for the second time
@pytest.mark.parametrize(
    ("numbers", "remainder", "place"),
    [
        place_of("processes", ps.stream(breaks_off), "keep"),
        place_of("threads", ps.range(100).map(partial(refuses, 62)).window_shuffle(1), "drop"),
        place_of("threads", ps.stream(breaks_off).limit(63), "keep"),
    ],
)
def test_a_failing_row_comes_before_a_later_failure_below(
    numbers: ps.Dataset[int], remainder: Literal["keep", "drop"], place: dict[str, Any]
) -> None:
    """Also where its batch never gets its other rows."""
    for function, error in ((partial(refuses, 60), "60 is broken"), (functions.same, "62 is broken")):
        dataset = numbers.map(function).batch(8, remainder=remainder).limit(8)
        with ps.Loader(dataset, **place) as loader:
            batches = iter(loader)
            assert [next(batches)[0] for _ in range(7)] == [*range(0, 56, 8)]
            for _ in range(2):
                with pytest.raises(OSError, match=error):
                    next(batches)
        with ps.Loader(dataset.limit(7), **place) as loader:
            assert len(list(loader)) == 7


@WORKERS
def test_read_batches_come_while_the_stream_pauses(place: dict[str, Any]) -> None:
    """And the stream needn't be sent anywhere."""
    stream = Pausing()
    with ps.Loader(ps.stream(stream).map(functions.same).batch(8), **place) as loader:
        batches = iter(loader)
        first = [next(batches).tolist() for _ in range(5)]
        stream.goes_on.set()
        assert [number for batch in [*first, *(batch.tolist() for batch in batches)] for number in batch] == [
            *range(100)
        ]


def test_the_consumer_computes_rows_that_fail_in_threads() -> None:
    """The next call computes the batch again, except from streams."""
    rows = ps.range(40, seed=1).window_shuffle(5).map(needs_the_main_thread)
    for dataset in (rows.batch(8), ps.range(40).window_shuffle(5).batch(8).map(needs_the_main_thread)):
        with ps.Loader(dataset, **THREADS) as loader:
            assert digests(loader) == digests(epoch_of(dataset, 0))


def test_rows_of_a_batch_that_failed_are_let_go() -> None:
    """The errors of several blocks hold nothing once one of them was raised."""
    made: list[weakref.ref[Row]] = []

    def remembered(number: int) -> Row:
        made.append(weakref.ref(row := Row(number)))
        return row

    gc.collect()
    gc.disable()
    try:
        with ps.Loader(
            ps.stream(partial(Counter, 100)).map(remembered, on_error="skip").map(refuses_row).batch(100), **THREADS
        ) as loader:
            with pytest.raises(ValueError, match="10 is too large") as caught:
                next(iter(loader))
            del caught
        assert len(made) >= 100
        assert not any(reference() for reference in made)
    finally:
        gc.enable()


@WORKERS
@pytest.mark.parametrize("batch", [7, 50])
def test_a_row_that_is_left_out_at_the_end_may_fail(batch: int, place: dict[str, Any]) -> None:
    """The definition computes it, so its error is raised, although its batch is dropped."""
    dataset = ps.stream(partial(Counter, 99)).map(partial(refuses, 90)).batch(batch, remainder="drop")
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        assert [next(batches)[0] for _ in range(90 // batch)] == [*range(0, 90 - batch + 1, batch)]
        with pytest.raises(OSError, match="90 is broken"):
            next(batches)


@WORKERS
def test_an_error_of_a_one_shot_stream_is_not_lost(place: dict[str, Any]) -> None:
    """The stream isn't read again to find out which row it was."""
    dataset = ps.stream(Once(range(100))).map(partial(refuses, 60)).batch(8)
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        assert [next(batches)[0] for _ in range(7)] == [*range(0, 56, 8)]
        with pytest.raises(OSError, match="60 is broken"):
            next(batches)


def test_the_consumer_computes_rows_that_fail_in_processes() -> None:
    """From the rows that it has kept: a stream isn't read again."""
    dataset = ps.stream(Once(range(100))).map(late_in_workers).batch(4)
    with ps.Loader(dataset, **PROCESSES) as loader:
        assert [number for batch in loader for number in batch.tolist()] == [*range(100)]


def test_large_rows_of_a_one_shot_stream_are_not_lost(set_constant: SetConstant) -> None:
    """Batches that are larger than the memory planned for them are delivered."""
    set_constant("_ROOM_BYTES", 4096)
    dataset = ps.stream(Once(range(40))).map(functions.large_row).batch(4)
    with ps.Loader(dataset, **PROCESSES) as loader:
        assert digests(loader) == digests(ps.range(40).map(functions.large_row).batch(4))


@pytest.mark.parametrize("whole_seconds", [0.0, 1e9])
def test_a_crashing_row_above_a_fold_is_named(whole_seconds: float, set_constant: SetConstant) -> None:
    """Batches before it are delivered first; also where one process has made the batch."""
    set_constant("COLLATE_WHOLE_SECONDS", whole_seconds)
    dataset = ps.range(100).window_shuffle(1).map(functions.kills_itself).batch(8)
    with ps.Loader(dataset, **PROCESSES) as loader:
        batches = iter(loader)
        assert [next(batches)[0] for _ in range(4)] == [0, 8, 16, 24]
        for _ in range(2):
            with pytest.raises(WorkerError, match="row 5 of step 4 repeatedly crashes workers"):
                next(batches)


@pytest.mark.parametrize("whole_seconds", [0.0, 1e9])
def test_a_crash_leaves_the_rows_unchanged(whole_seconds: float, tmp_path: Path, set_constant: SetConstant) -> None:
    """A function may change its argument; if its process is killed then, the next ones get all rows unchanged."""
    set_constant("COLLATE_WHOLE_SECONDS", whole_seconds)
    function = functions.ChangesAndDies(str(tmp_path / "died"))
    dataset = ps.stream(HUNDRED).map(functions.large_row).window_shuffle(1).map(function).batch(4)
    with ps.Loader(dataset, **PROCESSES) as loader:
        found = [number for batch in loader for number in batch[:, 0].tolist()]
        assert len(loader.deaths()) == 1
    assert found == [number + 1 for number in range(100)]


def number_and_process(row: Any) -> dict[str, Any]:
    """Return the number of a row, and the process and thread that compute it."""
    return {**row, "by": (os.getpid() << 32) + threading.get_ident() % 2**32}


@WORKERS
def test_one_worker_makes_a_batch_of_cheap_rows(place: dict[str, Any], set_constant: SetConstant) -> None:
    """Once it is known that its rows take little time; other workers make other batches, and the consumer none."""
    set_constant("COLLATE_WHOLE_SECONDS", 1e9)
    set_constant("COLLATE_JOB_SECONDS", 0.0)
    rows = ps.range(2_400, seed=3).window_shuffle(9).map(functions.row)
    expected = digests(rows.batch(16))
    found: list[Any] = []
    makers: list[set[int]] = []
    with ps.Loader(rows.map(number_and_process).batch(16), **place) as loader:
        for batch in loader:
            makers.append({*batch.pop("by").tolist()})
            found.append(digest(batch))
    assert found == expected
    late = makers[len(makers) // 2 :]
    assert {len(each) for each in late} == {1}
    assert (os.getpid() << 32) + threading.get_ident() % 2**32 not in set[int]().union(*makers)


@EVERYWHERE
@pytest.mark.parametrize("whole_seconds", [0.0, 1e9])
def test_a_failing_row_of_a_batch_that_one_worker_makes(
    place: dict[str, Any], whole_seconds: float, set_constant: SetConstant
) -> None:
    """It raises in order, with its position, at each attempt, whoever makes the batch; of several, the first counts."""
    set_constant("COLLATE_WHOLE_SECONDS", whole_seconds)
    dataset = ps.range(100).window_shuffle(1).map(partial(refuses, 65)).map(partial(refuses, 60)).batch(8)
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        found = [next(batches).tolist() for _ in range(7)]
        for _ in range(2):
            with pytest.raises(OSError, match="60 is broken") as caught:
                next(batches)
            assert any("position 60" in note for note in caught.value.__notes__)
    assert found == [[*range(first, first + 8)] for first in range(0, 56, 8)]


ROWS: dict[str, list[Any]] = {
    "sequences": [{"tokens": np.arange(6, dtype=np.uint16), "ids": np.full(6, number)} for number in range(9)],
    "documents": [np.arange(number, dtype=np.int32) for number in range(9)],
    "numbers": [{"tokens": np.arange(number), "number": number, "name": str(number)} for number in range(9)],
    "images": [np.full((2, 3), number) for number in range(9)],
    "few": [{"tokens": np.arange(3)}],
    "none": [],
    "a rest": Rest({"tokens": np.arange(3)} for _ in range(9)),
}


def test_rows_arrive_in_another_process_as_they_were() -> None:
    """They are a list, with the same types and bytes; their arrays can be written to, each alone."""
    for rows in ROWS.values():
        found: list[Any] = pickle.loads(pickle.dumps(SentRows(rows)))
        assert type(found) is type(rows)
        assert digests(found) == digests(rows)
        arrays: list[Any] = [leaf for row in found for leaf in flatten(row)[0] if isinstance(leaf, np.ndarray)]
        for number, array in enumerate(arrays):
            array.fill(number)
        assert all((array == number).all() for number, array in enumerate(arrays))
