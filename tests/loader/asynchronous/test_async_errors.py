"""Errors of an async source are those of any source, and an abandoned iterator leaves no request waiting."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from tests.dataset.functions import keep
from tests.loader.asynchronous.server import PATIENCE_SECONDS, dataset_of
from tests.places import in_places
from tests.programs.forked import outcome

WORKERS = in_places("inline", "threads")
KINDS = pytest.mark.parametrize("kind", ["indexed", "ordered"])
BAD = 17


class RefusedError(Exception):
    """A client's error that can't be made from a text alone."""

    def __init__(self, code: int, path: str) -> None:
        super().__init__(code, path)
        self.code = code


class Failing:
    """Numbers, of which one can't be read: always, or as often as is said.

    `fault` makes what is raised or returned; an exception that was kept would keep the source, by its traceback.
    """

    def __init__(self, fault: Callable[[], object], times: int = 1 << 30) -> None:
        self.fault = fault
        self.times = times

    def __len__(self) -> int:
        return 40

    async def read(self, keys: NDArray[np.int64]) -> Any:
        """Return the keys, or fail."""
        await asyncio.sleep(0)
        if BAD in keys.tolist() and self.times:
            self.times -= 1
            made = self.fault()
            if isinstance(made, BaseException):
                raise made
            return made
        return [int(key) for key in keys]

    def describe_key(self, key: int) -> str:
        """Return the path of a record."""
        return f"path /{key}"

    def __repr__(self) -> str:
        return "Failing()"


class Plain(Failing):
    """The same source, read by plain code."""

    def __getitem__(self, key: int) -> int:
        return int(self.read(np.array([key]))[0])

    def read(self, keys: NDArray[np.int64]) -> Any:
        """Return the keys, or fail."""
        return asyncio.run(super().read(keys))


def nothing() -> None:
    """Return no records."""


ORDER = [int(number) for number in ps.range(40, seed=3).shuffle()]
STEP = ORDER.index(BAD) // 4
EXPECTED = [ORDER[start : start + 4] for start in range(0, 40, 4)]


def raised_by(loader: Any) -> tuple[list[Any], Exception]:
    """Return the batches before an error, and the error."""
    found: list[Any] = []
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the test looks at it
        found.extend(batch.tolist() for batch in loader)
    return found, caught.value


FAULTS: list[Callable[[], object]] = [
    lambda: RefusedError(403, "/17"),
    lambda: ValueError("no image"),
    lambda: [1, 2, 3],
    nothing,
    IndexError,
]


@WORKERS
@KINDS
def test_errors_are_those_of_any_source(kind: str, place: dict[str, Any]) -> None:
    """After the batches before it comes the error of a plain source, with the same notes."""
    for fault in FAULTS:
        _, plain = raised_by(ps.Loader(dataset_of(Plain(fault), kind)))
        with ps.Loader(dataset_of(Failing(fault), kind), **place) as loader:
            found, caught = raised_by(loader)
            assert found == EXPECTED[:STEP]
            assert (type(caught), str(caught)) == (type(plain), str(plain).replace("Plain", "Failing"))
            assert caught.__notes__[-1:] == plain.__notes__[-1:]
            assert "path /17" in f"{caught} {caught.__notes__}" or isinstance(fault(), list | None)
            assert loader.state_dict()["step"] == STEP
            if kind == "indexed":
                loader.seek(STEP + 1)
                assert [batch.tolist() for batch in loader] == EXPECTED[STEP + 1 :]


@WORKERS
@KINDS
def test_an_exception_that_ends_programs_ends_no_event_loop(kind: str, place: dict[str, Any]) -> None:
    """The consumer gets the coroutine's exception, and the source's loop continues; a lost connection is retried."""
    source = Failing(nothing)
    with ps.Loader(dataset_of(source, kind), **place) as loader:
        for fault in (KeyboardInterrupt, SystemExit, asyncio.CancelledError):
            source.fault, source.times = fault, 1000
            with pytest.raises((KeyboardInterrupt, SystemExit, CancelledError)):
                list(loader)
            source.fault, source.times = ConnectionResetError, 2
            loader.seek(0)
            assert [batch.tolist() for batch in loader] == EXPECTED
            loader.seek(0)


class Numbers:
    """Numbers, of a class whose instances have no weak references."""

    __slots__ = ()

    def __len__(self) -> int:
        return 8

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return the keys."""
        return [int(key) for key in keys]


class Stuck(Numbers):
    """A source that answers some keys, and notes whether requests wait for others."""

    def __init__(self) -> None:
        self.answers = 4
        self.waiting = 0
        self.stuck = threading.Event()
        self.is_idle = threading.Event()

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return the first keys; wait for ever for others."""
        if int(keys.max()) >= self.answers:
            self.waiting += 1
            self.stuck.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.waiting -= 1
                if not self.waiting:
                    self.is_idle.set()
        return await super().read(keys)


@KINDS
def test_an_abandoned_iterator_cancels_its_requests(kind: str) -> None:
    """Closing, dropping or replacing an iterator, or a seek, cancels its requests and frees its workers."""
    for end in ("close", "drop", "newer", "seek"):
        source = Stuck()
        rows = ps.read(source)
        dataset = rows.batch(4) if kind == "indexed" else rows.filter(keep).batch(4)
        with ps.Loader(dataset, num_workers=2, limits=ps.Limits(read_ahead=30)) as loader:
            batches = iter(loader)
            assert next(batches).tolist() == [0, 1, 2, 3]
            assert source.stuck.wait(PATIENCE_SECONDS)
            match end:
                case "close":
                    loader.close()
                case "drop":
                    del batches
                    gc.collect()
                case "newer":
                    source.answers = 8
                    assert next(iter(loader)).tolist() == [0, 1, 2, 3]
                case _:
                    loader.seek(1)
            assert source.is_idle.wait(PATIENCE_SECONDS)


class Record:
    """A record whose garbage collection can be observed."""

    def __init__(self, key: int) -> None:
        self.key = key


class Observed:
    """A source that notes when many of its records are in memory, and when none is."""

    def __init__(self) -> None:
        self.alive = 0
        self.has_many = threading.Event()
        self.has_none = threading.Event()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return 1000

    async def read(self, keys: NDArray[np.int64]) -> list[Record]:
        """Return new records."""
        await asyncio.sleep(0)
        records = [Record(int(key)) for key in keys]
        for record in records:
            weakref.finalize(record, self._count, -1)
            self._count(1)
        return records

    def _count(self, more: int) -> None:
        with self._lock:
            self.alive += more
            if self.alive >= 20:
                self.has_many.set()
            if not self.alive:
                self.has_none.set()


def test_a_closed_loader_keeps_no_records_that_were_read_ahead() -> None:
    """They are gone without Python's collector, which may run much later."""
    source = Observed()
    gc.disable()
    try:
        dataset = ps.read(source).map(lambda record: record.key).batch(4)
        loader = ps.Loader(dataset, num_workers=2, limits=ps.Limits(read_ahead=30), prefetch=1)
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
        assert source.has_many.wait(PATIENCE_SECONDS)
        source.has_none.clear()
        loader.close()
        assert source.has_none.wait(PATIENCE_SECONDS)
    finally:
        gc.enable()


def test_a_source_has_one_event_loop_for_its_lifetime() -> None:
    """Indexing and successive loaders share a source's loop, which ends with the source."""
    source: Any = Session()
    assert ps.read(source)[3] == 3
    for workers in (0, 2, 2):
        with ps.Loader(ps.read(source).shuffle().batch(4), num_workers=workers) as loader:
            assert sum(len(batch) for batch in loader) == 8
        del loader
    (thread,) = source.threads
    assert thread.is_alive()
    del source
    for pipeline in threading.enumerate():  # those that read ahead: closing a loader doesn't wait for their end
        if pipeline.name == "penstock-loop":
            pipeline.join(PATIENCE_SECONDS)
    gc.collect()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


class Session(Numbers):
    """A source with a session, which it opens at the first read; notes what happens on its event loop."""

    def __init__(self) -> None:
        self.is_open = False
        self.notes: list[str] = []
        self.threads: set[threading.Thread] = set()

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Open the session, and return the keys."""
        self.threads.add(threading.current_thread())
        if not self.is_open:
            self.is_open = True
            self.notes.append("open")
        return await super().read(keys)

    async def aclose(self) -> None:
        """Close the session."""
        self.threads.add(threading.current_thread())
        await asyncio.sleep(0)
        self.is_open = False
        self.notes.append("close")


@WORKERS
def test_the_last_loader_closes_the_session_of_its_sources(place: dict[str, Any]) -> None:
    """`aclose` is awaited on the source's loop when no open loader reads the source; a later read may open again."""
    source = Session()
    dataset = ps.read(source).batch(4)
    for _ in range(2):
        first, second = ps.Loader(dataset, **place), ps.Loader(dataset)
        assert [batch.tolist() for batch in first] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        first.close()
        assert source.is_open
        assert len(list(second)) == 2
        second.close()
        second.close()
        assert not source.is_open
    assert source.notes == ["open", "close"] * 2
    assert len(source.threads) == 1


class Lasting(Session):
    """A session whose end takes for ever."""

    async def aclose(self) -> None:
        """Wait for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            self.notes.append("cancelled")


class Plainly(Numbers):
    """A session that is closed by plain code."""

    is_closed = False

    def aclose(self) -> None:
        """Close the session."""
        self.is_closed = True


def test_a_session_that_does_not_end_is_cancelled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing a loader waits for `aclose` for a while only; one that is no coroutine function is called, too."""
    monkeypatch.setattr("penstock.sources._source_loop._CLOSE_SECONDS", 0.01)
    lasting, plain = Lasting(), Plainly()
    source: Any
    for source in (lasting, plain):
        with ps.Loader(ps.read(source).batch(4)) as loader:
            assert len(list(loader)) == 2
    assert plain.is_closed
    assert ps.read(lasting)[0] == 0  # on its loop, after the cancellation
    assert lasting.notes[1] == "cancelled"
    assert "aclose of a Lasting hasn't ended after 0.01 s" in caplog.text


@pytest.mark.usefixtures("forked_programs")
def test_a_session_is_closed_at_the_end_of_the_program() -> None:
    """A program that indexes a dataset, or leaves its loader open, has `aclose` awaited at its end."""
    program = (
        "import penstock as ps\n"
        "class Source:\n"
        "    def __len__(self): return 4\n"
        "    async def read(self, keys): return keys.tolist()\n"
        "    async def aclose(self): print('closed', flush=True)\n"
        "source = Source()\n"
        "dataset = ps.read(source).batch(2)\n"
        "print(dataset[0].tolist())\n"
    )
    for more in ("", "loader = ps.Loader(dataset)\nprint(len(list(loader)))\n"):
        found = outcome(program + more)
        assert found.stdout.splitlines()[-1] == "closed"
        assert found.stdout.count("closed") == 1
        assert (found.returncode, found.stderr) == (0, "")


@WORKERS
def test_a_program_with_a_running_loop_can_read_too(place: dict[str, Any]) -> None:
    """Inside a coroutine, as in a notebook, a dataset can be indexed and loaded."""

    async def main() -> None:
        dataset = dataset_of(Failing(nothing, times=0), "indexed")
        assert dataset[0].tolist() == EXPECTED[0]
        with ps.Loader(dataset, **place) as loader:
            assert [batch.tolist() for batch in loader] == EXPECTED
            assert [len(batch) async for batch in loader] == [4] * 10

    asyncio.run(main())


class Selfish(Numbers):
    """A source that reads itself by plain code."""

    dataset: Any = None

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Read the dataset of this source."""
        return [self.dataset[0] for _ in keys]


def test_reading_inside_its_own_read_is_refused() -> None:
    """It would wait for itself; the error says so."""
    source = Selfish()
    source.dataset = ps.read(source)
    with pytest.raises(ps.errors.UsageError, match=r"would wait for itself\. Await"):
        source.dataset[1]
    source.dataset = None


class Endless:
    """A source without a length."""

    read = Numbers.read


class ByNone(Failing):
    """A source that wants no keys."""

    keys_per_read = 0


class Yielding(Failing):
    """A source whose `read` is an async generator."""

    async def read(self, keys: NDArray[np.int64]) -> Any:
        """Yield the keys."""
        for key in keys.tolist():
            yield key


class Returning(Failing):
    """A source whose `read` returns a coroutine, and isn't a coroutine function."""

    def read(self, keys: NDArray[np.int64]) -> Any:
        """Return a coroutine."""
        return super().read(keys)


class Awaitable:
    """A source whose `__getitem__` is a coroutine function."""

    def __len__(self) -> int:
        return 3

    async def __getitem__(self, key: int) -> int:
        return key


def test_wrong_sources_and_limits_are_refused() -> None:
    """The error names a source's missing or wrong part and the remedy, when the dataset is made."""
    refused: list[tuple[Callable[[], Any], str]] = [
        (Endless, r"must have __len__ .*; got .*Endless.* Give it a __len__"),
        (lambda: ByNone(nothing), r"keys_per_read .* at least 1; got 0 from Failing\(\)\. Set"),
        (lambda: Yielding(nothing), r"is an async generator: make it return a list"),
        (lambda: Returning(nothing), r"if its read returns a coroutine, write it as async def read"),
        (Awaitable, r"__getitem__ is a coroutine function: write async def read"),
        (lambda: Failing, r"That is the class itself"),
    ]
    for made, message in refused:
        with pytest.raises(ps.errors.UsageError, match=message):
            ps.read(made())
    with pytest.raises(ps.errors.UsageError, match=r"read_ahead must be at least 1 .*; got read_ahead=0"):
        ps.Loader(ps.range(4), limits=ps.Limits(read_ahead=0))


def test_a_class_with_slots_can_be_a_source() -> None:
    """A source without weak references has its loop as long as its dataset."""
    dataset = ps.read(Numbers()).batch(6)
    with ps.Loader(dataset, num_workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3, 4, 5], [6, 7]]
    assert dataset[1].tolist() == [6, 7]
