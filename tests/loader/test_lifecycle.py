"""The end of an iteration stops what computed for it; the loader can be used again, or says why not."""

import asyncio
import copy
import gc
import pickle
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import StateError
from tests.dataset.functions import keep, same
from tests.loader.gates import Gate
from tests.places import in_places, place_of

WORKERS = in_places("inline", "threads")
EXPECTED = [[i, i + 1, i + 2, i + 3] for i in range(0, 40, 4)]


def numbers() -> ps.Dataset:
    """Return batches of numbers in order."""
    return ps.range(40).batch(4)


def listed(batches: Any) -> list[Any]:
    """Return batches as lists."""
    return [batch.tolist() for batch in batches]


def workers_alive() -> int:
    """Return the number of worker threads."""
    return sum(thread.name.startswith("penstock-") for thread in threading.enumerate())


@WORKERS
def test_a_break_begins_the_next_epoch(place: dict[str, Any]) -> None:
    """After a break, `iter` starts the next epoch, while a kept iterator continues its own."""
    with ps.Loader(ps.range(40, seed=1).shuffle().batch(4), **place) as loader:
        for _ in loader:
            break
        assert loader.epoch == 0
        kept = iter(loader)
        first = next(kept).tolist()
        assert (loader.epoch, loader.step) == (1, 1)
        rest = listed(kept)
        assert sorted(number for batch in [first, *rest] for number in batch) == list(range(40))


NEWER = r"a newer iter\(loader\) has taken this iterator's place"
RETIRES: dict[str, tuple[Callable[[ps.Loader[Any]], object], str, int]] = {
    "a newer iterator": (iter, NEWER, 0),
    "a step": (lambda loader: loader.seek(5), "make a new one", 5),
    "a position": (lambda loader: loader.seek(position=20), "make a new one", 5),
    "a state": (lambda loader: loader.load_state_dict(loader.state_dict()), "make a new one", 1),
}


def test_an_epoch_left_after_a_seek_forgets_the_steps_before_it() -> None:
    """After a seek back and a break, later steps have other batches, which are known once they are delivered."""
    with ps.Loader(ps.range(40, seed=1).shuffle().filter(keep).batch(4)) as loader:
        batches = iter(loader)
        next(batches)
        next(batches)
        loader.seek(0)
        next(iter(loader))
        batches = iter(loader)
        with pytest.raises(StateError, match="only the last delivered steps are known"):
            loader.batch_at(2)
        next(batches)
        second = next(batches)
        assert loader.batch_at(2).tolist() == second.tolist()


@pytest.mark.each_value
@WORKERS
@pytest.mark.parametrize("name", RETIRES)
def test_an_iterator_is_retired(place: dict[str, Any], name: str) -> None:
    """After a newer iterator, `seek` or `load_state_dict`, an older iterator says what happened."""
    act, message, step = RETIRES[name]
    with ps.Loader(numbers(), **place) as loader:
        older = iter(loader)
        next(older)
        newer: Any = act(loader)
        with pytest.raises(ps.errors.ClosedError, match=message):
            next(older)
        batches = newer or iter(loader)
        assert listed(batches) == EXPECTED[step:]
        assert next(batches, None) is None


class _Closing:
    """A source that has another thread close a loader when its length is asked for, as `iter` does."""

    def __init__(self) -> None:
        self.loader: ps.Loader[Any] | None = None

    def __len__(self) -> int:
        if self.loader is not None:
            closing = threading.Thread(target=self.loader.close)
            closing.start()
            closing.join()
        return 9

    def __getitem__(self, index: int) -> int:
        return index


def test_a_loader_that_is_closed_while_a_pass_begins_says_so() -> None:
    """The error names the loader, and not the owner of workers, which it shares with none."""
    source = _Closing()
    with ps.Loader(ps.read(source).batch(2), num_workers=1, workers="threads") as loader:
        source.loader = loader
        with pytest.raises(ps.errors.ClosedError, match=r"^the loader was closed; make a new one"):
            iter(loader)


@WORKERS
def test_a_closed_loader_says_so(place: dict[str, Any]) -> None:
    """After `close`, iterating and moving raise a ClosedError; the state and the batches stay valid."""
    loader = ps.Loader(numbers(), **place)
    batches = iter(loader)
    first = next(batches)
    state = loader.state_dict()
    loader.close()
    loader.close()
    uses: list[Callable[[], object]] = [
        *(lambda: next(batches), lambda: iter(loader)),
        *(lambda: loader.seek(0), lambda: loader.load_state_dict(state)),
    ]
    for use in uses:
        with pytest.raises(ps.errors.ClosedError, match=r"the loader was closed"):
            use()
    assert loader.state_dict() == state
    assert first.tolist() == EXPECTED[0]
    assert workers_alive() == 0


@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_closing_waits_for_running_functions(kind: str) -> None:
    """`close` returns when no function of the dataset runs any more."""
    gate = Gate(6)
    rows = ps.range(40).map(gate)
    loader = ps.Loader((rows.filter(keep) if kind == "in order" else rows).batch(4), num_workers=2)
    batches = iter(loader)
    asking = threading.Thread(target=next, args=(batches, None))
    closing = threading.Thread(target=loader.close)
    if kind == "in order":
        asking.start()  # folds start at the first request
    gate.wait_entered()
    if kind == "indexed":
        closing.start()
    gate.open()
    if kind == "in order":
        asking.join()
        closing.start()
    closing.join()
    assert workers_alive() == 0


ENDLESS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "indexed": lambda rows: rows.repeat().batch(4),
    "in order": lambda rows: rows.filter(keep).repeat().batch(4),
    "above a fold": lambda rows: rows.filter(keep).repeat().batch(4).map(same),
    "elements above a fold": lambda rows: rows.filter(keep).repeat().window_shuffle(5).map(same),
}


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        *(place_of(place, kind) for place in ("inline", "threads") for kind in ENDLESS),
        place_of("isolated", "in order"),
    ],
)
def test_closing_is_no_end_of_an_epoch(kind: str, place: dict[str, Any]) -> None:
    """A thread that waits for a batch gets a ClosedError from `close`, and the loader's epoch doesn't end."""
    loader = ps.Loader(ENDLESS[kind](ps.range(40).map(same)), **place)
    has_begun = threading.Event()
    messages: list[str] = []

    def read() -> None:
        try:
            for _ in loader:
                has_begun.set()
        except ps.errors.ClosedError as error:
            messages.append(str(error))

    reading = threading.Thread(target=read)
    reading.start()
    has_begun.wait()
    loader.close()
    reading.join()
    assert messages == ["the loader was closed"]
    assert loader.epoch == 0


def test_a_new_epoch_does_not_wait_for_the_old_one() -> None:
    """Other workers compute the new epoch while blocks of the old one still run."""
    gate = Gate(12)
    with ps.Loader(ps.range(40).map(gate).map(same).batch(4), num_workers=3) as loader:
        loader.seek(3)
        old = iter(loader)
        gate.wait_entered()
        loader.seek(4)
        assert listed(loader) == EXPECTED[4:]
        with pytest.raises(ps.errors.ClosedError):
            next(old)
        gate.open()


@WORKERS
@pytest.mark.parametrize("kind", ["indexed", "in order"])
def test_a_closed_iterator_ends_no_epoch(kind: str, place: dict[str, Any]) -> None:
    """`next` of an iterator that was closed raises a ClosedError, and the loader's next batch stays the same."""
    dataset = ps.range(20).batch(4) if kind == "indexed" else ps.range(20).filter(keep).batch(4)
    with ps.Loader(dataset, **place) as loader:
        batches = iter(loader)
        next(batches)
        batches.close()
        with pytest.raises(ps.errors.ClosedError, match="this iterator was closed"):
            next(batches)
        state = loader.state_dict()
        assert (state["step"], state["epoch"]) == (1, 0)
        whole = iter(loader)
        assert len(listed(whole)) == 5
        whole.close()
        assert next(whole, None) is None  # its epoch has ended


def test_a_loader_is_not_copied() -> None:
    """The error says what to send instead."""
    for transfer in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"dataset and loader\.state_dict\(\)"):
            transfer(ps.Loader(numbers()))


@WORKERS
def test_a_loader_in_a_cycle_is_collected(place: dict[str, Any]) -> None:
    """The collector stops the workers of a loader in a reference cycle."""
    loader = ps.Loader(numbers(), **place)
    cycle: dict[str, Any] = {"loader": loader, "batches": iter(loader)}
    cycle["batch"], cycle["self"] = next(cycle["batches"]), cycle
    reference = weakref.ref(loader)
    del loader, cycle
    gc.collect()
    assert reference() is None
    assert workers_alive() == 0


def test_the_collector_may_run_anywhere() -> None:
    """A worker that owns the ring may collect an iterator in a cycle; the collector waits for no thread."""
    thresholds = gc.get_threshold()
    gc.disable()
    try:
        with ps.Loader(ps.range(400).map(abs).batch(4), num_workers=2, prefetch=8) as loader:
            for _ in range(20):
                cycle: list[Any] = [iter(loader)]
                cycle.append(cycle)
                next(cycle[0])
                gc.set_threshold(1, 1, 1)
                gc.enable()
                del cycle  # from here on any allocation, on any thread, may find it
                loader.seek(0)
                assert len(list(loader)) == 100
                gc.disable()
                loader.seek(0)
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()


@in_places("threads", "processes")
def test_batches_outlive_their_loader(place: dict[str, Any]) -> None:
    """Batches stay valid when their loader is closed and collected, and its processes have ended."""
    loader = ps.Loader(ps.range(48).map(large).batch(2), **place)
    with pytest.warns(UserWarning, match=r"batches are kept by the training loop"):
        kept = list(loader)
    loader.close()
    del loader
    gc.collect()
    assert [[int(row[0]) for row in batch] for batch in kept] == [[i, i + 1] for i in range(0, 48, 2)]


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_kept_batches_delay_no_poll(count: int) -> None:
    """If kept batches use all memory, asking whether the next batch is ready leases more."""
    gate = Gate(2 * count)
    dataset = ps.range(24).map(takes_long).map(gate).map(large).batch(2)
    with ps.Loader(dataset, num_workers=1, workers="threads", prefetch=1) as loader, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about kept batches
        batches = iter(loader)
        kept = [next(batches) for _ in range(count)]
        assert batches.may_wait is not None
        gate.open()
        kept += list(batches)
    assert [int(batch[1, 0]) for batch in kept] == list(range(1, 24, 2))


def takes_long(number: int) -> int:
    """Return the number, after so long that a job has one batch."""
    threading.Event().wait(0.015)
    return number


def large(number: int) -> Any:
    """Return a row that is delivered without a copy."""
    return np.full(100_000, number)


def test_an_abandoned_epoch_leaves_nothing_in_flight() -> None:
    """Without references to batches and without an open iterator, no memory is in flight."""
    with ps.Loader(ps.range(40).map(large).batch(4), num_workers=2) as loader:
        for _ in range(3):
            batches = iter(loader)
            assert [int(next(batches)[0, 0]) for _ in range(4)] == [0, 4, 8, 12]
            del batches
        loader.seek(0)
        count = sum(len(batch) for batch in loader)
        assert count == 40
        assert next(iter(loader))[0, 0] == 0
    assert loader.stats()["bytes_in_flight"] == 0


@WORKERS
@pytest.mark.parametrize("kind", ["indexed", "ordered"])
def test_an_epoch_leaves_no_running_code_in_a_cycle(kind: str, place: dict[str, Any]) -> None:
    """No thread, task or frame of an epoch is left in a cycle, where its collection would lose a Ctrl-C."""
    rows = ps.range(40, seed=1).shuffle()

    def load() -> None:
        with ps.Loader((rows.filter(keep) if kind == "ordered" else rows).batch(4), **place) as loader:
            for steps in (3, 1_000):
                assert list(zip(range(steps), loader, strict=False))

    load()  # for objects that are made once
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        load()
        gc.collect()
        kinds = (threading.Thread, asyncio.Future, asyncio.AbstractEventLoop, BaseException, types.FrameType)
        assert [found for found in gc.garbage if isinstance(found, kinds)] == []
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


@WORKERS
def test_an_exception_in_the_training_loop_leaves_the_loader_usable(place: dict[str, Any]) -> None:
    """After the consumer's own exception, the loader continues with the next epoch."""
    with ps.Loader(numbers(), **place) as loader:
        with pytest.raises(ZeroDivisionError):
            divide_by_first(loader)
        assert listed(loader) == EXPECTED


def divide_by_first(loader: ps.Loader) -> None:
    """Divide by the first number, which is 0."""
    for batch in loader:
        divmod(1, int(batch[0]))


@WORKERS
def test_two_loaders_read_in_turns(place: dict[str, Any]) -> None:
    """Two loaders over one dataset deliver the same batches when they are read in turns."""
    with ps.Loader(numbers(), **place) as one, ps.Loader(numbers(), **place) as other:
        pairs = list(zip(one, other, strict=True))
    assert listed(first for first, _ in pairs) == listed(second for _, second in pairs) == EXPECTED


def test_a_loader_can_be_used_in_other_threads() -> None:
    """One thread makes a loader, another reads it, and a third closes it."""
    loader = ps.Loader(numbers(), num_workers=2)
    found: list[Any] = []
    for work in (lambda: found.extend(listed(loader)), loader.close):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert found == EXPECTED
