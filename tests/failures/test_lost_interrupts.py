"""Ctrl-C while something is pickled or unpickled is a KeyboardInterrupt, and no sign that it can't be."""

import pickle
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps
from penstock._processes import PackedError, unpack_error
from penstock.concurrency import WorkerPool
from penstock.pipeline import PipelineBuilder, run_in_subprocess
from penstock.torch import DataLoader

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals here")


class Interrupting:
    """A function, and an index, that is interrupted while it is pickled, the first time."""

    interrupts = 0

    def __call__(self, value: Any) -> Any:
        """Return the value."""
        return value

    def __reduce__(self) -> tuple[type["Interrupting"], tuple[()]]:
        """Press Ctrl-C."""
        if not self.interrupts:
            self.interrupts += 1
            signal.raise_signal(signal.SIGINT)
        return Interrupting, ()


class InterruptingError(Exception):
    """An error that is interrupted while it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        """Press Ctrl-C there."""
        return signal.raise_signal, (signal.SIGINT,)


class Rows:
    """A dataset of numbers for torch's loader."""

    def __len__(self) -> int:
        """Return how many there are."""
        return 4

    def __getitem__(self, index: object) -> int:
        """Return one of them."""
        return 0


def choose_workers() -> object:
    """Make a loader that chooses between threads and processes."""
    return ps.Loader(ps.range(8).map(Interrupting()).batch(2), num_workers=2)


def start_processes() -> object:
    """Start a loader's processes."""
    with ps.Loader(ps.range(8).map(Interrupting()).batch(2), num_workers=1, workers="processes") as loader:
        return next(iter(loader))


def send_dataset_of_torch() -> object:
    """Start the processes of torch's loader."""
    rows: Any = Rows()
    rows.function = Interrupting()
    return next(iter(DataLoader(rows, num_workers=1)))


def send_indices_of_torch() -> object:
    """Give a batch's indices to the processes of torch's loader."""
    rows: Any = Rows()
    indices: Any = [[Interrupting()]]
    return next(iter(DataLoader(rows, batch_sampler=indices, num_workers=1)))


def start_a_pipeline() -> object:
    """Start a pipeline in another process."""
    config = PipelineBuilder().add_source([1]).pipe(Interrupting()).add_sink().get_config()
    with run_in_subprocess(config, num_threads=1).auto_stop() as pipeline:
        return next(iter(pipeline))


def make_a_pool() -> object:
    """Make a pool of processes."""
    worker: Any = Interrupting()
    return WorkerPool(worker, 1, place="process")


DOING = [
    choose_workers,
    start_processes,
    send_dataset_of_torch,
    send_indices_of_torch,
    start_a_pipeline,
    make_a_pool,
]


@pytest.mark.parametrize("do", DOING)
def test_pickling(do: Callable[[], object]) -> None:
    """It comes out of whatever pickles."""
    with pytest.raises(KeyboardInterrupt):
        do()


def test_unpickling_an_error() -> None:
    """It comes out instead of the error that another process sent."""
    packed = PackedError(pickle.dumps(InterruptingError()), "InterruptingError", "", "", 0)
    with pytest.raises(KeyboardInterrupt):
        unpack_error(packed)


class EndingError(Exception):
    """An error that can't be unpickled without the end of who does it."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[object, ...]]:
        """Raise its argument there."""
        return end, self.args


def end(kind: type[BaseException]) -> None:
    """Raise an exception."""
    raise kind


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_unpickling_what_ends_a_thread(kind: type[BaseException]) -> None:
    """In a thread, which Ctrl-C never comes to, it is told in words: whoever listens to a process must go on."""
    found: list[object] = []
    packed = PackedError(pickle.dumps(EndingError(kind)), "EndingError", "its words", "", 0)
    thread = threading.Thread(target=lambda: found.append(unpack_error(packed)))
    thread.start()
    thread.join()
    assert "its words" in str(found)
