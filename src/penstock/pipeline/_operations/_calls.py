"""The functions that a `ThreadCall` runs: applying a stage's functions to a chunk of items, and pulling an iterator."""

from collections.abc import Callable, Iterator
from itertools import islice
from time import perf_counter
from typing import NamedTuple

from penstock._caught import Caught
from penstock.pipeline._items import SKIP
from penstock.pipeline._operations._threads import ThreadCall

Op = Callable[[object], object]


class Failed(NamedTuple):
    """An item that a function failed on.

    Attributes:
        item: the function's argument.
        error: the exception that it raised.
        function: the number of the function, among those applied in one call, from 0. Default 0.
        is_fatal: whether the failure ends the pipeline whatever its limit is, since it is not the item's. Default
            False.
    """

    item: object
    error: BaseException
    function: int = 0
    is_fatal: bool = False


class Applied:
    """Functions applied to items one after the other, until all are done, one fails, the call is slow, or a stop.

    Attributes:
        tried: how many of the items were tried, including the one that failed.
        failed: the item that failed, which was the last one tried; None if none did.
        seconds: how long the call took.
    """

    __slots__ = ("_functions", "_items", "failed", "seconds", "tried")

    def __init__(self, functions: tuple[Op, ...], items: list[object]) -> None:
        self._functions = functions
        self._items = items
        self.tried = 0
        self.failed: Failed | None = None
        self.seconds = 0.0

    def __call__(self, call: ThreadCall) -> None:
        """Apply the functions; the call's values are the results of the last one that are not SKIP."""
        started = perf_counter()
        if len(self._functions) == 1:
            self._apply_one(call, self._functions[0])
        else:
            self._apply_all(call)
        self.seconds = perf_counter() - started

    def _apply_one(self, call: ThreadCall, op: Op) -> None:
        append, stop = call.values.append, call.stop
        item: object = None
        with Caught() as caught:
            for item in self._items:
                self.tried += 1
                value = op(item)
                if value is not SKIP:
                    append(value)
                if call.slow or stop.is_set:
                    break
        if caught.error is not None:
            self.failed = Failed(item, caught.error)

    def _apply_all(self, call: ThreadCall) -> None:
        append, stop, functions = call.values.append, call.stop, self._functions
        value: object = None  # the argument of the next function, and so that of one that raises
        number = 0
        with Caught() as caught:
            for item in self._items:
                self.tried += 1
                value, number = item, 0
                for op in functions:
                    value = op(value)
                    if value is SKIP:
                        break
                    number += 1
                else:
                    append(value)
                if call.slow or stop.is_set:
                    break
        if caught.error is not None:
            self.failed = Failed(value, caught.error, number)


class Pulled:
    """Items pulled from an iterator: up to a number of them, or until a stop.

    Attributes:
        count: how many items the iterator returned.
        ended: whether the iterator has ended.
        error: the exception that it raised; None if none.
        seconds: how long the call took.
    """

    __slots__ = ("_iterator", "_max_items", "count", "ended", "error", "seconds")

    def __init__(self, iterator: Iterator[object], max_items: int) -> None:
        self._iterator = iterator
        self._max_items = max_items
        self.count = 0
        self.ended = False
        self.error: BaseException | None = None
        self.seconds = 0.0

    def __call__(self, call: ThreadCall) -> None:
        """Pull the items; the call's values are those that are not SKIP."""
        started = perf_counter()
        append, stop = call.values.append, call.stop
        with Caught() as caught:
            for value in islice(self._iterator, self._max_items):
                self.count += 1
                if value is not SKIP:
                    append(value)
                    if call.slow:
                        call.notify()
                if stop.is_set:
                    break
            else:
                self.ended = self.count < self._max_items
        self.error = caught.error
        self.seconds = perf_counter() - started
