"""Branches: one flow of items divided over paths, and several flows joined, by arrival or in round-robin order."""

import asyncio
from collections.abc import Sequence
from typing import cast

from penstock.errors import PipelineFailure
from penstock.pipeline._channels._channel import Channel, Output, Waiters


class PathSwitch:
    """The entrances of several paths as one output, into which a router puts pairs of a path's number and an item.

    Items enter in the order in which they are put: one whose path is full holds back those after it.
    """

    def __init__(self, paths: Sequence[Output]) -> None:
        self._paths = paths

    def offer(self, item: object) -> bool:
        """Return whether there is room for an item in its path; if so, put it there."""
        number, routed = cast("tuple[int, object]", item)
        return self._paths[number].offer(routed)

    async def put(self, item: object) -> None:
        """Put an item into its path once there is room."""
        number, routed = cast("tuple[int, object]", item)
        await self._paths[number].put(routed)

    async def put_all(self, items: list[object]) -> None:
        """Put items into their paths, each once there is room."""
        for item in items:
            if not self.offer(item):
                await self.put(item)

    async def wait_for_room(self) -> int:
        """Return for how many items there is room in each path, once there is any in all."""
        return min([await each.wait_for_room() for each in self._paths])

    async def end_pass(self) -> None:
        """Mark the end of a pass in all paths at once, since an empty path waits here for the end of the others."""
        async with asyncio.TaskGroup() as paths:
            for each in self._paths:
                paths.create_task(each.end_pass())

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the end of all passes in all paths."""
        for each in self._paths:
            each.end(failure)

    @property
    def slowest_seconds(self) -> float:
        """The seconds per item of the slowest stage before this output."""
        return max(each.slowest_seconds for each in self._paths)

    @slowest_seconds.setter
    def slowest_seconds(self, seconds: float) -> None:
        for each in self._paths:
            each.slowest_seconds = seconds


class Join:
    """The end of several flows that share one output: a pass ends when all have ended it, and so does the output."""

    def __init__(self, output: Output, count: int) -> None:
        self._output = output
        self._count = count
        self._waiting = 0
        self._ended = 0
        self._passes = 0
        self._next_pass = Waiters()

    async def end_pass(self) -> None:
        """Mark the end of a pass for one flow, and wait until all flows have ended it."""
        self._waiting += 1
        if self._waiting == self._count:
            await self._output.end_pass()
            self._waiting = 0
            self._passes += 1
            self._next_pass.wake_all()
        else:
            this_pass = self._passes
            while this_pass == self._passes:
                await self._next_pass.wait()

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the end of one flow; a failure ends the output at once."""
        self._ended += 1
        if failure is not None or self._ended == self._count:
            self._output.end(failure)


class JoinInput:
    """The output of one of several joined flows: its items go into the shared output as they arrive."""

    def __init__(self, output: Output, join: Join) -> None:
        self._output = output
        self._join = join

    def offer(self, item: object) -> bool:
        """Return whether there is room for an item; if so, put it."""
        return self._output.offer(item)

    async def put(self, item: object) -> None:
        """Put an item once there is room."""
        await self._output.put(item)

    async def put_all(self, items: list[object]) -> None:
        """Put items, each once there is room."""
        await self._output.put_all(items)

    async def wait_for_room(self) -> int:
        """Return for how many items there is room, once there is any."""
        return await self._output.wait_for_room()

    async def end_pass(self) -> None:
        """Mark the end of a pass for this flow, and wait until all flows have ended it."""
        await self._join.end_pass()

    def end(self, failure: PipelineFailure | None) -> None:
        """Mark the end of this flow."""
        self._join.end(failure)

    @property
    def slowest_seconds(self) -> float:
        """The seconds per item of the slowest stage before this output."""
        return self._output.slowest_seconds

    @slowest_seconds.setter
    def slowest_seconds(self, seconds: float) -> None:
        self._output.slowest_seconds = seconds


class RoundRobin:
    """Moves items of several channels into an output, one of each in turn, leaving out those that have ended.

    With a single channel it just moves its items.
    """

    def __init__(self, inputs: Sequence[Channel], output: Output) -> None:
        self._inputs = inputs
        self._output = output
        self._failure: PipelineFailure | None = None

    async def run(self) -> None:
        """Move items until all inputs have ended, or one has failed."""
        while True:
            remaining = list(self._inputs)
            while remaining:
                for each in list(remaining):
                    if await self._move_one(each):
                        continue
                    if each.has_failed:  # reported in its turn, so that the items before it are the same in every run
                        self._failure = each.failure
                        return
                    remaining.remove(each)
            started = [each.start_next_pass() for each in self._inputs]
            if not all(started):
                break
            await self._output.end_pass()

    def failure(self) -> PipelineFailure | None:
        """Return the failure of an input, once its turn has come; None if there is none."""
        return self._failure

    async def _move_one(self, channel: Channel) -> bool:
        items = await channel.take(1)
        if items:
            self._output.slowest_seconds = max(self._output.slowest_seconds, channel.slowest_seconds)
            await self._output.put_all(items)
        return bool(items)
