"""SPDL's pipeline with 2 threads: one item per element, and for windows also one item per batch made by hand.

Between processes, both of its arenas, through `iterate_in_subprocess`.
"""

# The rival's package has few types and may be absent, so pyright checks less here.
# The return type of `Pipe` differs between platforms.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false, reportArgumentType=false

import logging
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spdl.pipeline import (
    AsyncQueue,
    PipelineBuilder,
    SharedMemoryRingBuffer,
    SharedMemorySegmentPool,
    iterate_in_subprocess,
)

from benchmarks.carry.child import IN_FLIGHT
from benchmarks.carry.messages import Message, first_message, numbered
from benchmarks.macro import (
    images,
    import_time,
    pipeline_noop,
    pipeline_waiting,
    readings,
    tiny,
    tokens,
    tokens_as_int32,
    transport,
)
from benchmarks.rivals import Contestants
from benchmarks.scenario import Batch, Contestant, Measurement, Output
from benchmarks.streams import passes
from benchmarks.usage import Usage, since, used

PER_ITEM, PER_BATCH = "SPDL, 2 threads, per item", "SPDL, 2 threads, per batch"
SLACK_BYTES = 1 << 16  # an arena's binaries are aligned
NUM_NOOP = 2_000  # integers through stages that do nothing: about a millisecond each
READ = 100  # batches of 32 integers of a pass: some tenths of a second
PREFIX = 8  # batches of a pass; per item it takes a fraction of a millisecond for each element


def _tiny(work: tiny.Work, _: ExitStack) -> tuple[Contestant, ...]:
    def batches() -> Iterator[Batch]:
        elements = range(min(work.count, PREFIX * work.batch_size))
        mapped = _builder().add_source(elements).pipe(tiny.add_one, concurrency=2, output_order="input")
        return _run(mapped.aggregate(work.batch_size).pipe(np.array))

    run, output = passes(batches), Output(tiny.CLAIM, batches)
    return (Contestant(PER_ITEM, "rival", run, tiny.UNIT, against=tiny.LIMITS, output=output),)


def _tokens(work: tokens.Work, _: ExitStack) -> tuple[Contestant, ...]:
    gather, order = _gather(work)

    def per_item() -> Iterator[Batch]:
        keys = order[: PREFIX * work.batch_size]
        read = _builder().add_source(keys).pipe(gather, concurrency=2, output_order="input")
        return _run(read.aggregate(work.batch_size).pipe(np.stack))

    def per_batch() -> Iterator[Batch]:
        return _run(_gathered(work))

    against, output = (tokens.LIMIT,), Output(tokens.CLAIM, per_batch, ordered=False)
    return (
        Contestant(PER_ITEM, "rival", passes(per_item), tokens.UNIT, against=against),
        Contestant(PER_BATCH, "rival", passes(per_batch), tokens.UNIT, against=against, output=output),
    )


def _tokens_as_int32(work: tokens.Work, _: ExitStack) -> tuple[Contestant, ...]:
    def per_batch() -> Iterator[Batch]:
        return _run(_gathered(work).pipe(tokens_as_int32.as_int32, concurrency=2, output_order="input"))

    limit = tokens_as_int32.LIMIT
    return (tokens_as_int32.contestant(PER_BATCH, "rival", per_batch, limit, ordered=False),)


def _gather(work: tokens.Work) -> tuple[Callable[[Any], Any], NDArray[np.int64]]:
    """Return a function that gathers a window by its key, or a batch by an array of keys, and a random order."""
    mapped = np.memmap(work.path, np.dtype("<u2"), "r")
    windows = np.lib.stride_tricks.sliding_window_view(mapped, work.length)[:: work.stride]
    return windows.__getitem__, np.random.default_rng(7).permutation(work.num_windows)


def _gathered(work: tokens.Work) -> Any:  # noqa: ANN401 - its type changes with every stage
    """Return the stages that gather a batch at once."""
    gather, order = _gather(work)
    keys = (order[start : start + work.batch_size] for start in range(0, len(order), work.batch_size))
    return _builder().add_source(keys).pipe(gather, concurrency=2, output_order="input")


def _images(work: images.Work, _: ExitStack) -> tuple[Contestant, ...]:
    def per_item() -> Iterator[Batch]:
        loaded = _builder().add_source(range(work.count)).pipe(work.load, concurrency=images.NUM_WORKERS)
        return _run(loaded.aggregate(work.batch_size).pipe(np.stack))

    return (images.contestant(work, PER_ITEM, "rival", per_item),)


def _pipeline_noop(work: pipeline_noop.Work, _: ExitStack) -> tuple[Contestant, ...]:
    limit, async_limit = pipeline_noop.LIMIT, pipeline_noop.ASYNC_LIMIT
    chains = (
        ("SPDL, sync ops", limit, partial(_chain, pipeline_noop.no_op)),
        ("SPDL, async ops", async_limit, partial(_chain, pipeline_noop.async_no_op)),
        ("SPDL, async ops, concurrency 4", async_limit, partial(_chain, pipeline_noop.async_no_op, concurrency=4)),
        (
            "SPDL, async ops, concurrency 4, in order",
            async_limit,
            partial(_chain, pipeline_noop.async_no_op, concurrency=4, output_order="input"),
        ),
    )

    def passing(chain: Callable[[int], Any], count: int) -> Iterator[int]:
        made = chain(count)
        with made.auto_stop():
            yield from made

    sync = partial(_chain, pipeline_noop.no_op)
    return (
        *(
            pipeline_noop.rated(
                pipeline_noop.Way(name, "rival", partial(passing, chain), against, compared="never"),
                min(work.count, NUM_NOOP),
            )
            for name, against, chain in chains
        ),
        pipeline_noop.first_item("SPDL", "rival", sync),
        pipeline_noop.stopped("SPDL", "rival", sync),
        pipeline_noop.rebuilt("SPDL", "rival", sync, work),
    )


def _pipeline_waiting(cells: tuple[pipeline_waiting.Cell, ...], _: ExitStack) -> tuple[Contestant, ...]:
    def make(cell: pipeline_waiting.Cell) -> Any:  # noqa: ANN401 - as below
        op = partial(pipeline_waiting.request, cell.milliseconds)
        builder = _builder().add_source(range(cell.requests)).pipe(op, concurrency=cell.concurrency)
        return builder.add_sink(pipeline_waiting.SINK).build(num_threads=1)

    return tuple(
        pipeline_waiting.timed(
            f"{cell}: SPDL",
            "rival",
            cell,
            partial(pipeline_waiting.running, partial(make, cell)),
            pipeline_waiting.limit_name(cell),
        )
        for cell in cells
    )


def _chain(op: Callable[[int], object], count: int, **options: object) -> Any:  # noqa: ANN401 - as below
    builder = _builder().add_source(range(count))
    for _ in range(pipeline_noop.NUM_STAGES):
        builder = builder.pipe(op, **options)
    return builder.add_sink(pipeline_noop.SINK).build(num_threads=pipeline_noop.NUM_THREADS)


def _builder() -> Any:  # noqa: ANN401 - its type changes with every stage
    return PipelineBuilder()


def _run(builder: Any) -> Iterator[Batch]:  # noqa: ANN401 - as above
    """Yield the output of the pipeline on 2 threads."""
    pipeline = builder.add_sink(2).build(num_threads=2)
    with pipeline.auto_stop():
        yield from pipeline


def _readings(_work: readings.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return SPDL's pipeline without its statistics, and with a report each second."""
    output: list[str] = []
    log, handler = logging.getLogger("spdl.pipeline"), Texts(output)
    scope.callback(log.setLevel, log.level)
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    scope.callback(log.removeHandler, handler)

    def timed(repeats: int, **options: Any) -> Measurement:  # noqa: ANN401 - SPDL's own
        elements = range(32 * READ * repeats)
        mapped = _builder().add_source(elements).pipe(readings.add_one, output_order="input")
        pipeline = mapped.aggregate(32).pipe(np.array).add_sink(2).build(num_threads=1, **options)
        started = time.perf_counter()
        with pipeline.auto_stop():
            for _ in pipeline:
                pass
        return Measurement(READ * repeats, time.perf_counter() - started)

    alone = "SPDL, 1 thread"
    without = partial(timed, queue_class=AsyncQueue, task_hook_factory=_no_hooks)
    reported = partial(timed, report_stats_interval=1)
    return (
        readings.contestant(alone, "rival", without),
        readings.tool(f"{alone}, report_stats_interval=1", reported, alone, output),
    )


def _no_hooks(_stage: str) -> list[Any]:
    """Return the hooks of a stage: none, in place of those that take times."""
    return []


class Texts(logging.Handler):
    """Adds the messages of a log to a list."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        """Add a message."""
        self._texts.append(record.getMessage())


def _import(work: import_time.Work, _: ExitStack) -> tuple[Contestant, ...]:
    return (import_time.importing(work, "import spdl.pipeline", "rival"),)


def _transport(work: transport.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    return (
        *transport.carried(work, scope, transport.Way("SPDL, ring buffer", "rival", partial(_open_arena, _ring))),
        *transport.carried(work, scope, transport.Way("SPDL, segment pool", "rival", partial(_open_arena, _pool))),
    )


def _ring(num_bytes: int) -> object:
    return SharedMemoryRingBuffer(IN_FLIGHT * (num_bytes + SLACK_BYTES))


def _pool(num_bytes: int) -> object:
    return SharedMemorySegmentPool(num_bytes + SLACK_BYTES, IN_FLIGHT)


class Messages:
    """The iterable of a subprocess: a requested number of messages, then their cost."""

    def __init__(self, commands: Connection, num_bytes: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # this is called in the subprocess; only the parent handles Ctrl-C
        self._commands = commands
        self._message = first_message(num_bytes)

    def __iter__(self) -> Iterator[Message]:
        count: int = self._commands.recv()
        before = used()
        for number in range(count):
            yield numbered(self._message, number)
        self._commands.send(since(before))


class ArenaCarrier:
    """Owns a subprocess that sends messages through an arena.

    When the arena is freed, Python's resource tracker prints a KeyError for each of its segments: the subprocess, which
    shares that tracker, removed them from its list when it attached them (SPDL 0.8).
    """

    def __init__(self, arena: object, num_bytes: int) -> None:
        self._commands, theirs = multiprocessing.Pipe()
        self._usage = Usage(0, 0)
        self._messages: Iterable[Message] | None = iterate_in_subprocess(
            partial(Messages, theirs, num_bytes), buffer_size=IN_FLIGHT, mp_context="spawn", arena=arena
        )
        theirs.close()

    def messages(self, count: int) -> Iterator[Message]:
        """Make the subprocess send `count` messages, and yield them; drop each before you take the next."""
        assert self._messages is not None, "the carrier is closed"
        self._commands.send(count)
        yield from self._messages
        self._usage = self._commands.recv()

    def sender_usage(self) -> Usage:
        """Return the resources that the subprocess used in the last round."""
        return self._usage

    def close(self) -> None:
        """End the subprocess, which ends when the iterable is dropped."""
        self._messages = None
        self._commands.close()


def _open_arena(make_arena: Callable[[int], object], scope: ExitStack, num_bytes: int) -> ArenaCarrier:
    default = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("spawn", force=True)  # arenas take their locks from the default context
    try:
        arena = make_arena(num_bytes)
    finally:
        multiprocessing.set_start_method(default, force=True)
    carrier = ArenaCarrier(arena, num_bytes)
    scope.callback(carrier.close)
    return carrier


CONTESTANTS: dict[str, Contestants] = {
    "tiny": _tiny,
    "tokens": _tokens,
    "tokens-as-int32": _tokens_as_int32,
    "images": _images,
    "import": _import,
    "transport": _transport,
    "pipeline-noop": _pipeline_noop,
    "pipeline-waiting": _pipeline_waiting,
    "readings": _readings,
}
