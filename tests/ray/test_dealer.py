"""Spans that are late are delivered once, and those of lost processes are given out again, as the loss requires."""

import importlib
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock._os import Bell
from penstock._pickles import Part
from penstock._readings import Readings

ray: Any = pytest.importorskip("ray")
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
    ready = count = 2
    is_shared = False

    def __init__(self) -> None:
        self.team: Any = self
        self.recorder = self
        self.readings = Readings([])
        self.members = [team.Member(number, None) for number in range(2)]
        self.calls: deque[tuple[Numbers, Future[Any]]] = deque()
        self.given: list[tuple[int, Numbers]] = []  # with the numbers of the processes
        self.careful: list[Numbers] = []

    def do_nothing(self, *_: object) -> None:
        """Ignore what only real processes need."""

    def name(self, work: Numbers, /) -> str:
        """Return a name."""
        return repr(work)

    listen = unlisten = repair = check = observe = step = do_nothing

    def lose(self, member: Any) -> bool:
        """Replace the process."""
        self.members[member.number] = team.Member(member.number, None)
        return True

    def give_back(self, member: Any, *, has_answered: bool = True) -> None:
        """Let the process have other work."""
        del has_answered
        member.spans = 0

    def take(
        self,
        number: int | None = None,
        *,
        besides: Collection[Any] = (),
        late: Collection[Any] = (),
        is_idle: bool = False,
    ) -> Any:
        """Return an idle process, or one that does not have the span."""
        del number, late, is_idle
        free = [member for member in self.members if member.spans == 0 and member not in besides]
        if not free:
            return None
        free[0].spans = 1
        return free[0]

    def call(self, member: Any, work: Numbers, /, *, with_care: bool) -> "Future[Any]":
        """Note the work."""
        self.given.append((member.number, work))
        self.careful += [work] * with_care
        self.calls.append((work, Future()))
        return self.calls[-1][1]

    def end(self) -> None:
        """End all work, at once."""
        for work, result in self.calls:
            result.set_result(
                worker.Computed((Part(0, np.zeros(8, np.uint8)),), work.steps, 0.001, "host", is_whole=True)
            )


HOST = "The actor died because its node has died."
PROCESS = "The actor is dead because its worker process has died."


@pytest.mark.parametrize(
    ("losses", "given", "careful"),
    [
        ([HOST], [Numbers(0, 4)], False),
        ([HOST, HOST, HOST], [Numbers(0, 1), Numbers(1, 1)], False),
        ([PROCESS], [Numbers(0, 1), Numbers(1, 1)], False),
        ([HOST, PROCESS], [Numbers(0, 1), Numbers(1, 1)], False),
        ([PROCESS, PROCESS], [Numbers(0, 1), Numbers(1, 1)], True),
    ],
)
def test_work_of_lost_hosts_needs_no_care(losses: list[str], given: list[Numbers], *, careful: bool) -> None:
    """Work that was lost with hosts is given out without care, first as it is; that of processes part by part."""
    processes = Processes()
    learned = dealing.Learned(4, is_shared=False)
    learned.size = 4
    dealer = dealing.Dealer(processes, processes, [Numbers(0, 4)], learned=learned, bell=Bell())
    assert not dealer.is_ready()
    for text in losses:
        (_, lost), *others = processes.calls
        processes.calls = deque(others)
        lost.set_exception(ray.exceptions.RayActorError(error_msg=text))
        assert not dealer.is_ready()
        processes.calls = deque(sorted(processes.calls, key=lambda call: call[0]))
    assert [work for work, _ in processes.calls] == given
    assert processes.careful == given[:1] * careful


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


def test_an_event_loop_is_woken_for_late_work(set_constant: Callable[[str, object], None]) -> None:
    """The bell that an event loop waits for rings when a span is late; then another process gets it."""
    set_constant("PATIENCE_SECONDS", 0.05)  # then the first span is late
    processes, bell = Processes(), Bell()
    learned = dealing.Learned(1, is_shared=False)
    dealer = dealing.Dealer(processes, processes, [Numbers(0, 1)], learned=learned, bell=bell)
    while len(processes.calls) < 2:
        assert not dealer.is_ready()
        dealer.ring_when_late()
        assert bell.wait(60.0)
    assert processes.given == [(0, Numbers(0, 1)), (1, Numbers(0, 1))]


class SlowClock:
    """A clock by which alarms ring early."""

    perf_counter = staticmethod(time.perf_counter)

    def monotonic(self) -> float:
        """Return a time that passes at half the speed."""
        return time.monotonic() / 2


def test_an_event_loop_is_woken_again_after_an_early_alarm(set_constant: Callable[[str, object], None]) -> None:
    """An alarm that rings a moment before a span is late is followed by another one."""
    set_constant("PATIENCE_SECONDS", 0.05)
    processes, bell = Processes(), Bell()
    learned = dealing.Learned(1, is_shared=False)
    dealer = dealing.Dealer(processes, processes, [Numbers(0, 1)], learned=learned, bell=bell)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dealing, "time", SlowClock())
        while len(processes.calls) < 2:
            assert not dealer.is_ready()
            dealer.ring_when_late()
            assert bell.wait(10.0)
    dealer.close()


def test_without_processes_the_caller_computes(set_constant: Callable[[str, object], None]) -> None:
    """When no process was ready for long, an event loop is woken; the caller then computes all spans, without waits."""
    set_constant("PATIENCE_SECONDS", 0.05)
    processes, bell = Processes(), Bell()
    processes.ready, processes.members = 0, []
    learned = dealing.Learned(1, is_shared=False)
    dealer = dealing.Dealer(processes, processes, [Numbers(0, 3)], learned=learned, bell=bell)
    while not dealer.is_ready():
        dealer.ring_when_late()
        assert bell.wait(60.0)
    for number in range(3):
        assert dealer.is_ready()
        span = dealer.next()
        assert (span.work, span.is_done) == (Numbers(number, 1), False)
    assert dealer.next() is None


def test_late_work_goes_to_a_host_that_is_late_with_nothing(set_constant: Callable[[str, object], None]) -> None:
    """While two of three hosts are late, each with other work, the third one gets it, even if it is busier."""
    set_constant("PATIENCE_SECONDS", 0.0)  # first spans are late at once
    processes = Processes()
    processes.team = team.Team(0, {"num_cpus": 0})
    members = {number: team.Member(number, None) for number in range(3)}
    for number, member in members.items():
        member.pid, member.node = 1, f"host {number}"
    members[2].spans = 2
    processes.team.__dict__["_members"] = members
    learned = dealing.Learned(1, is_shared=False)
    dealer = dealing.Dealer(processes, processes, [Numbers(0, 2)], learned=learned, bell=Bell())
    assert not dealer.is_ready()
    assert processes.given == [(0, Numbers(0, 1)), (1, Numbers(1, 1))]
    assert not dealer.is_ready()
    assert processes.given[2:] == [(2, Numbers(0, 1)), (0, Numbers(1, 1))]


def test_only_an_idle_process_takes_the_span_of_another_one() -> None:
    """A process of a shared pool that has a span takes no span that another one may have for other programs."""
    made: Any = team.Team(0, {"num_cpus": 0})
    chosen, other = (team.Member(number, None) for number in range(2))
    made.__dict__["_members"] = {0: chosen, 1: other}
    chosen.pid = other.pid = 1
    chosen.spans, other.spans = 2, 1
    assert made.take(0) is None
    assert made.take(is_idle=True) is None
    other.spans = 0
    assert made.take(is_idle=True) is other
    assert made.take(1) is other
