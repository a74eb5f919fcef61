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

WORKERS = in_places("inline", "thread", "threads")
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


@WORKERS
@KINDS
@pytest.mark.parametrize(
    "fault", [lambda: RefusedError(403, "/17"), lambda: ValueError("no image"), lambda: [1, 2, 3], nothing, IndexError]
)
def test_errors_are_those_of_any_source(kind: str, place: dict[str, Any], fault: Callable[[], object]) -> None:
    """After the batches before it comes the error of a plain source, with the same notes."""
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
@pytest.mark.parametrize("fault", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
def test_an_exception_that_ends_programs_ends_no_event_loop(
    kind: str, place: dict[str, Any], fault: Callable[[], object]
) -> None:
    """The consumer gets the coroutine's exception, and the source's loop continues."""
    source = Failing(fault, times=1000)
    with ps.Loader(dataset_of(source, kind), **place) as loader:
        with pytest.raises((KeyboardInterrupt, SystemExit, CancelledError)):
            list(loader)
        source.times = 0
        loader.seek(0)
        assert [batch.tolist() for batch in loader] == EXPECTED


@WORKERS
@KINDS
def test_a_passing_error_is_retried(kind: str, place: dict[str, Any]) -> None:
    """A connection that is lost now and then loses no batch and raises nothing."""
    with ps.Loader(dataset_of(Failing(ConnectionResetError, times=2), kind), **place) as loader:
        assert [batch.tolist() for batch in loader] == EXPECTED


@WORKERS
def test_a_substitute_is_read_when_it_is_needed(place: dict[str, Any]) -> None:
    """`on_error` of a step above reads substitutes, as over any source."""

    def refuse(number: int) -> int:
        if number % 5 == 1:
            raise ValueError("corrupt")
        return number

    def dataset(source: Any) -> ps.Dataset[Any]:
        rows: ps.Dataset[Any] = ps.read(source, seed=3)
        return rows.shuffle().map(refuse, on_error=ps.Substitute()).batch(4)

    expected = [batch.tolist() for batch in dataset(list(range(40)))]
    with ps.Loader(dataset(Failing(nothing, times=0)), **place) as loader:
        assert [batch.tolist() for batch in loader] == expected


class Stuck:
    """A source that answers some keys, and counts the requests that wait for others."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.waiting = 0
        self.stuck = threading.Event()
        self.is_idle = threading.Event()

    def __len__(self) -> int:
        return 1000

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return the first keys; wait for ever for others."""
        if int(keys.max()) < self.answers:
            return [int(key) for key in keys]
        self.waiting += 1
        self.stuck.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.waiting -= 1
            if not self.waiting:
                self.is_idle.set()
        return []

    def wait_idle(self) -> None:
        """Wait until no request waits any more."""
        assert self.is_idle.wait(PATIENCE_SECONDS)


@KINDS
@pytest.mark.parametrize("end", ["close", "drop", "newer", "seek"])
def test_an_abandoned_iterator_cancels_its_requests(kind: str, end: str) -> None:
    """Closing, dropping or replacing an iterator, or a seek, cancels its requests and frees its workers."""
    source = Stuck(8)
    rows = ps.read(source)
    dataset = rows.batch(4) if kind == "indexed" else rows.filter(keep).batch(4)
    loader = ps.Loader(dataset, num_workers=2, limits=ps.Limits(read_ahead=30))
    batches: Any = iter(loader)
    assert next(batches).tolist() == [0, 1, 2, 3]
    assert source.stuck.wait(PATIENCE_SECONDS)
    match end:
        case "close":
            loader.close()
        case "drop":
            del batches
            gc.collect()
        case "newer":
            source.answers = 1000
            assert next(iter(loader)).tolist() == [0, 1, 2, 3]
        case _:
            loader.seek(1)
    source.wait_idle()
    loader.close()


class Record:
    """A record whose garbage collection can be observed."""

    def __init__(self, key: int) -> None:
        self.key = key


class Observed:
    """A source that counts its records in memory."""

    def __init__(self, many: int) -> None:
        self.alive = 0
        self.has_many = threading.Event()
        self.has_none = threading.Event()
        self._many = many
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return 1000

    async def read(self, keys: NDArray[np.int64]) -> list[Record]:
        """Return new records."""
        await asyncio.sleep(0)
        return [self._made(int(key)) for key in keys]

    def _made(self, key: int) -> Record:
        record = Record(key)
        weakref.finalize(record, self._dropped)
        with self._lock:
            self.alive += 1
            if self.alive >= self._many:
                self.has_many.set()
        return record

    def _dropped(self) -> None:
        with self._lock:
            self.alive -= 1
            if not self.alive:
                self.has_none.set()


def test_a_closed_loader_keeps_no_records_that_were_read_ahead() -> None:
    """They are gone without Python's collector, which may run much later."""
    source = Observed(many=20)
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

    def load(source: Any, workers: int) -> None:
        with ps.Loader(ps.read(source).shuffle().batch(4), num_workers=workers) as loader:
            assert sum(len(batch) for batch in loader) == 20

    class Local:
        def __init__(self) -> None:
            self.loops: set[asyncio.AbstractEventLoop] = set()
            self.threads: set[threading.Thread] = set()

        def __len__(self) -> int:
            return 20

        async def read(self, keys: NDArray[np.int64]) -> list[int]:
            self.loops.add(asyncio.get_running_loop())
            self.threads.add(threading.current_thread())
            return [int(key) for key in keys]

    source: Any = Local()
    assert ps.read(source)[3] == 3
    for workers in (0, 2, 2):
        load(source, workers)
    (thread,) = source.threads
    assert len(source.loops) == 1
    assert thread.is_alive()
    del source
    for pipeline in threading.enumerate():  # those that read ahead: closing a loader doesn't wait for their end
        if pipeline.name == "penstock-loop":
            pipeline.join(PATIENCE_SECONDS)
    gc.collect()
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


class Session:
    """A source with a session, which it opens at the first read; notes what happens on its event loop."""

    def __init__(self) -> None:
        self.is_open = False
        self.notes: list[str] = []
        self.loops: set[asyncio.AbstractEventLoop] = set()

    def __len__(self) -> int:
        return 8

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Open the session, and return the keys."""
        self.loops.add(asyncio.get_running_loop())
        if not self.is_open:
            self.is_open = True
            self.notes.append("open")
        return [int(key) for key in keys]

    async def aclose(self) -> None:
        """Close the session."""
        self.loops.add(asyncio.get_running_loop())
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
    assert len(source.loops) == 1


class Lasting(Session):
    """A session whose end takes for ever."""

    async def aclose(self) -> None:
        """Wait for ever."""
        try:
            await asyncio.Event().wait()
        finally:
            self.notes.append("cancelled")


class Plainly:
    """A session that is closed by plain code."""

    def __init__(self) -> None:
        self.is_closed = False

    def __len__(self) -> int:
        return 8

    async def read(self, keys: NDArray[np.int64]) -> list[int]:
        """Return the keys."""
        return [int(key) for key in keys]

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


def test_reading_inside_its_own_read_is_refused() -> None:
    """An async source that reads itself by plain code would wait for itself; the error says so."""

    class Selfish:
        dataset: Any = None

        def __len__(self) -> int:
            return 3

        async def read(self, keys: NDArray[np.int64]) -> list[int]:
            return [self.dataset[0] for _ in keys]

    source = Selfish()
    source.dataset = ps.read(source)
    with pytest.raises(ps.errors.UsageError, match=r"would wait for itself\. Await"):
        source.dataset[1]
    source.dataset = None


def test_wrong_sources_and_limits_are_refused() -> None:
    """The error names a source's missing or wrong part and the remedy, when the dataset is made."""

    class Endless:
        async def read(self, keys: NDArray[np.int64]) -> list[int]:
            return [int(key) for key in keys]

    class Slotted(Failing):
        keys_per_read = 0

    with pytest.raises(ps.errors.UsageError, match=r"must have __len__ .*; got .*Endless.* Give it a __len__"):
        ps.read(Endless())
    with pytest.raises(ps.errors.UsageError, match=r"keys_per_read .* at least 1; got 0 from Failing\(\)\. Set"):
        ps.read(Slotted(nothing))
    with pytest.raises(ps.errors.UsageError, match=r"That is the class itself"):
        ps.read(Failing)
    with pytest.raises(ps.errors.UsageError, match=r"read_ahead must be at least 1 .*; got read_ahead=0"):
        ps.Loader(ps.range(4), limits=ps.Limits(read_ahead=0))


class Yielding(Failing):
    """A source whose `read` is an async generator."""

    async def read(self, keys: NDArray[np.int64]) -> Any:
        """Yield the keys."""
        for key in keys.tolist():
            yield key


class Returning:
    """A source whose `read` returns a coroutine, and isn't a coroutine function."""

    def __len__(self) -> int:
        return 3

    def read(self, keys: NDArray[np.int64]) -> Any:
        """Return a coroutine."""
        return Failing(nothing).read(keys)


class Awaitable:
    """A source whose `__getitem__` is a coroutine function."""

    def __len__(self) -> int:
        return 3

    async def __getitem__(self, key: int) -> int:
        return key


@pytest.mark.parametrize(
    ("source", "remedy"),
    [
        (Yielding(nothing), r"is an async generator: make it return a list"),
        (Returning(), r"if its read returns a coroutine, write it as async def read"),
        (Awaitable(), r"__getitem__ is a coroutine function: write async def read"),
    ],
)
def test_sources_that_are_async_in_another_way_are_refused(source: Any, remedy: str) -> None:
    """The error names the form that an async source has."""
    with pytest.raises(ps.errors.UsageError, match=remedy):
        ps.read(source)


def test_a_class_with_slots_can_be_a_source() -> None:
    """A source without weak references has its loop as long as its dataset."""

    class Slotted:
        __slots__ = ()

        def __len__(self) -> int:
            return 3

        async def read(self, keys: NDArray[np.int64]) -> list[int]:
            return [int(key) for key in keys]

    dataset = ps.read(Slotted()).batch(2)
    with ps.Loader(dataset, num_workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1], [2]]
    assert dataset[1].tolist() == [2]
