"""From the description of a pipeline to the tasks and channels that run it.

A described pipeline is a tree: a sequence of stages, in which a router holds further sequences (its paths), and a merge
whole pipelines. A run is a flat list of `StageTask`s, with a channel before each stage, so that each task only knows
its input and its outputs:

    described                  run

    source                     source ─► channel
    decode                     channel ─► decode ─► channel
    router, two paths          channel ─► router ─► PathSwitch
      [0]: resize, crop        PathSwitch ─► channel ─► resize ─► channel ─► crop ─► JoinInput
      [1]: no stage            PathSwitch ─► JoinInput
    sink                       both JoinInputs ─► outlet

Three facts follow from the position of a stage in the tree, and are computed here, once:

  - its name with its prefix, as in `router[0]/resize`, since errors, statistics and threads use it;
  - the tasks upstream of it, which its end cancels: within a path these are the stages before it, the router, and
    everything before the router, but not the other paths, which continue to serve their items;
  - the next stage, if the two may be fused: both are plain functions or routers on the same threads, with no branch
    between them.

The channels of a sequence are made before its stages, since a stage gets its input and output when it is made. All of
this is made for each run, so that no run can meet the leftovers of an earlier one; only threads and processes, which
are expensive to start, are kept in `Resources`.

A stage that can't be opened, because its executor can't be used, ends the run with a `PipelineFailure`.
"""

import concurrent.futures
from collections.abc import Awaitable, Callable, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, assert_never, cast

from penstock._caught import Caught
from penstock.errors import PipelineFailure
from penstock.pipeline._channels import Channel, Join, JoinInput, Outlet, Output, PathSwitch, RoundRobin
from penstock.pipeline._config import Merge, PipelineConfig, prefix_inside, stage_names
from penstock.pipeline._engine._background import Resources
from penstock.pipeline._engine._probes import Probes
from penstock.pipeline._engine._run import EndedOutput, StageTask
from penstock.pipeline._failures import FailureLimit, stage_failure
from penstock.pipeline._items import DroppedItem
from penstock.pipeline._operations import (
    AggregateStage,
    AnyThreads,
    AsyncGeneratorStage,
    AsyncRouter,
    AsyncStage,
    DisaggregateStage,
    ExecutorStage,
    ExecutorThreads,
    GeneratorStage,
    Remote,
    Router,
    RunningSource,
    RunningStage,
    StageSetup,
    SyncStage,
    Threads,
    skipping_none,
)
from penstock.pipeline._ops import Item, kind_of
from penstock.pipeline._stages import Aggregate, Disaggregate, PathVariants, Pipe, Stage, ThreadExecutor


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
        self._failure_limit = FailureLimit(max_failures, drop, is_shared=True)  # of stages without one of their own
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
            self._add(name, source.run, _no_failure, [outputs[0]], [])
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
            self._add(name, merged.run, merged.failure, [output], [task for tasks in upstream for task in tasks])
            return
        join = Join(output, len(channels))
        for channel, tasks in zip(channels, upstream, strict=True):
            join_input = JoinInput(output, join)
            moved = RoundRobin([channel], join_input)
            self._add(name, moved.run, moved.failure, [join_input], tasks)

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
                task = self._add(full_name, running.run, partial(_failure_of, channel), [output], upstream)
                upstream = [*upstream, task]
            if isinstance(before, SyncStage) and isinstance(running, SyncStage) and running.threads is before.threads:
                before.following = running
            before = None if isinstance(stage, PathVariants) else running

    def _paths(
        self, name: str, stage: PathVariants, channel: Channel, output: Output, upstream: list[StageTask]
    ) -> tuple[RunningStage, list[StageTask]]:
        """Return a router and the tasks upstream of the next stage; those of the router and its paths are added."""
        join = Join(output, len(stage.paths))
        inputs = [[_channel_before(each) for each in path] for path in stage.paths]
        outputs: list[list[Output]] = [[*channels, JoinInput(output, join)] for channels in inputs]
        switch = PathSwitch([each[0] for each in outputs])
        router = self._router(name, stage, channel, switch)
        begin = len(self._tasks)
        task = self._add(name, router.run, partial(_failure_of, channel), [switch], upstream)
        for number, path in enumerate(stage.paths):
            prefix = name + prefix_inside("", number)
            self._sequence(path, inputs[number], outputs[number][1:], prefix, [*upstream, task])
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
                assert isinstance(threads, Threads)
                return SyncStage(setup, op, threads, ordered=ordered)
            case _:
                assert_never(pipe.kind)

    def _threads_of(self, pipe: Pipe, name: str) -> AnyThreads | None:
        """Return the threads on which a stage's calls start; None for an executor to which chunks are sent."""
        if pipe.executor is None:
            return self._resources.threads
        if isinstance(pipe.executor, ThreadExecutor):
            return self._resources.executor_threads(pipe.executor, name)
        if pipe.kind == "generator" and _runs_threads(pipe.executor):
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
        upstream: list[StageTask],
    ) -> StageTask:
        task = StageTask(name, run, input_failure, outputs, upstream)
        self._tasks.append(task)
        return task


def _op_of(pipe: Pipe) -> Callable[[Item], Item]:
    """Return the function that is called for an item."""
    op = cast("Any", pipe.op)
    if pipe.kind == "lookup":
        op = op.__getitem__
    return skipping_none(op, pipe.kind) if pipe.skip_none else op


def _runs_threads(executor: object) -> bool:
    """Return whether an executor calls functions in this interpreter, so that a generator can be pulled in steps."""
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
