"""The supervisor starts processes, limits their restarts, and leaves none behind."""

import gc
import itertools
import random  # noqa: TID251 - the generator that processes seed
import signal
import threading
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from penstock.errors import ClosedError
from tests.processes.helping import SECONDS, received, restart_delay, supervised, supervisor_of

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


def draw(pipe: "Connection[Any, Any]") -> None:
    """Send a random number, and end when the parent says so."""
    pipe.send(random.random())
    pipe.poll(None)


def exit_now(pipe: "Connection[Any, Any]", code: int) -> None:
    """End by itself."""
    pipe.close()
    raise SystemExit(code)


def test_seeds_follow_from_number_and_predecessors() -> None:
    """Two supervisors with the same seeds start processes that draw the same; each process draws something else."""
    drawn: list[list[float]] = []
    for _ in range(2):
        with supervised(draw) as supervisor:
            drawn.append([])
            for number in (0, 1, 0):
                child = supervisor.start("process", (), number=number)
                drawn[-1].append(received(child))
                supervisor.release(child, SECONDS)
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3


@pytest.mark.parametrize(
    ("policy", "killed", "allowed"),
    [
        ({"limit": 10, "failed_start": 5, "killed_start": 1}, False, 1),
        ({"limit": 3, "failed_start": 1, "killed_start": 1}, False, 2),
        ({"limit": 3, "failed_start": 1, "killed_start": 1, "first_must_start": True}, False, 0),
        ({"limit": 1, "failed_start": 1, "killed_start": 0}, True, 3),
        ({"limit": 1, "failed_start": 1, "killed_start": 0}, False, 0),
        ({"limit": 3, "failed_start": 2, "killed_start": 1}, True, 2),
    ],
)
def test_failed_starts_end_restarts(policy: dict[str, Any], *, killed: bool, allowed: int) -> None:
    """As many restarts are allowed as deaths before the start stay below the limit of points."""
    with supervised(draw if killed else exit_now, **policy) as supervisor:
        for attempt in range(min(allowed + 1, 3)):
            child = supervisor.start("process", () if killed else (4,))
            if killed:
                child.kill()
            assert child.wait(SECONDS)  # the first one, alone, also waits for its server
            death = supervisor.reap(child, started=False)
            assert death.error.exit_code == (-signal.SIGKILL if killed else 4)
            assert supervisor.reap(child, started=False) == death
            assert death.may_restart == (attempt < allowed)
            supervisor.release(child)


def test_the_death_of_a_fork_server_counts_as_a_kill() -> None:
    """A process that ends before it has started, since its server was killed, says nothing about the next one."""
    with supervised(draw, limit=1, failed_start=1, killed_start=0) as supervisor:
        child = supervisor.start("process", ())
        received(child)
        psutil.Process(psutil.Process(child.pid).ppid()).kill()
        psutil.Process(child.pid).kill()
        assert child.wait(SECONDS)
        death = supervisor.reap(child, started=False)
        assert death.error.exit_code is None
        assert death.may_restart


def test_a_start_forgives_the_failures_before() -> None:
    """Points are counted in a row: a process that starts sets them to 0."""
    with supervised(exit_now, limit=2, first_must_start=True) as supervisor:
        allowed: list[bool] = []
        for started in (True, False, True, False, False):
            child = supervisor.start("process", (4,))
            allowed.append(supervisor.reap(child, started=started).may_restart)
            supervisor.release(child)
        assert allowed == [True, True, True, True, False]


def test_no_process_starts_after_a_kill() -> None:
    """`kill` ends the processes that run, and `start` raises from then on; `close` may be repeated."""
    with supervised(draw) as supervisor:
        child, other = (supervisor.start("process", (), number=number) for number in range(2))
        received(child)
        supervisor.kill()
        assert supervisor.reap(child, started=True).error.exit_code == -signal.SIGKILL
        with pytest.raises(ClosedError):
            supervisor.start("process", ())
        supervisor.close()  # also what was never released
        assert not psutil.pid_exists(other.pid)
        supervisor.close()


def test_kill_ends_the_delay_of_a_restart() -> None:
    """A thread that waits to start a process again learns at once that none is started any more."""
    with supervised(exit_now, limit=100, prompt_restarts=0) as supervisor:
        for _ in range(5):
            child = supervisor.start("process", (4,))
            supervisor.reap(child, started=True, has_worked=False)
            supervisor.release(child)
        raised: list[BaseException] = []

        def start() -> None:
            try:
                supervisor.start("process", (4,))
            except ClosedError as error:
                raised.append(error)

        thread = threading.Thread(target=start)
        thread.start()
        supervisor.kill()
        thread.join(SECONDS)
        assert len(raised) == 1


def test_the_wait_for_another_process_grows() -> None:
    """The first are started at once; then the wait doubles for each, up to a bound."""
    waits = [restart_delay(fruitless, 3) for fruitless in range(2000)]
    later = [wait for wait in waits if wait]
    assert waits[:2] == [0.0, 0.0]
    assert all(following == min(2 * wait, max(waits)) for wait, following in itertools.pairwise(later))
    assert 1.0 < max(waits) < 60.0


class Owner:
    """An object that owns processes, and keeps no reference to itself."""

    def __init__(self) -> None:
        self.supervisor = supervisor_of(draw)
        self.supervisor.end_with_program(self.supervisor.close, self)


def test_processes_end_with_their_owner() -> None:
    """A supervisor that was given its owner ends the processes as soon as the owner is dropped."""
    owner = Owner()
    child = owner.supervisor.start("process", ())
    received(child)
    del owner
    gc.collect()
    assert not psutil.pid_exists(child.pid)
