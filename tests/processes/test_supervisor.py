"""The supervisor starts processes, limits their restarts, and leaves none behind."""

import gc
import random  # noqa: TID251 - the generator that processes seed
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from penstock._processes import ChildProcess, GlobalSeeds, RestartPolicy, Starting, Supervisor
from penstock.errors import ClosedError
from tests.processes.helping import SECONDS, received

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

SEEDS = GlobalSeeds(1, 2, 3)


def draw(pipe: "Connection[Any, Any]") -> None:
    """Send a random number, and end when the parent says so."""
    pipe.send(random.random())
    pipe.poll(None)


def exit_now(pipe: "Connection[Any, Any]", code: int) -> None:
    """End by itself."""
    pipe.close()
    raise SystemExit(code)


@contextmanager
def supervised(target: Any = draw, policy: RestartPolicy | None = None) -> Generator[Supervisor]:
    """Own a supervisor."""
    supervisor = Supervisor(target, SEEDS.child, policy=policy or RestartPolicy(), starting=Starting())
    try:
        yield supervisor
    finally:
        supervisor.close()


def test_seeds_follow_from_number_and_predecessors() -> None:
    """Two supervisors with the same seeds start processes that draw the same; each process draws something else."""
    drawn: list[list[float]] = []
    for _ in range(2):
        with supervised() as supervisor:
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
        (RestartPolicy(limit=10, failed_start=5, killed_start=1), False, 1),
        (RestartPolicy(limit=3, failed_start=1, killed_start=1), False, 2),
        (RestartPolicy(limit=3, failed_start=1, killed_start=1, first_must_start=True), False, 0),
        (RestartPolicy(limit=1, failed_start=1, killed_start=0), True, 3),
        (RestartPolicy(limit=1, failed_start=1, killed_start=0), False, 0),
        (RestartPolicy(limit=3, failed_start=2, killed_start=1), True, 2),
    ],
)
def test_failed_starts_end_restarts(policy: RestartPolicy, *, killed: bool, allowed: int) -> None:
    """As many restarts are allowed as deaths before the start stay below the limit of points."""
    with supervised(draw if killed else exit_now, policy) as supervisor:
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
    with supervised(policy=RestartPolicy(limit=1, failed_start=1, killed_start=0)) as supervisor:
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
    policy = RestartPolicy(limit=2, first_must_start=True)
    with supervised(exit_now, policy) as supervisor:
        allowed: list[bool] = []
        for started in (True, False, True, False, False):
            child = supervisor.start("process", (4,))
            allowed.append(supervisor.reap(child, started=started).may_restart)
            supervisor.release(child)
        assert allowed == [True, True, True, True, False]


def test_no_process_starts_after_a_kill() -> None:
    """`kill` ends the processes that run, and `start` raises from then on."""
    with supervised() as supervisor:
        child = supervisor.start("process", ())
        received(child)
        supervisor.kill()
        assert supervisor.reap(child, started=True).error.exit_code == -signal.SIGKILL
        with pytest.raises(ClosedError):
            supervisor.start("process", ())


def test_close_leaves_no_process_behind() -> None:
    """`close` ends processes that were never released, and may be repeated."""
    with supervised() as supervisor:
        pids = [supervisor.start("process", (), number=number).pid for number in range(2)]
        supervisor.close()
        assert not any(map(psutil.pid_exists, pids))
        supervisor.close()


def test_kill_ends_the_delay_of_a_restart() -> None:
    """A thread that waits to start a process again learns at once that none is started any more."""
    with supervised(exit_now, RestartPolicy(limit=100, prompt_restarts=0)) as supervisor:
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


class Owner:
    """An object that owns processes, and keeps no reference to itself."""

    def __init__(self) -> None:
        self.supervisor = Supervisor(draw, SEEDS.child, policy=RestartPolicy(), starting=Starting())
        self.supervisor.end_with_program(self.supervisor.close, self)


def test_processes_end_with_their_owner() -> None:
    """A supervisor that was given its owner ends the processes as soon as the owner is dropped."""
    owner = Owner()
    child: ChildProcess = owner.supervisor.start("process", ())
    received(child)
    del owner
    gc.collect()
    assert not psutil.pid_exists(child.pid)
