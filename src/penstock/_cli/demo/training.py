"""The example script as a child process, and the log of its steps, read line by line.

Guarantees:
  - The process has ended when the scope of `start` ends, however that happens; it is killed if it still runs.
  - Exactly the steps that the script logged before it was killed are read.
  - Reading waits on the log's pipe alone, which ends when the process does: there is no polling.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Final, Literal, TypeAlias

from penstock.errors import PenstockError

_ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_LAST_LINES: Final = 12
_WORKER_NAME: Final = "penstock-worker"

Kind: TypeAlias = Literal["threads", "processes"]


class RunError(PenstockError, RuntimeError):
    """The script failed; the message contains the last lines that it printed."""


@dataclass(frozen=True, slots=True)
class Step:
    """The log of one step.

    Attributes:
        step: the batch's number since training began, from 0.
        sha256: the SHA-256 of the batch's images and labels, in hex.
        loss: the loss in the form of Python's `float.hex`, which doesn't round.
        rows: the number of digits in the batch.
        seconds: the time at which it was logged, by this machine's `time.perf_counter`.
        wait_seconds: the time that the script waited for data since its process began.
    """

    step: int
    sha256: str
    loss: str
    rows: int
    seconds: float
    wait_seconds: float


@dataclass(frozen=True, slots=True)
class Run:
    """The log of one process of the script.

    Attributes:
        num_workers: the number of its loader's workers.
        workers: "threads" or "processes".
        started: the time of its start, by this machine's `time.perf_counter`.
        steps: the steps in the order in which they were logged.
        resumed_at: the first step after the checkpoint; None if the run did not resume.
        resume_seconds: the duration of `load_state_dict`; None if the run did not resume.
        accuracy: the accuracy on the held-out digits, between 0 and 1; None if the run did not finish.
        model: the SHA-256 of the final weights, in hex; None if the run did not finish.
        killed_workers: the number of its worker processes that were killed.
    """

    num_workers: int
    workers: Kind
    started: float
    steps: tuple[Step, ...] = ()
    resumed_at: int | None = None
    resume_seconds: float | None = None
    accuracy: float | None = None
    model: str | None = None
    killed_workers: int = 0

    def describe_workers(self) -> str:
        """Return the number and kind of workers, such as "2 worker threads"."""
        one = "thread" if self.workers == "threads" else "process"
        many = "threads" if self.workers == "threads" else "processes"
        return f"{self.num_workers} worker {one if self.num_workers == 1 else many}"


@dataclass(slots=True)
class Process:
    """A running script, whose log `follow` reads, and that can be killed, or one of its workers."""

    popen: subprocess.Popen[bytes]
    log: IO[str]
    printed: IO[str]
    run: Run
    was_killed: bool = False

    def follow(self) -> Iterator[Run]:
        """Yield the run after each line of the log, until the process ends.

        Raises:
            RunError: the process ended with another status than 0 and was not killed by `kill`.
        """
        for line in self.log:
            self.run = add_line(self.run, json.loads(line))
            yield self.run
        status = self.popen.wait()
        if status != 0 and not self.was_killed:
            self.printed.seek(0)
            last = "".join(self.printed.readlines()[-_LAST_LINES:]).strip()
            raise RunError(f"the training script must end with status 0; it ended with {status}:\n{last}")

    def kill_worker(self) -> None:
        """Send SIGKILL to one of the script's worker processes, if there is one."""
        for pid in _workers_of(self.popen.pid):
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, signal.SIGKILL)
                self.run = replace(self.run, killed_workers=self.run.killed_workers + 1)
                return

    def kill(self) -> None:
        """Send SIGKILL to the process, which can neither catch it nor clean up."""
        self.was_killed = True
        self.popen.kill()


@dataclass(frozen=True, slots=True)
class Command:
    """The script's command line."""

    script: Path
    folder: Path
    epochs: int
    num_workers: int
    workers: Kind
    checkpoint: Path

    def arguments(self, log: int) -> list[str]:
        """Return the command line, with the log going to the file descriptor `log`."""
        options = {
            "--epochs": self.epochs,
            "--num-workers": self.num_workers,
            "--workers": self.workers,
            "--checkpoint": self.checkpoint,
            "--log": f"/dev/fd/{log}",
        }
        arguments = [str(part) for option in options.items() for part in option]
        return [sys.executable, "-P", str(self.script), str(self.folder), *arguments]


@contextmanager
def start(command: Command) -> Generator[Process]:
    """Start the script in a child process; leaving the scope kills it if it still runs.

    Its arithmetic uses one thread: the model is small, and a sum's last bit may depend on the number of threads.

    Yields:
        The process; its log is unread.
    """
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as log, tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
        started = time.perf_counter()
        try:
            popen = subprocess.Popen(
                command.arguments(writing),
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                env=os.environ | _ONE_THREAD,
                pass_fds=[writing],
                start_new_session=True,
            )
        finally:
            os.close(writing)
        try:
            yield Process(popen, log, printed, Run(command.num_workers, command.workers, started))
        finally:
            if popen.poll() is None:
                os.killpg(popen.pid, signal.SIGKILL)  # kills its workers, too, which would outlive it for a moment
            popen.wait()


def add_line(run: Run, line: dict[str, Any]) -> Run:
    """Return the run with one more line of its log.

    Raises:
        RunError: the line is not a step, a resumption or an end.
    """
    match line:
        case {"step": int()}:
            names = Step.__dataclass_fields__
            return replace(run, steps=(*run.steps, Step(**{name: line[name] for name in names})))
        case {"resumed_at": int(step), "resume_seconds": float(seconds)}:
            return replace(run, resumed_at=step, resume_seconds=seconds)
        case {"accuracy": float(accuracy), "model": str(model)}:
            return replace(run, accuracy=accuracy, model=model)
        case _:
            raise RunError(f"the script's log must hold steps, a resumption and an end; it has the line {line!r}")


def _workers_of(pid: int) -> list[int]:
    """Return the worker processes that descend from a process; the newest first."""
    return sorted((each for each, name in descendants(pid).items() if name == _WORKER_NAME), reverse=True)


def descendants(pid: int) -> dict[int, str]:
    """Return the processes that descend from a process, and their names, according to `/proc`."""
    parents: dict[int, int] = {}
    names: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            name, _, rest = (folder / "stat").read_text("utf-8", "replace").partition("(")[2].rpartition(")")
            parents[int(folder.name)] = int(rest.split()[1])
            names[int(folder.name)] = name
    return {each: name for each, name in names.items() if pid in _ancestors(each, parents)}


def _ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found: set[int] = set()
    while (pid := parents.get(pid, 0)) and pid not in found:
        found.add(pid)
    return found
