"""The stage where the flow of items parts: a function chooses the path of each."""

import asyncio
from collections.abc import Callable, Sequence

from penstock._caught import Caught
from penstock.errors import UsageError
from penstock.pipeline._channels._channel import Channel, Output
from penstock.pipeline._failures import Tolerance, shortened
from penstock.pipeline._statistics._probe import Probe


class Router:
    """Puts each item into the beginning of the path that a function chooses. It runs on the loop itself."""

    def __init__(
        self, name: str, router: Callable[[object], object], paths: Sequence[Output], tolerance: Tolerance
    ) -> None:
        self._name = name
        self._router = router
        self._paths = paths
        self._tolerance = tolerance

    async def run(self, source: Channel, probe: Probe | None) -> None:
        """Work until the input ends."""
        while True:
            while items := await source.take(1):
                await self._route(items[0], source.pace, probe)
            if not source.next_pass():
                break
            async with asyncio.TaskGroup() as paths:  # an empty path's end is that of all the others, too
                for each in self._paths:
                    paths.create_task(each.end_pass())

    async def _route(self, item: object, pace: float, probe: Probe | None) -> None:
        self._tolerance.items += 1
        path, error = self._chosen(item)
        if probe is not None:
            probe.done(int(error is None), int(error is not None), 0.0)
        if error is not None:
            self._tolerance.judge(self._name, item, error)
        elif path is not None:
            path.pace = pace
            if not path.offer(item):
                await path.put(item)

    def _chosen(self, item: object) -> tuple[Output | None, BaseException | None]:
        number: object = None
        with Caught() as caught:
            number = self._router(item)
        if caught.error is not None:
            return None, caught.error
        if isinstance(number, int) and 0 <= number < len(self._paths):
            return self._paths[number], None
        last = len(self._paths) - 1
        return None, UsageError(
            f"a router returns the number of a path, an int from 0 to {last}; got {number!r:.200} for "
            f"{shortened(item)}. Return such a number, or add a path"
        )
