"""How a function is applied to a chunk of items in a thread: item by item, through one step or several fused ones."""

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import NamedTuple

from penstock.pipeline._engine._threads import Call
from penstock.pipeline._items import SKIP

Op = Callable[[object], object]


class Failed(NamedTuple):
    """An item that a step failed on.

    Attributes:
        step: which of the steps that were applied, counted from 0.
        item: what it was given.
        error: what it raised.
    """

    step: int
    item: object
    error: BaseException


class Applied:
    """Steps applied to items, until they are through, one fails, the time is up, or a halt.

    Attributes:
        used: how many of the items are done with, the one that failed included.
        failed: the item that failed, which was the last.
        seconds: how long it took.
    """

    __slots__ = ("_budget", "_items", "_steps", "failed", "seconds", "used")

    def __init__(self, steps: tuple[Op, ...], items: list[object], budget: float) -> None:
        self._steps = steps
        self._items = items
        self._budget = budget
        self.used = 0
        self.failed: Failed | None = None
        self.seconds = 0.0

    def __call__(self, call: Call) -> None:
        """Apply the steps; values are those of the last one, without those that were skipped."""
        started = now = perf_counter()
        until = started + self._budget
        values, steps, halt = call.values, self._steps, call.halt
        used = 0
        for value in self._items:
            used += 1
            step = 0
            try:
                for op in steps:
                    value = op(value)  # noqa: PLW2901 - through the steps, and where one raises, what it was given
                    step += 1
                    if value is SKIP:
                        break
            except BaseException as error:  # noqa: BLE001 - judged by the stage
                self.failed = Failed(step, value, error)
                break
            if value is not SKIP:
                values.append(value)
                call.tell()
            now = perf_counter()
            if now > until or halt.on:
                break
        self.used = used
        self.seconds = max(now, perf_counter() if self.failed else now) - started


class Pulled:
    """Items pulled from an iterator: up to a number, until the time is up or a halt.

    Attributes:
        count: how many it gave.
        ended: whether it has ended.
        error: what it raised, but for its end.
        seconds: how long it took.
    """

    __slots__ = ("_budget", "_iterator", "_most", "count", "ended", "error", "seconds")

    def __init__(self, iterator: Iterator[object], most: int, budget: float) -> None:
        self._iterator = iterator
        self._most = most
        self._budget = budget
        self.count = 0
        self.ended = False
        self.error: BaseException | None = None
        self.seconds = 0.0

    def __call__(self, call: Call) -> None:
        """Pull; values are the items, without those that are SKIP."""
        started = now = perf_counter()
        until = started + self._budget
        values, halt, iterator = call.values, call.halt, self._iterator
        count = 0
        for _ in range(self._most):
            try:
                value = next(iterator)
            except StopIteration:
                self.ended = True
                break
            except BaseException as error:  # noqa: BLE001 - judged by the stage
                self.error = error
                break
            count += 1
            if value is not SKIP:
                values.append(value)
                call.tell()
            now = perf_counter()
            if now > until or halt.on:
                break
        self.count = count
        self.seconds = now - started
