"""Spans that late processes and others end at the same time are delivered once."""

import importlib
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from penstock._os import Bell

dealing: Any = importlib.import_module("penstock.ray._dealer")
team: Any = importlib.import_module("penstock.ray._team")
worker: Any = importlib.import_module("penstock.ray._worker")


class Numbers(NamedTuple):
    """Some numbers, as work."""

    start: int
    steps: int

    def part(self, start: int, steps: int, /) -> "Numbers":
        """Return some of them."""
        return Numbers(self.start + start, min(steps, self.steps - start))


class Processes:
    """Two processes that end their work when the test says so; it is their team, their owner, and the kind of work."""

    bytes_ahead = 1_000_000
    recorder = None
    ready = count = 2
    is_shared = False

    def __init__(self) -> None:
        self.team = self
        self.members = [team.Member(number, None) for number in range(2)]
        self.calls: deque[tuple[Numbers, Future[Any]]] = deque()

    def do_nothing(self, *_: object) -> None:
        """Ignore what only real processes need."""

    listen = unlisten = repair = check = give_back = do_nothing

    def take(self, number: int | None = None, *, besides: Collection[Any] = ()) -> Any:
        """Return an idle process, or one that is not late with the span."""
        del number
        free = [member for member in self.members if member.spans == 0 and member not in besides]
        if not free:
            return None
        free[0].spans = 1
        return free[0]

    def call(self, member: Any, work: Numbers, /, *, with_care: bool) -> "Future[Any]":
        """Note the work."""
        del member, with_care
        self.calls.append((work, Future()))
        return self.calls[-1][1]

    def end(self) -> None:
        """End all work, at once."""
        for work, result in self.calls:
            result.set_result(worker.Computed(np.zeros(8, np.uint8), work.steps, 0.001, "host", is_whole=True))


def test_two_processes_may_end_a_late_span_at_once(set_constant: Callable[[str, object], None]) -> None:
    """A span that was given to two processes, whose results are both there at the next look, is taken once."""
    set_constant("PATIENCE_SECONDS", 0.0)  # the first span is late at once
    processes = Processes()
    learned = dealing.Learned(1, is_shared=False)
    dealer = dealing.Dealer(processes, processes, [Numbers(0, 1)], learned=learned, bell=Bell())
    while len(processes.calls) < 2:
        assert not dealer.is_ready()
    processes.end()
    assert dealer.next().work == Numbers(0, 1)
    assert dealer.next() is None
