"""One run of a pipeline: the tasks and channels made of its description, and what ends them.

A described pipeline is a tree: a sequence of stages, in which a router holds further sequences (its paths), and a merge
holds whole pipelines. A run is a flat list of `StageTask`s, with a channel before each stage, so that each task knows
only its input and its outputs:

    described                  run

    source                     source ─► channel
    decode                     channel ─► decode ─► channel
    router, two paths          channel ─► router ─► PathSwitch
      [0]: resize, crop        PathSwitch ─► channel ─► resize ─► channel ─► crop ─► JoinInput
      [1]: no stage            PathSwitch ─► JoinInput
    sink                       both JoinInputs ─► outlet

`RunBuilder` computes three facts from the position of a stage in the tree:

  - its name with its prefix, as in `router[0]/resize`, since errors, statistics and threads use it;
  - the tasks upstream of it, which its end cancels: within a path these are the stages before it, the router, and
    everything before the router, but not the other paths, which continue to serve their items;
  - the next stage, if the two may be fused: both are plain functions or routers on the same threads, with no branch
    between them.

The channels of a sequence are made before its stages, since a stage gets its input and output when it is made. Each run
makes its own, so that no run can meet the leftovers of an earlier one; only threads and processes, which are expensive
to start, are kept in `Resources`. A stage whose executor can't be used ends the run with a `PipelineFailure`.

The problem of `run`: three things end a run, and they travel in different directions. When the items run out, the end
has to follow them down to the reader. When a stage fails, the items computed before it have to arrive first, and the
stages before it should stop at once, since no stage takes their items. When the user stops, everything should stop at
once.

The solution: downstream, a stage's end is the end of its outputs; it comes after all items, with the failure, if there
is one. Upstream, a task that ends cancels the tasks from which it took items. If it fails in one of several flows that
join, it cancels the other flows, too, once its failure has reached the join: nothing reads their items any more, and
they may have no end. A stop cancels all tasks.

Rejected: an `asyncio.TaskGroup` alone. At the first exception it cancels all tasks, also those that still carry the
items computed before the failure. So a task of the group never raises a failure; it passes it on as a value.

Guarantees:
  - A task that ends passes its failure, or none, to its outputs, and cancels the tasks that still run and whose items
    nothing needs any more.
  - `run` returns when none of its tasks is left, whether it ended, failed, or was cancelled at any await, or twice.
  - A stage's stop flag is set before its task is cancelled. A cancellation reaches a task once, and user code may
    swallow it; so each call of user code in the loop is followed by a look at the stop flag.
  - A CancelledError of a stage whose stop flag isn't set comes from user code. It is a failure, since otherwise a pass
    would look complete that isn't.
"""

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from traceback import clear_frames
from typing import Any, Protocol, assert_never, cast

from penstock._caught import Caught
from penstock._processes import GlobalSeeds
from penstock.errors import InternalError, PipelineFailure, WorkerError
from penstock.pipeline._channels import Channel, Join, JoinInput, Output, PathSwitch, RoundRobin
from penstock.pipeline._config import Merge, PipelineConfig, prefix_inside, stage_names
from penstock.pipeline._executor_stage import ExecutorStage, Remote
from penstock.pipeline._function_stages import (
    AggregateStage,
    AsyncGeneratorStage,
    AsyncRouter,
    AsyncStage,
    Router,
    SyncStage,
    skipping_none,
)
from penstock.pipeline._items import (
    DroppedItem,
    FailureLimit,
    clear_callers,
    stage_failure,
    summary_of,
    without_own_frames,
)
from penstock.pipeline._iterator_stages import DisaggregateStage, GeneratorStage, RunningSource
from penstock.pipeline._ops import Item, kind_of
from penstock.pipeline._outlet import Outlet
from penstock.pipeline._processes import Executors
from penstock.pipeline._running_stage import RunningStage, StageSetup
from penstock.pipeline._stages import Aggregate, Disaggregate, PathVariants, Pipe, Stage, ThreadExecutor
from penstock.pipeline._statistics import Probes
from penstock.pipeline._threads import AnyThreads, ExecutorThreads, StopFlag, Threads


class EndedOutput(Protocol):
    """An output that can be ended: a channel, the outlet, or a branch."""

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the end of all passes, with the failure that caused it, if any."""


@dataclass(slots=True)
class StageTask:
    """A stage, a source or a merge, which runs as a task of its own.

    Attributes:
        name: the name of the task.
        run: the coroutine function that runs; an exception that it raises ends the pipeline.
        input_failure: returns the failure that ended the input; None if there is none.
        outputs: the outputs that are ended when the task ends.
        stop: the stop flag of the stage.
        upstream: the tasks from which it takes items, directly or not; they are cancelled when it ends.
        beside: the joins of the flows that it belongs to, with the tasks of the other flows of each; these are
            cancelled when it ends, if its failure has broken the join.
        is_stopped: whether the task is cancelled, or about to be; otherwise a CancelledError comes from user code.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    input_failure: Callable[[], PipelineFailure | None]
    outputs: Sequence[EndedOutput]
    stop: StopFlag
    upstream: "list[StageTask]" = field(default_factory=list)
    beside: "list[tuple[Join, list[StageTask]]]" = field(default_factory=list)
    is_stopped: bool = False

    def request_stop(self) -> None:
        """Set the stop flag; call it before the task is cancelled, since user code may swallow the cancellation."""
        self.is_stopped = self.stop.is_set = True

    def unneeded(self) -> "list[StageTask]":
        """Return the tasks whose items nothing needs after the end of this one."""
        return [*self.upstream, *(task for join, tasks in self.beside if join.is_broken for task in tasks)]


class Resources:
    """Owns the threads and processes of a pipeline. Made, used and closed on its loop.

    Args:
        num_threads: how many threads plain functions run on.
        seeds: seeds of the global random generators in processes; None if no stage has an executor with processes.

    Attributes:
        threads: the threads for plain functions.
    """

    def __init__(self, num_threads: int, seeds: GlobalSeeds | None) -> None:
        self.threads = Threads(num_threads, "penstock-stage")
        self._sources: dict[str, Threads] = {}
        # Keyed by the executor's id. The value keeps the executor alive, so that no other object gets the id.
        self._threads_of_executors: dict[int, tuple[ThreadExecutor, Threads]] = {}
        self._executors = Executors(seeds)

    def remote(self, pipe: Pipe, name: str) -> Remote:
        """Return the connection of a stage to its executor."""
        assert pipe.executor is not None
        return self._executors.remote(pipe.executor, name, repeatable=pipe.repeatable)

    def executor_threads(self, executor: ThreadExecutor, name: str) -> Threads:
        """Return the threads of an executor, which all its stages share."""
        if id(executor) not in self._threads_of_executors:
            given = executor.initializer
            initializer = None if given is None else partial(given, *executor.initargs)
            threads = Threads(executor.max_workers, f"penstock-{name}", initializer)
            self._threads_of_executors[id(executor)] = executor, threads
        return self._threads_of_executors[id(executor)][1]

    def source_threads(self, name: str) -> Threads:
        """Return the thread of a source; it has its own, so that waiting for data occupies no thread of a function."""
        return self._sources.setdefault(name, Threads(1, f"penstock-{name}"))

    def interrupt(self) -> None:
        """End the processes, even in the middle of a call: their results are no longer needed."""
        self._executors.close()

    def close(self) -> None:
        """Let the threads end, and end the processes."""
        self._executors.close()
        for threads in self._all_threads():
            threads.close()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in one of the threads."""
        return any(threads.is_current for threads in self._all_threads())

    def join(self, timeout: float | None) -> None:
        """Wait until the threads have ended, for each at most `timeout` seconds."""
        for threads in self._all_threads():
            threads.join(timeout)

    def _all_threads(self) -> list[Threads]:
        sources, executors = list(self._sources.values()), list(self._threads_of_executors.values())  # from any thread
        return [self.threads, *sources, *(threads for _, threads in executors)]


class RunBuilder:
    """Makes the stage tasks of one run."""

    def __init__(
        self,
        resources: Resources,
        probes: Probes,
        max_failures: int | Fraction,
        drop: Callable[[DroppedItem], None],
        outlet: Outlet,
    ) -> None:
        self._resources = resources
        self._probes = probes
        self._drop = drop
        self._failure_limit = FailureLimit(
            max_failures, drop, is_shared=True
        )  # for stages without a limit of their own
        self._outlet = outlet
        self._tasks: list[StageTask] = []

    def build(self, config: PipelineConfig) -> list[StageTask]:
        """Return the tasks of a whole pipeline; at its end, the outlet checks the rate of failures of all stages.

        Raises:
            PipelineFailure: a stage can't be opened.
        """
        self._outlet.failure_at_end = self._failure_limit.failure_at_end
        return self._pipeline(config, self._outlet, "")

    def _pipeline(self, config: PipelineConfig, output: Output, prefix: str) -> list[StageTask]:
        """Return the tasks of a pipeline that puts its items into `output`, in the order of the flow."""
        begin = len(self._tasks)
        channels = [_channel_before(stage) for stage in config.pipes]
        outputs: list[Output] = [*channels, output]
        if isinstance(config.source, Merge):
            self._merge(config.source, outputs[0], prefix)
        else:
            name = f"{prefix}source"
            probe = self._probes.probe(name, "source", 1)
            threads = self._resources.source_threads(name)
            source = RunningSource(name, config.source, outputs[0], threads, self._outlet.wait_for_reader, probe=probe)
            self._add(name, source.run, _no_failure, [outputs[0]], source.stop, [])
        self._sequence(config.pipes, channels, outputs[1:], prefix, self._tasks[begin:])
        return self._tasks[begin:]

    def _merge(self, merge: Merge, output: Output, prefix: str) -> None:
        name = f"{prefix}merge"
        channels = [Channel(max_items=each.sink.buffer_size, max_bytes=each.sink.max_bytes) for each in merge.pipelines]
        upstream = [
            self._pipeline(config, channel, prefix + prefix_inside("merge", number))
            for number, (config, channel) in enumerate(zip(merge.pipelines, channels, strict=True))
        ]
        if merge.order == "turns":
            merged = RoundRobin(channels, output)
            tasks = [task for tasks in upstream for task in tasks]
            self._add(name, merged.run, merged.failure, [output], StopFlag(), tasks)
            return
        join = Join(output, len(channels))
        flows: list[list[StageTask]] = []
        for channel, tasks in zip(channels, upstream, strict=True):
            join_input = JoinInput(output, join)
            moved = RoundRobin([channel], join_input)
            task = self._add(name, moved.run, moved.failure, [join_input], StopFlag(), tasks)
            flows.append([*tasks, task])
        _join(join, flows)

    def _sequence(
        self,
        stages: Sequence[Stage],
        inputs: Sequence[Channel],
        outputs: Sequence[Output],
        prefix: str,
        upstream: list[StageTask],
    ) -> None:
        """Add the tasks of a sequence of stages: the stages of a pipeline, or of one path."""
        before: RunningStage | None = None
        names = stage_names(tuple(stages))
        for name, stage, channel, output in zip(names, stages, inputs, outputs, strict=True):
            full_name = prefix + name
            if isinstance(stage, PathVariants):
                running, upstream = self._paths(full_name, stage, channel, output, upstream)
            else:
                running = self._stage(stage, self._setup(stage, full_name, channel, output))
                failure = partial(_failure_of, channel)
                task = self._add(full_name, running.run, failure, [output], running.stop, upstream)
                upstream = [*upstream, task]
            if isinstance(before, SyncStage) and isinstance(running, SyncStage) and running.threads is before.threads:
                before.following = running
            before = None if isinstance(stage, PathVariants) else running

    def _paths(
        self, name: str, stage: PathVariants, channel: Channel, output: Output, upstream: list[StageTask]
    ) -> tuple[RunningStage, list[StageTask]]:
        """Return a router and the tasks upstream of the next stage, after adding those of the router and its paths."""
        join = Join(output, len(stage.paths))
        inputs = [[_channel_before(each) for each in path] for path in stage.paths]
        outputs: list[list[Output]] = [[*channels, JoinInput(output, join)] for channels in inputs]
        switch = PathSwitch([each[0] for each in outputs], join)
        router = self._router(name, stage, channel, switch)
        begin = len(self._tasks)
        task = self._add(name, router.run, partial(_failure_of, channel), [switch], router.stop, upstream)
        flows: list[list[StageTask]] = []
        for number, path in enumerate(stage.paths):
            prefix = name + prefix_inside("", number)
            first = len(self._tasks)
            self._sequence(path, inputs[number], outputs[number][1:], prefix, [*upstream, task])
            flows.append(self._tasks[first:])
        _join(join, flows)
        return router, [*upstream, *self._tasks[begin:]]

    def _router(self, name: str, stage: PathVariants, channel: Channel, switch: PathSwitch) -> RunningStage:
        router: Callable[[Any], Any] = stage.router
        is_async = kind_of(router) == "async"
        probe = self._probes.probe(name, "router", 1, on_threads=not is_async)
        setup = StageSetup(name, 1, channel, switch, self._failure_limit, probe)
        if is_async:
            return AsyncStage(setup, AsyncRouter(router, len(stage.paths)), ordered=True)
        return SyncStage(setup, Router(router, len(stage.paths)), self._resources.threads, ordered=True)

    def _stage(self, stage: Pipe | Aggregate | Disaggregate, setup: StageSetup) -> RunningStage:
        match stage:
            case Aggregate():
                return AggregateStage(setup, stage)
            case Disaggregate():
                return DisaggregateStage(setup, self._resources.threads)
            case Pipe():
                return self._pipe(stage, setup)
            case _:
                assert_never(stage)

    def _pipe(self, pipe: Pipe, setup: StageSetup) -> RunningStage:
        ordered = pipe.output_order == "input"
        op = _op_of(pipe)
        threads = self._threads_of(pipe, setup.name)
        if threads is None:
            remote = self._remote(pipe, setup.name)
            return ExecutorStage(setup, op, remote, ordered=ordered, flatten=pipe.kind == "generator")
        match pipe.kind:
            case "async":
                return AsyncStage(setup, op, ordered=ordered)
            case "async generator":
                return AsyncGeneratorStage(setup, op)
            case "generator":
                return GeneratorStage(setup, op, threads, ordered=ordered)
            case "sync" | "lookup":
                return SyncStage(setup, op, threads, ordered=ordered)
            case _:
                assert_never(pipe.kind)

    def _threads_of(self, pipe: Pipe, name: str) -> AnyThreads | None:
        """Return the threads on which a stage's calls start; None for an executor to which chunks are sent."""
        if pipe.executor is None:
            return self._resources.threads
        if isinstance(pipe.executor, ThreadExecutor):
            return self._resources.executor_threads(pipe.executor, name)
        if _runs_threads(pipe.executor):
            return ExecutorThreads(cast("concurrent.futures.Executor", pipe.executor))
        return None

    def _remote(self, pipe: Pipe, name: str) -> Remote:
        with Caught() as caught:
            return self._resources.remote(pipe, name)
        raise stage_failure(name, caught.taken())

    def _setup(self, stage: Pipe | Aggregate | Disaggregate, name: str, channel: Channel, output: Output) -> StageSetup:
        concurrency = stage.concurrency if isinstance(stage, Pipe) else 1
        kind = stage.kind if isinstance(stage, Pipe) else type(stage).__name__.lower()
        on_threads = isinstance(stage, Pipe) and stage.executor is None and kind in {"sync", "lookup", "generator"}
        probe = self._probes.probe(name, kind, concurrency, on_threads=on_threads)
        return StageSetup(name, concurrency, channel, output, self._failure_limit_of(stage), probe)

    def _failure_limit_of(self, stage: Stage) -> FailureLimit:
        if isinstance(stage, Pipe) and stage.max_failures is not None:
            return FailureLimit(stage.max_failures, self._drop)
        return self._failure_limit

    def _add(
        self,
        name: str,
        run: Callable[[], Awaitable[None]],
        input_failure: Callable[[], PipelineFailure | None],
        outputs: Sequence[EndedOutput],
        stop: StopFlag,
        upstream: list[StageTask],
    ) -> StageTask:
        task = StageTask(name, run, input_failure, outputs, stop, upstream)
        self._tasks.append(task)
        return task


def _join(join: Join, flows: Sequence[list[StageTask]]) -> None:
    """Note for each task of several flows the tasks of the other ones."""
    for flow in flows:
        others = [task for each in flows if each is not flow for task in each]
        for task in flow:
            task.beside.append((join, others))


def _op_of(pipe: Pipe) -> Callable[[Item], Item]:
    """Return the function that is called for an item."""
    op = cast("Any", pipe.op)
    if pipe.kind == "lookup":
        op = op.__getitem__
    return skipping_none(op, pipe.kind) if pipe.skip_none else op


def _runs_threads(executor: object) -> bool:
    """Return whether an executor calls functions in this interpreter, so that values can be read during a call."""
    others: Any = getattr(concurrent.futures, "InterpreterPoolExecutor", ())  # derives from ThreadPoolExecutor
    return isinstance(executor, concurrent.futures.ThreadPoolExecutor) and not isinstance(executor, others)


def _channel_before(stage: Stage) -> Channel:
    if isinstance(stage, Pipe):
        return Channel(max_items=stage.max_items, max_bytes=stage.max_bytes)
    return Channel()


def _failure_of(channel: Channel) -> PipelineFailure | None:
    return channel.failure


def _no_failure() -> None:
    return None


async def run(stages: Sequence[StageTask]) -> None:
    """Run all stages to their ends."""
    tasks: dict[int, asyncio.Task[PipelineFailure | None]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            for stage in stages:
                tasks[id(stage)] = group.create_task(_drive(stage, tasks), name=stage.name)
            if tasks:
                await _ended(stages, tasks)
    finally:
        for task in tasks.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                failure = task.result()
                clear_callers(None if failure is None else failure.__cause__)  # now, when all frames have ended
        tasks.clear()  # a task keeps the traceback of its cancellation, whose frames hold this dict: a reference cycle
        for stage in stages:  # a task cancelled before its first step hasn't ended them; a second end has no effect
            stage.beside.clear()  # the tasks of joined flows hold one another
            for output in stage.outputs:
                output.end(None)


async def _ended(stages: Sequence[StageTask], tasks: dict[int, asyncio.Task[PipelineFailure | None]]) -> None:
    """Wait until all tasks have ended.

    Raises:
        CancelledError: the run is cancelled. The stop flag of each stage is set before the group cancels its task.
    """
    try:
        await asyncio.wait(tasks.values())
    except asyncio.CancelledError:
        for stage in stages:
            stage.request_stop()
        raise


async def _drive(stage: StageTask, tasks: dict[int, asyncio.Task[PipelineFailure | None]]) -> PipelineFailure | None:
    """Run a stage to its end.

    Returns:
        The failure that it passes on; None if there is none.
    """
    failure: PipelineFailure | None = None
    with Caught() as caught:
        await stage.run()
        failure = stage.input_failure()
    is_cancelled = stage.is_stopped and isinstance(caught.error, asyncio.CancelledError)
    if caught.error is not None and not is_cancelled:
        failure = _failure_from(stage.name, caught.taken())
    for output in stage.outputs:
        output.end(failure)
    for other in stage.unneeded():
        other.request_stop()
        tasks[id(other)].cancel()
    if is_cancelled:
        clear_frames(caught.taken().__traceback__)  # a task group's frame holds the error, which holds the frame
    return failure


def _failure_from(stage: str, error: BaseException) -> PipelineFailure:
    """Return the failure of a stage whose task has ended with an exception."""
    if isinstance(error, PipelineFailure):
        return without_own_frames(error)
    if isinstance(error, WorkerError) or not isinstance(error, Exception):
        return stage_failure(stage, error)  # a thread can't be started, or user code, such as an observer's, ends it
    failure = PipelineFailure(f"stage {stage!r} failed in Penstock itself", stage=stage)
    failure.__cause__ = InternalError(summary_of(error))
    failure.__cause__.__cause__ = error
    return failure
