"""Where the flow of items parts into several paths, and where several flows become one."""

from collections.abc import Callable, Sequence

from penstock.errors import PipelineFailure, UsageError
from penstock.pipeline._engine._channel import Channel, Output, Waiters
from penstock.pipeline._engine._failures import Tolerance
from penstock.pipeline._statistics._probe import Probe


class Router:
    """Puts each item into the channel of the path that a function chooses."""

    def __init__(
        self,
        name: str,
        router: Callable[[object], int],
        source: Channel,
        paths: Sequence[Channel],
        tolerance: Tolerance,
    ) -> None:
        self._name = name
        self._router = router
        self._input = source
        self._paths = paths
        self._tolerance = tolerance
        self.probe: Probe | None = None

    async def run(self) -> None:
        """Work until the input ends."""
        while True:
            while items := await self._input.take(1):
                path = self._chosen(items[0])
                if path is not None and not path.offer(items[0]):
                    await path.put(items[0])
            if not self._input.next_pass():
                break
            for each in self._paths:
                await each.end_pass()

    def _chosen(self, item: object) -> Channel | None:
        self._tolerance.items += 1
        try:
            number = self._router(item)
            if not isinstance(number, int) or not 0 <= number < len(self._paths):
                raise UsageError(
                    f"the router must return the number of a path, 0 to {len(self._paths) - 1}; got {number!r}"
                )
        except BaseException as error:  # noqa: BLE001 - judged here
            if self.probe is not None:
                self.probe.done(1, 1, 0.0)
            self._tolerance.judge(self._name, item, error)
            return None
        if self.probe is not None:
            self.probe.done(1, 0, 0.0)
        path = self._paths[number]
        path.pace = self._input.pace
        return path


class Junction:
    """One channel that several stages put into as they come: a pass is over when all have said so, and so is the end."""

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
        self.offer = output.offer
        self.put = output.put
        self.put_all = output.put_all
        self.room = output.room
        self.end_pass = junction.end_pass
        self.end = junction.end

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

    async def run(self) -> None:
        """Work until the inputs have ended, or one has failed."""
        while True:
            left = list(self._inputs)
            while left:
                left = [each for each in left if await self._forward(each)]
                if self.failure is not None:
                    return
            if not all([each.next_pass() for each in self._inputs]):
                break
            await self._output.end_pass()

    @property
    def failure(self) -> PipelineFailure | None:
        """Why an input ended, if one has failed and all before that was put out."""
        return next((each.failure for each in self._inputs if each.failure is not None and not len(each)), None)

    async def _forward(self, channel: Channel) -> bool:
        items = await channel.take(1)
        if items:
            self._output.pace = max(self._output.pace, channel.pace)
            await self._output.put_all(items)
        return bool(items)
