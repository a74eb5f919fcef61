"""The code that runs in the process of a pipeline: it runs the pipeline, and sends the items while there is room.

Guarantees:
  - One run at a time: a new one ends the one before, even while that waits.
  - Items that were computed before a failure are sent before it.
  - At most the tensor pipe's capacity and the sink's buffer are computed ahead of the parent.
"""

import asyncio
import itertools
import pickle
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, cast

from penstock._caught import Caught
from penstock._processes import PackedError, pack_error
from penstock.errors import ClosedError, PeerError, PipelineFailure
from penstock.pipeline._engine._engine import Engine
from penstock.pipeline._engine._probes import Probes
from penstock.pipeline._pipeline import Pipeline
from penstock.pipeline._subprocess._messages import Begin, Look, Read, Seen, Setup, Word
from penstock.pipeline._subprocess._sending import load
from penstock.transport import TensorPipeWriter

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection

_TURN_ITEMS: Final = 64  # so many are sent before commands are looked for
_ITEM_CHARACTERS: Final = 200


def serve(requests: "Connection[Any, Any]", initializer: bytes, setup: bytes, inherited: list[object]) -> None:
    """Run a pipeline for the parent until the parent sends the end, or has ended."""
    with suppress(BrokenPipeError), ExitStack() as resources:
        helper: Helper | None = None
        with Caught() as caught:
            prepare = cast("Callable[[], object] | None", load(initializer, inherited))
            if prepare is not None:
                prepare()
            helper = _helper(requests, cast("Setup", load(setup, inherited)), resources)
        requests.send_bytes(pickle.dumps(None if caught.error is None else pack_error(caught.error, with_cause=True)))
        if helper is not None:
            asyncio.run(helper.serve())


def _helper(requests: "Connection[Any, Any]", described: Setup, resources: ExitStack) -> "Helper":
    probes = Probes(statistics=described.statistics, observer=None)
    engine = Engine(described.config, described.num_threads, described.max_failures, probes)
    engine.keeps_pass = False  # the parent process decides what a `for` reads, and drops the rest of a pass
    pipeline = Pipeline(engine)
    writer = TensorPipeWriter(described.address, capacity=described.capacity, allow_pickle=True)
    resources.callback(_close, writer)
    return Helper(requests, described, pipeline, writer)


class Helper:
    """Sends the pipeline's items, and follows the parent's commands.

    Args:
        requests: the pipe through which the commands come.
        setup: the pipeline's description.
        pipeline: the pipeline; this stops it.
        writer: where items go.
    """

    def __init__(
        self, requests: "Connection[Any, Any]", setup: Setup, pipeline: Pipeline, writer: TensorPipeWriter
    ) -> None:
        self._requests = requests
        self._setup = setup
        self._pipeline = pipeline
        self._writer = writer
        self._commands: asyncio.Queue[Begin | Look | None] = asyncio.Queue()
        self._read = Read(0, 0)  # the latest from the parent
        self._asked = asyncio.Event()  # set when that changes
        self._failure: PackedError | None = None
        self._failed_run = 0

    async def serve(self) -> None:
        """Follow the parent's commands until the last one."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._requests.fileno(), self._hear)
        scope = self._pipeline.auto_stop()
        run = 0
        try:
            async with asyncio.TaskGroup() as tasks:
                sending: asyncio.Task[None] | None = None
                while (command := await self._commands.get()) is not None:
                    if isinstance(command, Look):
                        self._tell(command.number)
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
            loop.remove_reader(self._requests.fileno())
            with Caught() as stopping:
                scope.__exit__(None, None, None)  # raises a failure that was not sent
        if stopping.error is not None:
            self._failure, self._failed_run = pack_error(stopping.error, with_cause=True), run
        with suppress(OSError):
            self._tell(-1)

    def _hear(self) -> None:
        command: Begin | Read | Look | None = None
        with suppress(EOFError, OSError):
            message = self._requests.recv_bytes()
            command = pickle.loads(message) if message else None
        if isinstance(command, Read):
            self._read = command
            self._asked.set()
            return
        if command is None:
            asyncio.get_running_loop().remove_reader(self._requests.fileno())
        self._commands.put_nowait(command)

    def _tell(self, number: int) -> None:
        dropped = tuple((each.stage, each.item, pack_error(each.error)) for each in self._pipeline.dropped())
        report = self._pipeline.report() if self._setup.statistics else None
        seen = Seen(number, dropped, report, self._failure, self._failed_run)
        self._requests.send_bytes(pickle.dumps(seen))

    async def _send_all(self, run: int) -> None:
        with suppress(_ParentGoneError):
            with Caught() as caught:
                await self._send_passes(run)
            if isinstance(caught.error, Exception) and not isinstance(caught.error, _ParentGoneError):
                self._failure, self._failed_run = pack_error(caught.error, with_cause=True), run
                await self._send((run, int(Word.FAILED), pickle.dumps(self._failure)))
            elif caught.error is not None:
                raise caught.error

    async def _send_passes(self, run: int) -> None:
        if not self._setup.config.continuous:
            await self._send_pass(run)
            await self._send((run, int(Word.END), None))
            return
        if self._pipeline.state != "running":
            self._pipeline.start()
        for number in itertools.count(1):
            while self._read < (run, number):  # the next pass is computed, and not sent, before this one is read
                self._asked.clear()
                await self._asked.wait()
            await self._send_pass(run)
            await self._send((run, int(Word.END_OF_PASS), None))

    async def _send_pass(self, run: int) -> None:
        word, count = int(Word.ITEM), 0
        async for item in self._pipeline:
            try:
                await self._send((run, word, item))
            except _ParentGoneError:
                raise
            except Exception as error:
                raise PipelineFailure(
                    f"an item of {type(item).__qualname__} can't be sent from the pipeline's process to this one: "
                    f"{error}",
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
            raise _ParentGoneError from error


class _ParentGoneError(Exception):
    """The parent receives no items any more."""


def _shortened(item: object) -> str:
    with Caught():
        return f"{item!r:.{_ITEM_CHARACTERS}}"
    return f"(a {type(item).__qualname__}, whose repr failed)"


def _close(writer: TensorPipeWriter) -> None:
    with suppress(PeerError):
        writer.close()
