"""Where one flow of items parts, and where several become one: as they come, or one of each in turn."""

import asyncio
from collections.abc import Sequence
from typing import cast

from penstock.errors import PipelineFailure
from penstock.pipeline._channels._channel import Channel, Output, Waiters


class Fork:
    """The beginnings of several paths as one output, which takes pairs of a path's number and the item for it.

    Items enter in the order in which they are put: one whose path is full holds back those behind it.
    """

    def __init__(self, paths: Sequence[Output]) -> None:
        self._paths = paths

    def offer(self, item: object) -> bool:
        """Return whether there was room for an item in its path; if so, it is put."""
        number, routed = cast("tuple[int, object]", item)
        return self._paths[number].offer(routed)

    async def put(self, item: object) -> None:
        """Put an item into its path when there is room."""
        number, routed = cast("tuple[int, object]", item)
        await self._paths[number].put(routed)

    async def put_all(self, items: list[object]) -> None:
        """Put items into their paths, as room comes."""
        for item in items:
            if not self.offer(item):
                await self.put(item)

    async def room(self) -> int:
        """Return for how many items there is room in each of the paths, once there is any."""
        return min([await each.room() for each in self._paths])

    async def end_pass(self) -> None:
        """Say in all paths at the same time that a pass is over: the end of an empty path is that of all the others."""
        async with asyncio.TaskGroup() as paths:
            for each in self._paths:
                paths.create_task(each.end_pass())

    def end(self, failure: PipelineFailure | None) -> None:
        """Say in all paths that nothing comes any more, and why."""
        for each in self._paths:
            each.end(failure)

    @property
    def pace(self) -> float:
        """Seconds an item of the slowest stage so far."""
        return max(each.pace for each in self._paths)

    @pace.setter
    def pace(self, pace: float) -> None:
        for each in self._paths:
            each.pace = pace


class Junction:
    """One output that several stages put into as they come: a pass is over when all have said so, and so is the end."""

    def __init__(self, output: Output, count: int) -> None:
        self._output = output
        self._count = count
        self._waiting = 0
        self._ended = 0
        self._passes = 0
        self._next = Waiters()

    async def end_pass(self) -> None:
        """Say that a pass is over for one; returns when it is for all."""
        self._waiting += 1
        if self._waiting == self._count:
            await self._output.end_pass()
            self._waiting = 0
            self._passes += 1
            self._next.wake_all()
        else:
            this_pass = self._passes
            while this_pass == self._passes:
                await self._next.wait()

    def end(self, failure: PipelineFailure | None) -> None:
        """Say that nothing comes from one any more; a failure ends everything."""
        self._ended += 1
        if failure is not None or self._ended == self._count:
            self._output.end(failure)


class Inlet:
    """One of the ways into a junction."""

    def __init__(self, output: Output, junction: Junction) -> None:
        self._output = output
        self._junction = junction

    def offer(self, item: object) -> bool:
        """Return whether there was room for an item; if so, it is put."""
        return self._output.offer(item)

    async def put(self, item: object) -> None:
        """Put an item when there is room."""
        await self._output.put(item)

    async def put_all(self, items: list[object]) -> None:
        """Put items, as room comes."""
        await self._output.put_all(items)

    async def room(self) -> int:
        """Return for how many items there is room, once there is any."""
        return await self._output.room()

    async def end_pass(self) -> None:
        """Say that a pass is over for this one; returns when it is for all."""
        await self._junction.end_pass()

    def end(self, failure: PipelineFailure | None) -> None:
        """Say that nothing comes from here any more, and why."""
        self._junction.end(failure)

    @property
    def pace(self) -> float:
        """Seconds an item of the slowest stage so far."""
        return self._output.pace

    @pace.setter
    def pace(self, pace: float) -> None:
        self._output.pace = pace


class Turns:
    """Puts one item of each of several channels in turn into another, going on without those that have ended."""

    def __init__(self, inputs: Sequence[Channel], output: Output) -> None:
        self._inputs = inputs
        self._output = output
        self._failure: PipelineFailure | None = None

    async def run(self) -> None:
        """Work until the inputs have ended, or one has failed."""
        while True:
            left = list(self._inputs)
            while left:
                for each in list(left):
                    if await self._forward(each):
                        continue
                    if each.is_broken:  # told in its turn, whenever it happened
                        self._failure = each.failure
                        return
                    left.remove(each)
            more = [each.next_pass() for each in self._inputs]
            if not all(more):
                break
            await self._output.end_pass()

    def failure(self) -> PipelineFailure | None:
        """Return why an input ended, if one has failed and its turn has come."""
        return self._failure

    async def _forward(self, channel: Channel) -> bool:
        items = await channel.take(1)
        if items:
            self._output.pace = max(self._output.pace, channel.pace)
            await self._output.put_all(items)
        return bool(items)
