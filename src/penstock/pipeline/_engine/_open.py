"""From a described pipeline to the nodes that run it: a stage for each step, a channel between each two."""

import concurrent.futures
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Any, Protocol, assert_never, cast

from penstock._caught import Caught
from penstock.errors import PipelineFailure
from penstock.pipeline._channels._branching import Fork, Inlet, Junction, Turns
from penstock.pipeline._channels._channel import Channel, Output
from penstock.pipeline._channels._outlet import Outlet
from penstock.pipeline._config import Merge, PipelineConfig, prefix_inside, stage_names
from penstock.pipeline._engine._probes import Probes
from penstock.pipeline._engine._resources import Resources
from penstock.pipeline._failures import Tolerance, source_failure
from penstock.pipeline._items import DroppedItem
from penstock.pipeline._operations._async_stage import AsyncGeneratorStage, AsyncStage
from penstock.pipeline._operations._executor_stage import ExecutorStage, Remote
from penstock.pipeline._operations._folding import AggregateStage
from penstock.pipeline._operations._pulling import DisaggregateStage, GeneratorStage, Source
from penstock.pipeline._operations._router import AsyncRouter, Router
from penstock.pipeline._operations._skipping import skipping_none
from penstock.pipeline._operations._stage import Site, Stage
from penstock.pipeline._operations._sync_stage import SyncStage
from penstock.pipeline._operations._threads import PoolThreads, Starts, Threads
from penstock.pipeline._ops import Item, kind_of
from penstock.pipeline._stages import Aggregate, Disaggregate, PathVariants, Pipe, ThreadExecutor
from penstock.pipeline._stages import Stage as Step


class End(Protocol):
    """What is told that nothing comes any more."""

    def end(self, failure: PipelineFailure | None) -> None:
        """Say so, and why."""


@dataclass(slots=True)
class Node:
    """Something that runs as a task of its own.

    Attributes:
        name: for the task.
        run: what runs; what it raises ends the pipeline.
        failure: tells why its input ended.
        ends: what is told when it ends.
        above: what it takes items from, directly or not; that is cancelled when it ends.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    failure: Callable[[], PipelineFailure | None]
    ends: Sequence[End]
    above: "list[Node]" = field(default_factory=list)


class Opening:
    """Makes the nodes of one run."""

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
        self._tolerance = Tolerance(max_failures, drop, is_shared=True)  # of all stages that have none of their own
        self._outlet = outlet
        self.nodes: list[Node] = []

    def whole(self, config: PipelineConfig) -> list[Node]:
        """Return the nodes of a pipeline that isn't part of another; its outlet judges the rate of all at the end.

        Raises:
            PipelineFailure: a stage can't be opened.
        """
        self._outlet.judge = self._tolerance.verdict
        return self.pipeline(config, self._outlet)

    def pipeline(self, config: PipelineConfig, output: Output, place: str = "") -> list[Node]:
        """Return the nodes of a pipeline that puts its items into `output`, in the order of the flow."""
        begun = len(self.nodes)
        channels = [_channel_before(step) for step in config.pipes]
        outputs: list[Output] = [*channels, output]
        if isinstance(config.source, Merge):
            self._merge(config.source, outputs[0], place)
        else:
            name = f"{place}source"
            probe = self._probes.probe(name, "source", 1)
            threads = self._resources.source_threads(name)
            source = Source(name, config.source, outputs[0], threads, self._outlet.wait_for_reader, probe=probe)
            self._add(name, source.run, _no_failure, [outputs[0]], [])
        self._steps(config.pipes, channels, outputs[1:], place, self.nodes[begun:])
        return self.nodes[begun:]

    def _merge(self, merge: Merge, output: Output, place: str) -> None:
        name = f"{place}merge"
        channels = [Channel(max_items=each.sink.buffer_size, max_bytes=each.sink.max_bytes) for each in merge.pipelines]
        above: list[list[Node]] = []
        for number, (config, channel) in enumerate(zip(merge.pipelines, channels, strict=True)):
            above.append(self.pipeline(config, channel, place + prefix_inside("merge", number)))
        if merge.order == "turns":
            turns = Turns(channels, output)
            self._add(name, turns.run, turns.failure, [output], [node for nodes in above for node in nodes])
            return
        junction = Junction(output, len(channels))
        for channel, nodes in zip(channels, above, strict=True):
            inlet = Inlet(output, junction)
            forward = Turns([channel], inlet)
            self._add(name, forward.run, forward.failure, [inlet], nodes)

    def _steps(
        self, steps: Sequence[Step], inputs: Sequence[Channel], outputs: Sequence[Output], place: str, above: list[Node]
    ) -> None:
        before: Stage | None = None
        names = stage_names(tuple(steps))
        for name, step, channel, output in zip(names, steps, inputs, outputs, strict=True):
            full = place + name
            if isinstance(step, PathVariants):
                stage, above = self._paths(full, step, channel, output, above)
            else:
                stage = self._stage(step, self._site(step, full, channel, output))
                above = [*above, self._add(full, stage.run, partial(_failure_of, channel), [output], above)]
            if isinstance(before, SyncStage) and isinstance(stage, SyncStage) and stage.threads is before.threads:
                before.following = stage
            before = None if isinstance(step, PathVariants) else stage

    def _paths(
        self, name: str, step: PathVariants, channel: Channel, output: Output, above: list[Node]
    ) -> tuple[Stage, list[Node]]:
        junction = Junction(output, len(step.paths))
        inputs = [[_channel_before(each) for each in path] for path in step.paths]
        outputs: list[list[Output]] = [[*channels, Inlet(output, junction)] for channels in inputs]
        fork = Fork([each[0] for each in outputs])
        stage = self._router(name, step, channel, fork)
        begun = len(self.nodes)
        node = self._add(name, stage.run, partial(_failure_of, channel), [fork], above)
        for number, path in enumerate(step.paths):
            self._steps(path, inputs[number], outputs[number][1:], name + prefix_inside("", number), [*above, node])
        return stage, [*above, *self.nodes[begun:]]

    def _router(self, name: str, step: PathVariants, channel: Channel, fork: Fork) -> Stage:
        router: Callable[[Any], Any] = step.router
        awaited = kind_of(router) == "async"
        probe = self._probes.probe(name, "router", 1, on_threads=not awaited)
        site = Site(name, 1, channel, fork, self._tolerance, probe)
        if awaited:
            return AsyncStage(site, AsyncRouter(router, len(step.paths)), ordered=True)
        return SyncStage(site, Router(router, len(step.paths)), self._resources.threads, ordered=True)

    def _stage(self, step: Pipe | Aggregate | Disaggregate, site: Site) -> Stage:
        match step:
            case Aggregate():
                return AggregateStage(site, step)
            case Disaggregate():
                return DisaggregateStage(site, self._resources.threads)
            case Pipe():
                return self._pipe(step, site)
            case _:
                assert_never(step)

    def _pipe(self, pipe: Pipe, site: Site) -> Stage:
        ordered = pipe.output_order == "input"
        op = _op_of(pipe)
        threads = self._threads_of(pipe, site.name)
        if threads is None:
            remote = self._remote(pipe, site.name)
            return ExecutorStage(site, op, remote, ordered=ordered, flatten=pipe.kind == "generator")
        match pipe.kind:
            case "async":
                return AsyncStage(site, op, ordered=ordered)
            case "async generator":
                return AsyncGeneratorStage(site, op)
            case "generator":
                return GeneratorStage(site, op, threads, ordered=ordered)
            case "sync" | "lookup":
                assert isinstance(threads, Threads)
                return SyncStage(site, op, threads, ordered=ordered)
            case _:
                assert_never(pipe.kind)

    def _threads_of(self, pipe: Pipe, name: str) -> Starts | None:
        """Return the threads that a stage's calls are started on; None for an executor that is sent chunks."""
        if pipe.executor is None:
            return self._resources.threads
        if isinstance(pipe.executor, ThreadExecutor):
            return self._resources.pool_threads(pipe.executor, name)
        if pipe.kind == "generator" and _is_of_threads(pipe.executor):
            return PoolThreads(cast("concurrent.futures.Executor", pipe.executor))
        return None

    def _remote(self, pipe: Pipe, name: str) -> Remote:
        with Caught() as caught:
            return self._resources.remote(pipe, name)
        raise source_failure(name, caught.taken())

    def _site(self, step: Pipe | Aggregate | Disaggregate, name: str, channel: Channel, output: Output) -> Site:
        concurrency = step.concurrency if isinstance(step, Pipe) else 1
        kind = step.kind if isinstance(step, Pipe) else type(step).__name__.lower()
        on_threads = isinstance(step, Pipe) and step.executor is None and kind in {"sync", "lookup", "generator"}
        probe = self._probes.probe(name, kind, concurrency, on_threads=on_threads)
        return Site(name, concurrency, channel, output, self._tolerance_of(step), probe)

    def _tolerance_of(self, step: Step) -> Tolerance:
        if isinstance(step, Pipe) and step.max_failures is not None:
            return Tolerance(step.max_failures, self._drop)
        return self._tolerance

    def _add(
        self,
        name: str,
        run: Callable[[], Awaitable[None]],
        failure: Callable[[], PipelineFailure | None],
        ends: Sequence[End],
        above: list[Node],
    ) -> Node:
        node = Node(name, run, failure, ends, above)
        self.nodes.append(node)
        return node


def _op_of(pipe: Pipe) -> Callable[[Item], Item]:
    """Return what is called for an item."""
    op = cast("Any", pipe.op)
    if pipe.kind == "lookup":
        op = op.__getitem__
    return skipping_none(op, pipe.kind) if pipe.skip_none else op


def _is_of_threads(executor: object) -> bool:
    """Return whether an executor calls functions in this interpreter, so that a generator can be pulled in steps."""
    others: Any = getattr(concurrent.futures, "InterpreterPoolExecutor", ())  # its workers are threads, too
    return isinstance(executor, concurrent.futures.ThreadPoolExecutor) and not isinstance(executor, others)


def _channel_before(step: Step) -> Channel:
    if isinstance(step, Pipe):
        return Channel(max_items=step.max_items, max_bytes=step.max_bytes)
    return Channel()


def _failure_of(channel: Channel) -> PipelineFailure | None:
    return channel.failure


def _no_failure() -> None:
    return None
