"""Ctrl-C is a KeyboardInterrupt: during pickling, and where Python drops the parts of a loader."""

import signal
import sys
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from torch.utils.data import IterableDataset

import penstock as ps
from penstock.concurrency import WorkerPool
from penstock.pipeline import PipelineBuilder, run_in_subprocess
from penstock.torch import DataLoader

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals here")


class Interrupting:
    """A function, and an index, whose first pickling is interrupted."""

    interrupts = 0

    def __call__(self, value: Any) -> Any:
        """Return the value."""
        return value

    def __reduce__(self) -> tuple[type["Interrupting"], tuple[()]]:
        if not self.interrupts:
            self.interrupts += 1
            signal.raise_signal(signal.SIGINT)
        return Interrupting, ()


class Rows:
    """A dataset of numbers for torch's loader."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: object) -> int:
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
    """Send a batch's indices to the processes of torch's loader."""
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


DOING = [choose_workers, start_processes, send_dataset_of_torch, send_indices_of_torch, start_a_pipeline, make_a_pool]


@pytest.mark.parametrize("do", DOING)
def test_an_interrupt_during_pickling_is_raised(do: Callable[[], object]) -> None:
    """Each operation that pickles raises the KeyboardInterrupt."""
    with pytest.raises(KeyboardInterrupt):
        do()


def time_out(number: int, frame: FrameType | None) -> None:
    """Raise, as a signal's handler that limits a time."""
    del frame
    raise TimeoutError(f"signal {number}")


@contextmanager
def handled_by(handler: Callable[[int, FrameType | None], None]) -> Generator[None]:
    """Replace the handler of SIGINT."""
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("do", DOING)
def test_the_exception_of_a_handler_during_pickling_is_raised(do: Callable[[], object]) -> None:
    """It isn't taken for that of an object that can't be pickled."""
    with handled_by(time_out), pytest.raises(TimeoutError, match="signal 2"):
        do()


class InterruptedStream(IterableDataset[int]):
    """Numbers, whose state can't be loaded before a signal arrives."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(8))

    def state_dict(self) -> dict[str, int]:
        """Return a state."""
        return {"number": 2}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Load a state."""
        assert state["number"] == 2
        signal.raise_signal(signal.SIGINT)


def loader_of_stream() -> Any:
    """Return a loader of such a stream."""
    dataset: ps.Dataset[Any] = ps.stream(InterruptedStream())
    return ps.Loader(dataset.batch(2))


def loader_of_torch() -> Any:
    """Return torch's loader of such a stream."""
    return DataLoader(InterruptedStream(), 2)


@pytest.mark.parametrize("make", [loader_of_stream, loader_of_torch])
def test_the_exception_of_a_handler_is_raised_where_a_stream_loads_its_state(make: Callable[[], Any]) -> None:
    """It isn't taken for that of a state which can't be loaded."""
    loader = make()
    next(iter(loader))
    loader.load_state_dict(loader.state_dict())
    with handled_by(time_out), pytest.raises(TimeoutError, match="signal 2"):
        next(iter(loader))


@pytest.mark.parametrize(("kind", "workers"), [("indexed", 2), ("ordered", 0), ("ordered", 2)])
def test_an_epoch_calls_back_no_python_of_weak_references(kind: str, workers: int) -> None:
    """Python prints an exception of such a function and goes on; a KeyboardInterrupt would be lost."""
    called: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename == weakref.__file__:
            called.append(frame.f_code.co_name)

    def run_an_epoch() -> None:
        for _ in ps.Loader(rows.batch(4), num_workers=workers):
            pass

    rows = ps.range(40).map(abs)
    rows = rows.filter(bool) if kind == "ordered" else rows
    run_an_epoch()
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        run_an_epoch()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert {"_cb", "remove"}.isdisjoint(called)
