"""The helper of `run_in_subprocess`: it runs the pipeline, and sends the items while there is room.

The messages, their order, and the behaviour at errors, crashes and the end are those of `_processes/_helper.py`. The
helper's own: each message of the data channel is `(run, kind, content)`; `Read` and `Look` are commands beside `Begin`;
and `Seen` is the answer to `Look`, and the last answer of a helper that was asked to end.

Guarantees:
  - Items that were computed before a failure are sent before it.
  - At most the tensor pipe's capacity and the sink's buffer are computed ahead of the parent.

Pickling. Executors of the standard library stay with the process that made them. Instead of each, the helper gets an
executor of ours with as many workers and the same initializer, which starts and ends with the pipeline: processes of a
`ProcessPoolExecutor` would outlive a helper that is killed. Stages that share an executor share its successor. Objects
of `multiprocessing`, such as `Value`, `Lock`, `Queue` and `Event`, can only be given to a process as it is started. So
a pickle holds their numbers, and the process gets the objects themselves beside it.
"""

import asyncio
import ctypes
import dataclasses
import io
import itertools
import multiprocessing.connection
import multiprocessing.queues
import multiprocessing.sharedctypes
import multiprocessing.synchronize
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._processes import (
    Begin,
    MessageKind,
    OwnerGoneError,
    PackedError,
    listen_to_owner,
    pack_error,
    report_started,
)
from penstock.errors import ClosedError, PeerError, PipelineFailure, UsageError
from penstock.pipeline._config import Merge, PipelineConfig
from penstock.pipeline._engine import Engine
from penstock.pipeline._items import summary_of
from penstock.pipeline._pipeline import Pipeline
from penstock.pipeline._processes import ProcessExecutor, load
from penstock.pipeline._stages import PathVariants, Pipe, Stage, StageExecutor, ThreadExecutor
from penstock.pipeline._statistics import Probes
from penstock.pipeline._statistics._report import PipelineReport
from penstock.transport import TensorPipeWriter

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_INHERITED: Final[tuple[type[object], ...]] = (
    multiprocessing.connection.Connection,
    multiprocessing.queues.Queue,
    multiprocessing.queues.SimpleQueue,
    multiprocessing.sharedctypes.SynchronizedBase,
    multiprocessing.synchronize.Barrier,
    multiprocessing.synchronize.Condition,
    multiprocessing.synchronize.Event,
    multiprocessing.synchronize.SemLock,
)
_CTYPES: Final = cast("type", ctypes.Structure.__base__)  # the base class of all types of ctypes
_ITEM_CHARACTERS: Final = 200
_ITEM_PLACE: Final = "[2]"  # of the item in its message
_TURN_ITEMS: Final = 64  # so many are sent before the event loop does other work


# -- messages


class Setup(NamedTuple):
    """The pipeline that the process runs, and its settings.

    Attributes:
        config: the pipeline.
        num_threads: as in `build_pipeline`.
        max_failures: as in `build_pipeline`.
        statistics: as in `build_pipeline`.
        address: of the parent's end of the tensor pipe.
        capacity: how many items may be on their way.
    """

    config: PipelineConfig
    num_threads: int
    max_failures: int | Fraction
    statistics: bool
    address: str
    capacity: int


class Read(NamedTuple):
    """The command that reports that a pass of a run is being read.

    Attributes:
        run: the run's number.
        passes: the number of its passes that the reader has begun to read.
    """

    run: int
    passes: int


class Look(NamedTuple):
    """The command that requests the drops and statistics so far.

    Attributes:
        number: of the request.
    """

    number: int


@frozen
class Seen:
    """The answer to `Look`, and the last answer.

    Attributes:
        number: of the request; -1 for the last answer.
        dropped: stage, item and error of each item that was dropped and is kept.
        report: None without statistics.
        failure: the failure that ended the last run, whose message may not have been read.
        failed_run: the number of that run.
    """

    number: int
    dropped: tuple[tuple[str, str, PackedError], ...]
    report: PipelineReport | None
    failure: PackedError | None = None
    failed_run: int = 0


# -- the helper


def serve(pipe: "Connection[Any, Any]", initializer: bytes, setup: bytes, inherited: list[object]) -> None:
    """Run a pipeline for the parent until the parent sends the end, or has ended."""
    with suppress(BrokenPipeError), ExitStack() as resources:
        helper: Helper | None = None
        with Caught() as caught:
            prepare = cast("Callable[[], object] | None", _loaded(initializer, "the initializer", inherited))
            if prepare is not None:
                prepare()
            helper = _helper(pipe, cast("Setup", _loaded(setup, "the pipeline's config", inherited)), resources)
        report_started(pipe, caught.error)
        if helper is not None:
            asyncio.run(helper.serve())


def _helper(pipe: "Connection[Any, Any]", setup: Setup, resources: ExitStack) -> "Helper":
    probes = Probes(statistics=setup.statistics, observer=None)
    engine = Engine(setup.config, setup.num_threads, setup.max_failures, probes)
    engine.keeps_pass = False  # the parent process decides what a `for` reads, and drops the rest of a pass
    pipeline = Pipeline(engine)
    writer = TensorPipeWriter(setup.address, capacity=setup.capacity, allow_pickle=True)
    resources.callback(_close, writer)
    return Helper(pipe, setup, pipeline, writer)


class Helper:
    """Sends the pipeline's items, and follows the parent's commands.

    Args:
        pipe: of the commands and answers.
        setup: the pipeline's description.
        pipeline: the pipeline; this stops it.
        writer: sends the items.
    """

    def __init__(
        self, pipe: "Connection[Any, Any]", setup: Setup, pipeline: Pipeline, writer: TensorPipeWriter
    ) -> None:
        self._pipe = pipe
        self._setup = setup
        self._pipeline = pipeline
        self._writer = writer
        self._commands: asyncio.Queue[Begin[None] | Look | None] = asyncio.Queue()
        self._read = Read(0, 0)  # the latest from the parent
        self._read_changed = asyncio.Event()
        self._failure: PackedError | None = None
        self._failed_run = 0

    async def serve(self) -> None:
        """Follow the parent's commands until the last one."""
        loop = asyncio.get_running_loop()

        def post(command: Begin[None] | Read | Look | None) -> None:
            with suppress(RuntimeError):  # the loop is closed, since the pipeline could not be run
                loop.call_soon_threadsafe(self._receive, command)

        listen_to_owner(self._pipe, post)
        scope = self._pipeline.auto_stop()
        run = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                sending: asyncio.Task[None] | None = None
                while (command := await self._commands.get()) is not None:
                    if isinstance(command, Look):
                        self._answer(command.number)
                        continue
                    if sending is not None:
                        sending.cancel()
                        await asyncio.wait([sending])
                    run = command.run
                    self._failure = None
                    sending = tasks.create_task(self._send_all(run))
                if sending is not None:
                    sending.cancel()
        finally:
            with Caught() as stopping:
                scope.__exit__(None, None, None)  # raises a failure that was not sent
        if stopping.error is not None:
            self._failure, self._failed_run = pack_error(stopping.error, with_cause=True), run
        with suppress(OSError):
            self._answer(-1)

    def _receive(self, command: Begin[None] | Read | Look | None) -> None:
        if isinstance(command, Read):
            self._read = command
            self._read_changed.set()
        else:
            self._commands.put_nowait(command)

    def _answer(self, number: int) -> None:
        dropped = tuple((each.stage, each.item, pack_error(each.error)) for each in self._pipeline.dropped())
        report = self._pipeline.report() if self._setup.statistics else None
        seen = Seen(number, dropped, report, self._failure, self._failed_run)
        self._pipe.send_bytes(pickle.dumps(seen))

    async def _send_all(self, run: int) -> None:
        with suppress(OwnerGoneError):
            with Caught() as caught:
                await self._send_passes(run)
            if isinstance(caught.error, Exception) and not isinstance(caught.error, OwnerGoneError):
                self._failure, self._failed_run = pack_error(caught.error, with_cause=True), run
                await self._send((run, int(MessageKind.FAILED), pickle.dumps(self._failure)))
            elif caught.error is not None:
                raise caught.taken()

    async def _send_passes(self, run: int) -> None:
        if not self._setup.config.continuous:
            await self._send_pass(run)
            await self._send((run, int(MessageKind.END), None))
            return
        if self._pipeline.state != "running":
            self._pipeline.start()
        for number in itertools.count(1):
            while self._read < (run, number):  # a pass is computed, and not sent, before it is read
                self._read_changed.clear()
                await self._read_changed.wait()
            await self._send_pass(run)
            await self._send((run, int(MessageKind.END_OF_PASS), None))

    async def _send_pass(self, run: int) -> None:
        kind, count = int(MessageKind.ITEM), 0
        async for item in self._pipeline:
            try:
                await self._send((run, kind, item))
            except OwnerGoneError:
                raise
            except Exception as error:
                raise PipelineFailure(
                    f"an item of {type(item).__qualname__} can't be sent from the pipeline's process to this one: "
                    f"{_reason(error)}",
                    stage="sink",
                    item=_shortened(item),
                ) from error
            count += 1
            if count % _TURN_ITEMS == 0:
                await asyncio.sleep(0)

    async def _send(self, message: tuple[int, int, object]) -> None:
        try:
            await self._writer.asend(message)
        except (ClosedError, PeerError) as error:
            raise OwnerGoneError from error


def _reason(error: Exception) -> str:
    """Return the reason why an item can't be sent; the place in it is one of the user's item, not of the message."""
    if not isinstance(error, UsageError):
        return summary_of(error)
    text = str(error).removeprefix(_ITEM_PLACE)
    return f"it{text}" if text.startswith(" ") else text  # the item itself has no place


def _shortened(item: object) -> str:
    with Caught():
        return f"{item!r:.{_ITEM_CHARACTERS}}"
    return f"(a {type(item).__qualname__}, whose repr failed)"


def _close(writer: TensorPipeWriter) -> None:
    with suppress(PeerError):
        writer.close()


# -- pickling for the helper


class Sending:
    """Pickles the arguments with which one process is started.

    Attributes:
        inherited: the objects that the pickles refer to by numbers.
    """

    def __init__(self) -> None:
        self.inherited: list[object] = []

    def dump(self, value: object) -> bytes:
        """Return the pickle of a value; exceptions of pickling pass through."""
        file = io.BytesIO()
        _Pickler(file, self.inherited).dump(value)
        return file.getvalue()


def _loaded(pickled: bytes, what: str, inherited: Sequence[object]) -> object:
    """Return the value of a pickle, in the process that inherited the objects.

    Raises:
        WorkerError: it can't be rebuilt here.
    """
    return load(pickled, what, lambda data: cast("object", _Unpickler(io.BytesIO(data), inherited).load()))


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, inherited: list[object]) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._inherited = inherited

    def persistent_id(self, obj: object) -> int | None:
        if not _is_inherited(obj):
            return None
        if any(getattr(lock, "_is_fork_ctx", False) for lock in _locks(obj)):
            raise UsageError(
                f"locks that multiprocessing makes for forked processes can't go to a clean one; got {obj!r:.200}. "
                'Make it of another context, as multiprocessing.get_context("spawn").Value("i"), or with lock=False'
            )
        for number, known in enumerate(self._inherited):
            if known is obj:
                return number
        self._inherited.append(obj)
        return len(self._inherited) - 1


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, inherited: Sequence[object]) -> None:
        super().__init__(file)
        self._inherited = inherited

    def persistent_load(self, pid: object) -> object:
        return self._inherited[cast("int", pid)]


def _is_inherited(value: object) -> bool:
    if isinstance(value, _CTYPES):  # a `RawValue` or `RawArray` is one over multiprocessing's memory
        return type(getattr(value, "_wrapper", None)).__module__ == "multiprocessing.heap"
    return isinstance(value, _INHERITED)


def _locks(value: object) -> Iterator[object]:
    """Yield the locks in an object of `multiprocessing`."""
    if isinstance(value, multiprocessing.synchronize.SemLock):
        yield value
    elif isinstance(value, _INHERITED):
        for each in cast("dict[str, object]", vars(value)).values():
            yield from _locks(each)


class Successors:
    """Replaces the executors of a config by those that start with the pipeline."""

    def __init__(self) -> None:
        self._by_id: dict[int, StageExecutor] = {}

    def config(self, config: PipelineConfig) -> PipelineConfig:
        """Return the config with the executors' successors."""
        source = config.source
        if isinstance(source, Merge):
            source = dataclasses.replace(source, pipelines=tuple(map(self.config, source.pipelines)))
        return dataclasses.replace(config, source=source, pipes=self._stages(config.pipes))

    def _stages(self, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
        return tuple(map(self._stage, stages))

    def _stage(self, stage: Stage) -> Stage:
        match stage:
            case Pipe(executor=ThreadPoolExecutor() | ProcessPoolExecutor() as pool):
                return dataclasses.replace(stage, executor=self._by_id.setdefault(id(pool), _successor(pool)))
            case PathVariants(paths=paths):
                return dataclasses.replace(stage, paths=tuple(map(self._stages, paths)))
            case _:
                return stage


def _successor(pool: ThreadPoolExecutor | ProcessPoolExecutor) -> StageExecutor:
    workers = cast("int", _attribute(pool, "_max_workers"))
    if type(pool) is ThreadPoolExecutor:
        context = cast("Callable[[], object] | None", _attribute(pool, "_create_worker_context"))  # from Python 3.14 on
        made, prefix = (pool, "_") if context is None else (context(), "")
        initializer, initargs = _attribute(made, f"{prefix}initializer"), _attribute(made, f"{prefix}initargs")
        return ThreadExecutor(workers, initializer=cast("Any", initializer), initargs=cast("Any", initargs))
    if type(pool) is ProcessPoolExecutor:
        method = cast("Any", _attribute(pool, "_mp_context")).get_start_method()
        return ProcessExecutor(
            workers,
            start_method="spawn" if method == "spawn" else None,  # none of ours is forked from this process
            initializer=cast("Any", _attribute(pool, "_initializer")),
            initargs=cast("Any", _attribute(pool, "_initargs")),
        )
    return cast("StageExecutor", pool)  # of a class with ways of its own, which pickling will name


def _attribute(value: object, name: str) -> object:
    return cast("object", getattr(value, name, None))
