"""Results in the order of the items that they were made from, though they are made at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.pipeline._channels._channel import Waiters

Deliver = Callable[[Any], Awaitable[None]]


class InOrder:
    """Gives numbers to items as they are taken, and passes their results on in that order.

    At most `window` results, and one for each lane, wait for an earlier one.
    """

    def __init__(self, window: int, deliver: Deliver) -> None:
        self._window = window
        self._deliver = deliver
        self._next = 0
        self._head = 0  # the number whose turn it is
        self._parked: dict[int, object] = {}
        self._passing = False
        self._waiting = Waiters()

    def number(self) -> int:
        """Return the next number."""
        self._next += 1
        return self._next - 1

    async def pass_on(self, number: int, result: object) -> None:
        """Deliver the result of a number, now or when all before it are delivered; raises what delivering raises."""
        self._parked[number] = result
        if number == self._head and not self._passing:
            await self._deliver_ready()
        else:
            while number >= self._head + self._window:
                await self._waiting.wait()

    async def turn(self, number: int) -> None:
        """Wait until it is a number's turn; `advance` ends it."""
        while number != self._head:
            await self._waiting.wait()

    async def advance(self) -> None:
        """End the turn of the number that has it."""
        self._head += 1
        self._waiting.wake_all()
        await asyncio.sleep(0)

    async def _deliver_ready(self) -> None:
        self._passing = True
        try:
            while self._head in self._parked:
                await self._deliver(self._parked.pop(self._head))
                self._head += 1
                if self._waiting:
                    self._waiting.wake_all()
        finally:
            self._passing = False
