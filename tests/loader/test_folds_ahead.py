"""With workers, a fold thread reads folds ahead of the consumer, within a bound."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._runtime._fold_choice import ReadChoice
from penstock._runtime._fold_thread import FoldRun, Made, MadeChunk
from penstock._streaming import no_provenance
from tests.constants import SetConstant
from tests.dataset.functions import keep
from tests.loader.gates import Gate
from tests.promptness import PATIENCE_SECONDS


class Merging:
    """A merge that counts its batches, and remembers the threads that made them."""

    def __init__(self) -> None:
        self.made = threading.Semaphore(0)
        self.threads: set[threading.Thread] = set()

    def __call__(self, rows: Sequence[Any]) -> Any:
        """Return the rows as an array."""
        self.threads.add(threading.current_thread())
        self.made.release()
        return np.array(rows)


def returning(value: int) -> Callable[..., int]:
    """Return a function that returns a value, whatever its arguments."""

    def constant(*_: object) -> int:
        return value

    return constant


def test_folds_run_ahead_of_the_consumer() -> None:
    """Workers merge the next batches while the consumer holds one; the state is that of the delivered batch."""
    merging = Merging()
    dataset = ps.range(400, seed=1).filter(keep).batch(4, merge=merging)
    with ps.Loader(dataset, num_workers=2, prefetch=2) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
        assert merging.made.acquire(timeout=PATIENCE_SECONDS)
        assert merging.made.acquire(timeout=PATIENCE_SECONDS)
        state = loader.state_dict()
    assert threading.current_thread() not in merging.threads
    resumed = ps.Loader(dataset)
    resumed.load_state_dict(state)
    assert next(iter(resumed)).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("merge", [None, list])
@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_batch_is_delivered_while_workers_are_stuck_at_the_next_one(
    merge: Any, prefetch: int, set_constant: SetConstant
) -> None:
    """The fold passes on what it has made before it waits for workers, however little time it has taken."""
    set_constant("FOLD_SECONDS", 1e9)
    gate = Gate(4)
    dataset = ps.range(400).map(gate).filter(keep).batch(4, merge=merge)
    with ps.Loader(dataset, num_workers=2, workers="threads", prefetch=prefetch) as loader:
        batches = iter(loader)
        first = next(batches)
        gate.wait_entered()
        gate.open()
        assert [*first, *(number for batch in batches for number in batch)] == list(range(400))


@pytest.mark.parametrize("merge", [None, list])
@pytest.mark.parametrize("fails", [0, 1])
def test_a_batch_is_delivered_while_the_thread_of_the_fold_is_stuck_at_the_next_one(
    merge: Any, fails: int, set_constant: SetConstant, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold passes on what it has made before it computes elements itself, also those of a block that fails."""
    set_constant("FOLD_SECONDS", 1e9)

    def by_fold(choice: ReadChoice, _: int) -> None:
        choice.by_fold = True

    monkeypatch.setattr(ReadChoice, "begin", by_fold)
    monkeypatch.setattr(ReadChoice, "changes", returning(0))
    monkeypatch.setattr("penstock._streaming._inputs.decide", returning(8))
    gate, computed = Gate(9), [0]

    def passing(number: int) -> int:
        if fails and number == 12:
            raise ValueError(number)
        computed.append(number)
        return int(gate(number)) if computed.count(9) > fails else number

    # Blocks have 8 elements; those of the one that fails are computed again, one by one.
    dataset = ps.range(400).map(passing).filter(keep).batch(3, merge=merge)
    found: list[int] = []
    with ps.Loader(dataset, num_workers=2, workers="threads") as loader:
        batches = iter(loader)
        for _ in range(2 + fails):
            found.extend(next(batches))
        gate.wait_entered()
        gate.open()
        if fails:
            found.extend(next(batches))
            with pytest.raises(ValueError, match="12"):
                next(batches)
        else:
            found += [number for batch in batches for number in batch]
    assert found == list(range(12 if fails else 400))


def test_rows_folded_while_the_consumer_is_away_are_merged() -> None:
    """Workers merge a batch whose rows the fold completes only after `next` returned."""
    merging, left = Merging(), threading.Event()

    def keep_later(batch: list[int]) -> bool:
        if batch[0]:
            return left.wait(PATIENCE_SECONDS)
        threading.Event().wait(0.02)  # so long that the first batch is in a chunk of its own
        return True

    dataset = ps.range(400, seed=1).filter(keep).batch(4, merge=list).filter(keep_later).batch(1, merge=merging)
    with ps.Loader(dataset, num_workers=2, prefetch=2) as loader:
        batches = iter(loader)
        next(batches)
        assert merging.made.acquire(timeout=PATIENCE_SECONDS)
        assert not merging.made.acquire(blocking=False)
        left.set()
        assert merging.made.acquire(timeout=PATIENCE_SECONDS)
        assert merging.made.acquire(timeout=PATIENCE_SECONDS)
        assert np.array(next(batches)).tolist() == [[4, 5, 6, 7]]
    assert threading.current_thread() not in merging.threads


@pytest.mark.filterwarnings("ignore:.*filter")
@pytest.mark.parametrize("workers", [0, 2])
def test_filtered_elements_are_counted(workers: int) -> None:
    """The statistics count the filtered elements of delivered batches, once, and at the end those after the last."""
    for count, kept in ((400, range(0, 400, 4)), (100_000, range(4))):
        dataset = ps.range(count).filter(kept.__contains__).batch(1)
        with ps.Loader(dataset, num_workers=workers) as loader:
            assert len(list(loader)) == len(kept)
            assert loader.stats()["filtered"] == count - len(kept)


def test_an_error_of_the_fold_thread_is_not_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer gets the batches that the fold thread made, then its error at every call; the epoch doesn't end."""
    whole = FoldRun.__iter__

    def breaking(fold: FoldRun) -> Iterator[Any]:
        with closing(whole(fold)) as chunks:
            yield next(chunks)
        raise RuntimeError("the fold is broken")

    monkeypatch.setattr(FoldRun, "__iter__", breaking)
    found: list[int] = []
    with ps.Loader(ps.range(10**6).filter(keep).batch(1), num_workers=1) as loader:
        batches = iter(loader)
        for _ in range(2):  # the next call raises the error again, too
            before = len(found)
            with pytest.raises(RuntimeError, match="the fold is broken"):
                found.extend(batch.tolist()[0] for batch in batches)
            assert len(found) > before
    assert found == [*range(len(found))]


def test_a_chunk_has_few_large_batches(set_constant: SetConstant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches that wait for the consumer together fit into the processor's cache."""
    set_constant("FOLD_SECONDS", 1e9)
    set_constant("FOLD_BYTES", 20_000)
    whole, steps = FoldRun.__iter__, [0]

    def counting(fold: FoldRun) -> Iterator[MadeChunk]:
        for chunk in whole(fold):
            steps.append(chunk.steps)
            yield chunk

    monkeypatch.setattr(FoldRun, "__iter__", counting)
    dataset = ps.range(200).map(lambda number: np.full(500, number)).filter(lambda row: row[0] >= 0).batch(2)
    with ps.Loader(dataset, num_workers=1, workers="threads") as loader:
        assert [row[0] for batch in loader for row in batch] == list(range(200))
    assert max(steps[:-1]) == 2  # of 8,000 bytes each; the last chunk has the end as well


class Numbers:
    """A fold of numbers, which announces each chunk."""

    def __init__(self) -> None:
        self.made = threading.Semaphore(0)
        self.stages = self

    def __call__(self, *_arguments: object, on_request: bool) -> "Numbers":
        """Return the fold itself, in the place of a new one."""
        assert not on_request
        return self

    def __iter__(self) -> Iterator[MadeChunk]:
        for number in range(9):
            self.made.release()
            yield MadeChunk([Made(number, number, (), no_provenance())])

    def give_up(self) -> None:
        """Do nothing: this fold waits for nothing."""


def test_the_fold_thread_makes_as_many_chunks_as_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread makes no chunk beyond its room, and makes another when the consumer takes one."""
    fold = Numbers()
    monkeypatch.setattr("penstock._runtime._fold_thread.FoldRun", fold)
    with ps.Loader(ps.range(9).filter(keep), num_workers=1, prefetch=2) as loader:
        numbers = iter(loader)
        for number, chunks in enumerate([3, 1, 1]):
            assert next(numbers) == number
            assert all(fold.made.acquire(timeout=PATIENCE_SECONDS) for _ in range(chunks))
            assert not fold.made.acquire(timeout=0.1)
