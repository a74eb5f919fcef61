"""The protocol of helpers: commands arrive in order, and the owner notices each way in which a helper can end."""

import os
import queue
import signal
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penstock._processes import Begin, HelperProcess, Supervisor, listen_to_owner, report_started
from penstock.errors import ClosedError, WorkerError
from tests.processes.helping import SECONDS, supervised

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class Reader:
    """A data channel that nothing is read from, and that counts how often it is closed."""

    closed = 0

    def close(self) -> None:
        """Count the call."""
        self.closed += 1


def repeat(pipe: "Connection[Any, Any]", how: str) -> None:
    """Be prepared, or fail, or die; then answer each command with itself, and the end with "last"."""
    if how == "dies":
        os._exit(3)
    report_started(pipe, LookupError("no model") if how == "fails" else None)
    commands: queue.Queue[Any] = queue.Queue()
    listen_to_owner(pipe, commands.put)
    while (command := commands.get()) is not None:
        pipe.send(command)
    if how == "hangs":
        commands.get()
    pipe.send("last")


@contextmanager
def helped(how: str = "") -> Generator[tuple[HelperProcess[Reader], Supervisor]]:
    """Own a helper."""
    with supervised(repeat) as supervisor:
        yield HelperProcess(supervisor, "helper", (how,), Reader()), supervisor


def test_commands_may_precede_the_start() -> None:
    """They are answered in order, after the first answer; the last answer follows the end."""
    with helped() as (helper, _):
        for run in range(3):
            helper.send(Begin(run, "work"))
        helper.wait_until_started(SECONDS)
        assert helper.has_started()
        assert [helper.answer(SECONDS) for _ in range(3)] == [Begin(run, "work") for run in range(3)]
        last: list[object] = []
        helper.stop(SECONDS, lambda: last.append(helper.answer(SECONDS)))
        assert last == ["last"]
        assert helper.reader.closed == 1
        assert helper.child.death().exit_code == 0


def test_a_preparation_that_fails() -> None:
    """The owner gets the exception, each time, and the helper lives on."""
    with helped("fails") as (helper, _):
        for _ in range(2):
            with pytest.raises(LookupError, match="no model"):
                helper.wait_until_started(SECONDS)
        helper.send("command")
        assert helper.answer(SECONDS) == "command"


def test_a_death_before_the_first_answer() -> None:
    """It is a WorkerError, and the helper counts as one that has not started."""
    with helped("dies") as (helper, supervisor):
        with pytest.raises(WorkerError, match="before it had started"):
            helper.wait_until_started(SECONDS)
        assert not helper.has_started()
        assert not supervisor.reap(helper.child, started=False).may_restart
        with pytest.raises(EOFError):
            helper.answer(SECONDS)


def test_a_helper_that_does_not_end_is_killed() -> None:
    """An owner waits no longer than its patience, and may stop a helper again."""
    with helped("hangs") as (helper, _):
        helper.wait_until_started(SECONDS)
        for _ in range(2):
            helper.stop(0.01, lambda: helper.answer(0.01))
        assert helper.child.wait_for_end(SECONDS)
        assert helper.child.death().exit_code == -signal.SIGKILL


def test_a_helper_that_can_not_be_started_closes_the_reader() -> None:
    """Nothing that was made for it stays open."""
    reader = Reader()
    with supervised(repeat) as supervisor:
        supervisor.close()
        with pytest.raises(ClosedError):
            HelperProcess(supervisor, "helper", ("",), reader)
    assert reader.closed == 1
