"""How a function is applied to a chunk of items in a thread: item by item, through one step or several fused ones."""

from collections.abc import Callable, Iterator
from itertools import islice
from time import perf_counter
from typing import NamedTuple

from penstock._caught import Caught
from penstock.pipeline._items import SKIP
from penstock.pipeline._operations._threads import Call

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
    """Steps applied to items, until they are through, one fails, the call turns out slow, or a halt.

    Attributes:
        used: how many of the items are done with, the one that failed included.
        failed: the item that failed, which was the last.
        seconds: how long it took.
    """

    __slots__ = ("_items", "_steps", "failed", "seconds", "used")

    def __init__(self, steps: tuple[Op, ...], items: list[object]) -> None:
        self._steps = steps
        self._items = items
        self.used = 0
        self.failed: Failed | None = None
        self.seconds = 0.0

    def __call__(self, call: Call) -> None:
        """Apply the steps; values are those of the last one, without those that were skipped."""
        started = perf_counter()
        if len(self._steps) == 1:
            self._apply_one(call, self._steps[0])
        else:
            self._apply_all(call)
        self.seconds = perf_counter() - started

    def _apply_one(self, call: Call, op: Op) -> None:
        append, halt = call.values.append, call.halt
        item: object = None
        with Caught() as caught:
            for item in self._items:
                self.used += 1
                value = op(item)
                if value is not SKIP:
                    append(value)
                if call.slow or halt.on:
                    break
        if caught.error is not None:
            self.failed = Failed(0, item, caught.error)

    def _apply_all(self, call: Call) -> None:
        append, halt, steps = call.values.append, call.halt, self._steps
        value: object = None  # through the steps, and where one raises, what it was given
        step = 0
        with Caught() as caught:
            for item in self._items:
                self.used += 1
                value, step = item, 0
                for op in steps:
                    value = op(value)
                    if value is SKIP:
                        break
                    step += 1
                else:
                    append(value)
                if call.slow or halt.on:
                    break
        if caught.error is not None:
            self.failed = Failed(step, value, caught.error)


class Pulled:
    """Items pulled from an iterator: up to a number, or until a halt.

    Attributes:
        count: how many it gave.
        ended: whether it has ended.
        error: what it raised, but for its end.
        seconds: how long it took.
    """

    __slots__ = ("_iterator", "_most", "count", "ended", "error", "seconds")

    def __init__(self, iterator: Iterator[object], most: int) -> None:
        self._iterator = iterator
        self._most = most
        self.count = 0
        self.ended = False
        self.error: BaseException | None = None
        self.seconds = 0.0

    def __call__(self, call: Call) -> None:
        """Pull; values are the items, without those that are SKIP."""
        started = perf_counter()
        append, halt = call.values.append, call.halt
        with Caught() as caught:
            for value in islice(self._iterator, self._most):
                self.count += 1
                if value is not SKIP:
                    append(value)
                    if call.slow:
                        call.tell()
                if halt.on:
                    break
            else:
                self.ended = self.count < self._most
        self.error = caught.error
        self.seconds = perf_counter() - started
