"""Batches of worker processes equal the definition, whatever happens to the processes."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import UsageError, WorkerError
from tests.equivalence.definition import digest
from tests.workers.processes import functions
from tests.workers.processes.killing import kill_a_worker

PATIENCE_SECONDS = 20.0
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")


def processes(dataset: ps.Dataset, num_workers: int = 2, **options: Any) -> ps.Loader:
    """Return a loader with worker processes."""
    return ps.Loader(dataset, num_workers=num_workers, workers="processes", **options)


def same(one: Any, other: Any) -> bool:
    """Return whether two batches are equal, byte for byte."""
    return bool(digest(one) == digest(other))


DATASETS = {
    "arrays": ps.range(100, seed=1).shuffle().map(functions.row).batch(8),
    "a short last batch": ps.range(30).map(functions.row).batch(8),
    "padded": ps.range(30).map(functions.row).batch(8, remainder="pad"),
    "strings": ps.range(100).map(functions.named_row).batch(8),
    "random": ps.range(100, seed=2).shuffle().random_map(functions.noisy).batch(7),
    "a step above": ps.range(100).batch(8).map(functions.halved),
    "a custom merge": ps.range(100).map(functions.row).batch(8, merge=list),
    "no batch": ps.range(30).map(functions.row),
    "repeated": ps.range(20, seed=3).shuffle().repeat(3).batch(8),
    "filtered": ps.range(100, seed=4).shuffle().map(functions.row).filter(functions.is_even).batch(8),
    "a window": ps.range(100, seed=5).map(functions.named_row).filter(functions.is_even).window_shuffle(20),
    "read": ps.read({"x": np.arange(100.0), "y": np.arange(300).reshape(100, 3)}).batch(8),
}


@pytest.mark.parametrize("name", DATASETS)
def test_equals_the_definition(name: str) -> None:
    """Batches have the same order and bytes, over several epochs, and after a saved state."""
    dataset = DATASETS[name]
    with ps.Loader(dataset) as inline, processes(dataset) as loader:
        for _ in range(2):
            expected, found = list(inline), list(loader)
            assert len(found) == len(expected)
            assert all(map(same, found, expected))
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = list(batches)
    with ps.Loader(dataset, num_workers=1) as resumed:
        resumed.load_state_dict(state)
        assert all(map(same, list(resumed), rest))


def test_repeated_kills_lose_no_batch() -> None:
    """However often a process is killed, no batch is lost, repeated or changed; other processes replace it."""
    dataset = ps.range(2_000, seed=1).shuffle().map(functions.slow).batch(8)
    expected = list(ps.Loader(dataset))
    with processes(dataset) as loader:
        found: list[Any] = []
        for batch in loader:
            found.append(batch)
            if len(found) % 40 == 0:
                assert kill_a_worker()
    assert len(found) == len(expected)
    assert all(map(same, found, expected))


def test_a_crashing_element_of_a_streaming_dataset_is_named() -> None:
    """The elements before the crashing one are delivered, and then the error is raised, at each call."""
    dataset = ps.range(60).map(functions.kills_itself).filter(functions.is_at_least_ten)
    with processes(dataset, limits=ps.Limits(worker_init=functions.mark_process)) as loader:
        batches = iter(loader)
        assert [next(batches) for _ in range(functions.DEADLY - 10)] == [*range(10, functions.DEADLY)]
        for _ in range(2):
            with pytest.raises(WorkerError, match=rf"position {functions.DEADLY} .*SIGKILL"):
                next(batches)


@pytest.mark.parametrize("batch_size", [4, 64])
def test_a_crashing_row_is_named(batch_size: int) -> None:
    """The record raises a WorkerError in order; the batches before it are delivered, and those after it, too."""
    dataset = ps.range(100).map(functions.kills_itself).batch(batch_size)
    limits = ps.Limits(worker_init=functions.mark_process)
    with processes(dataset, limits=limits) as loader:
        batches = iter(loader)
        deadly = functions.DEADLY // batch_size
        assert [next(batches)[0] for _ in range(deadly)] == [step * batch_size for step in range(deadly)]
        for _ in range(2):
            with pytest.raises(WorkerError, match="SIGKILL") as raised:
                next(batches)
            assert raised.value.exit_code == -signal.SIGKILL
        loader.seek(deadly + 1)
        assert [batch[0] for batch in loader] == [*range((deadly + 1) * batch_size, 100, batch_size)]


def test_an_error_is_the_users_own() -> None:
    """The exception of a function is raised unchanged and in order, at each call, after the batches before it."""
    with processes(ps.range(100).map(functions.broken).batch(4)) as loader:
        batches = iter(loader)
        assert [next(batches)[0] for _ in range(9)] == [*range(0, 36, 4)]
        for _ in range(2):
            with pytest.raises(LookupError, match="no record 37"):
                next(batches)


def test_an_error_may_be_replaced() -> None:
    """`on_error` holds in processes as anywhere, and the loader's statistics count it."""
    dataset = ps.range(100).map(functions.broken, on_error=ps.Substitute()).batch(4)
    with ps.Loader(dataset) as inline, processes(dataset, 1) as loader:
        assert all(map(same, list(loader), list(inline)))
        assert loader.stats()["substituted"] == inline.stats()["substituted"] == 1


def test_rows_of_other_shapes_are_the_users_error() -> None:
    """The error is the same as without workers."""
    dataset = ps.range(100).map(functions.ragged_row).batch(4)
    with pytest.raises(UsageError) as expected:
        list(ps.Loader(dataset))
    with processes(dataset) as loader, pytest.raises(UsageError) as raised:
        list(loader)
    assert str(raised.value) == str(expected.value)


def test_a_worker_that_can_not_be_prepared() -> None:
    """The exception of `worker_init` is raised instead of a batch, and names the worker; nothing hangs."""
    with processes(ps.range(8).batch(4), limits=ps.Limits(worker_init=functions.refuses)) as loader:
        for _ in range(2):
            with pytest.raises(LookupError, match="no device"):
                next(iter(loader))
        with pytest.raises(LookupError) as raised:
            next(iter(loader))
    assert any("being prepared" in note for note in raised.value.__notes__)


def test_objects_that_can_not_be_sent_are_named() -> None:
    """The message has the rule, the cause and the remedies."""
    expected = pytest.raises(
        UsageError, match=r"must be picklable; got .*it holds a connection.*, from step 'Unpicklable'\. .*cloudpickle"
    )
    with processes(ps.range(8).map(functions.Unpicklable()).batch(4)) as loader, expected:
        iter(loader)


def test_local_functions_can_be_sent() -> None:
    """With cloudpickle lambdas and closures work."""
    pytest.importorskip("cloudpickle")
    offset = 3
    with processes(ps.range(8).map(lambda number: number + offset).batch(4)) as loader:
        assert [batch.tolist() for batch in loader] == [[3, 4, 5, 6], [7, 8, 9, 10]]


PIPED = """
import penstock as ps

def doubled(number):
    return 2 * number

with ps.Loader(ps.range(8).map(doubled).batch(4), num_workers=1, workers="processes") as loader:
    print([batch.tolist() for batch in loader])
"""


def test_a_program_that_is_no_file() -> None:
    """Functions of a script from a pipe, which no process can import, are pickled like local ones."""
    pytest.importorskip("cloudpickle")
    run = subprocess.run([sys.executable, "-"], input=PIPED, capture_output=True, text=True, check=False)
    assert (run.stdout, run.stderr) == ("[[0, 2, 4, 6], [8, 10, 12, 14]]\n", "")


def test_batches_outlive_their_loader() -> None:
    """Delivered batches stay the same when the loader and its processes have ended."""
    loader = processes(ps.range(100).map(functions.row).batch(50))
    first, second = list(loader)
    loader.close()
    assert first["image"][49, 0, 0] == 49
    assert second["number"].tolist() == [*range(50, 100)]


def test_kept_batches_take_more_memory() -> None:
    """A consumer that keeps batches gets all batches, with one warning."""
    dataset = ps.range(400).map(functions.large_row).batch(20)
    with processes(dataset) as loader, pytest.warns(UserWarning, match="are kept by the training loop"):
        kept = list(loader)
    assert [int(images[0, 0]) for images in kept] == [step * 20 % 251 for step in range(20)]


@pytest.mark.parametrize("after", [0, 1, 3])
def test_stopped_at_any_time(after: int) -> None:
    """A loader may be closed before its processes have started, while they work, or when it is dropped."""
    loader = processes(ps.range(1_000).map(functions.slow).batch(4))
    batches = iter(loader)
    for _ in range(after):
        next(batches)
    if after == 3:
        del batches, loader
    else:
        loader.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]
