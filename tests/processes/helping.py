"""Starting processes and looking at them, for tests of how they start and end."""

import os
import select
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from penstock._processes import RestartPolicy, Starting, Supervisor
from penstock._processes import StartMethod as StartMethod
from penstock._processes._supervisor import restart_delay as restart_delay
from tests.processes.beginning import SEEDS, ChildProcess
from tests.processes.beginning import open_spare as open_spare
from tests.programs.forked import Program, started_script
from tests.promptness import is_prompt

SECONDS = 60.0


@contextmanager
def started(
    target: Callable[..., None], *arguments: object, start_method: StartMethod | None = None, threads: int | None = None
) -> Generator[ChildProcess]:
    """Have a process."""
    child = ChildProcess(target, arguments, name="process", start_method=start_method, threads=threads)
    try:
        yield child
    finally:
        child.close()


def supervisor_of(target: Callable[..., None], **policy: Any) -> Supervisor:
    """Return a supervisor, with a restart policy of these fields."""
    return Supervisor(target, SEEDS.child, policy=RestartPolicy(**policy), starting=Starting())


@contextmanager
def supervised(target: Callable[..., None], **policy: Any) -> Generator[Supervisor]:
    """Own a supervisor."""
    supervisor = supervisor_of(target, **policy)
    try:
        yield supervisor
    finally:
        supervisor.close()


def received(child: ChildProcess) -> Any:
    """Return what a process sends next."""
    assert child.wait(SECONDS)
    assert child.pipe.poll(), child.death(started=False)
    return child.pipe.recv()


@contextmanager
def watched(pid: int) -> Generator[Callable[[float], bool]]:
    """Have a function that waits so many seconds for the end of a process."""
    descriptor = os.pidfd_open(pid)
    try:
        yield lambda seconds: bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def ends_promptly(has_ended: Callable[[float], bool]) -> bool:
    """Return whether a watched process ends within a second, or on a busy machine within some."""
    began = time.monotonic()
    return has_ended(SECONDS) and is_prompt(time.monotonic() - began, 1.0)


@contextmanager
def program(text: str, folder: Path, *arguments: str) -> Generator[Program]:
    """Run a script in a group of processes of its own, in a test that uses the fixture `forked_programs`."""
    script = folder / "program.py"
    script.write_text(text)
    with started_script(script, *arguments) as running:
        try:
            yield running
        finally:
            running.kill()
