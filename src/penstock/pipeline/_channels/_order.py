"""Results put back into the order of their items, although several lanes compute them at the same time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

from penstock.pipeline._channels._channel import Waiters

Deliver = Callable[[Any], Awaitable[None]]


class InOrder:
    """Numbers items as lanes take them, and delivers their results in the order of the numbers.

    A lane either passes a result to `deliver`, or waits for its turn, delivers by itself, and ends its turn.

    At most `window` results, and one for each lane, wait for an earlier one.
    """

    def __init__(self, window: int, deliver: Deliver) -> None:
        self._window = window
        self._deliver = deliver
        self._next = 0
        self._turn = 0  # the number of the result that is delivered next
        self._early: dict[int, object] = {}  # results that wait for an earlier one
        self._is_delivering = False
        self._waiting = Waiters()

    @classmethod
    def if_needed(cls, concurrency: int, deliver: Deliver, *, ordered: bool) -> Self | None:
        """Return one for a stage of so many lanes, or None if it needs no order, or keeps it with a single lane."""
        return cls(concurrency, deliver) if ordered and concurrency > 1 else None

    def next_number(self) -> int:
        """Return the number of the next item."""
        self._next += 1
        return self._next - 1

    async def deliver(self, number: int, result: object) -> None:
        """Deliver the result of an item, now or when all earlier ones are delivered.

        Raises:
            Exception: the exception of the delivery, in the lane that delivers.
        """
        self._early[number] = result
        if number == self._turn and not self._is_delivering:
            await self._deliver_ready()
        else:
            while number >= self._turn + self._window:
                await self._waiting.wait()

    async def wait_for_turn(self, number: int) -> None:
        """Wait until the item's result is the next one; `end_turn` ends that."""
        while number != self._turn:
            await self._waiting.wait()

    async def end_turn(self) -> None:
        """Give the turn to the next number."""
        self._turn += 1
        self._waiting.wake_all()
        await asyncio.sleep(0)

    async def _deliver_ready(self) -> None:
        self._is_delivering = True
        try:
            while self._turn in self._early:
                await self._deliver(self._early.pop(self._turn))
                self._turn += 1
                if self._waiting:
                    self._waiting.wake_all()
        finally:
            self._is_delivering = False
