"""Several processes need one filter's index: one computes it, the others wait, and a crash leaves no partial file."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.programs.forked import Program, started_script

PROGRAM = """
import logging, os, signal, sys, threading
import penstock as ps

logging.basicConfig(level=logging.INFO, format="%(message).7s", stream=sys.stdout)
role, path, calls = sys.argv[1:]

def is_kept(number):
    with open(calls, "ab", buffering=0) as log:
        log.write(b"x")
    if number == 500 and os.environ["ROLE"] == "slow":
        print("inside", flush=True)
        sys.stdin.readline()
    return number % 3 == 0

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

os.environ["ROLE"] = role
if role in ("fsync", "replace"):
    setattr(os, role, die)
if role == "endless":
    dataset = ps.range(10**9).map(lambda number: number or print("inside", flush=True)).filter(bool, index=path)
dataset = ps.range(1000, seed=1).shuffle().filter(is_kept, index=path)
print(list(dataset) == [number for number in ps.range(1000, seed=1).shuffle() if number % 3 == 0], len(dataset))
"""
RIGHT = ["True 334"]

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks and signals"),
    pytest.mark.each_value,
]


class Processes:
    """Starts the program above, in a role."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "made" / "verdicts"
        self.path.parent.mkdir()
        self.calls = folder / "calls"
        self.program = folder / "program.py"
        self.program.write_text(PROGRAM)
        self.started: list[Program] = []

    def start(self, role: str) -> Program:
        """Start a process."""
        process = started_script(self.program, role, str(self.path), str(self.calls))
        self.started.append(process)
        return process

    def run(self, role: str) -> tuple[int, list[str], str]:
        """Return a process's exit code, lines and errors, when it has ended."""
        process = self.start(role)
        lines, errors = process.communicate()
        return process.wait(), lines.splitlines(), errors

    def count_calls(self) -> int:
        """Return the number of the predicate's calls in all processes."""
        return self.calls.stat().st_size


@pytest.fixture
def processes(tmp_path: Path, forked_programs: None) -> Iterator[Processes]:  # noqa: ARG001 - started before the test
    """Return a starter of processes, and end them after the test."""
    started = Processes(tmp_path)
    yield started
    for process in started.started:
        with process:
            process.kill()


def next_line(process: Program) -> str:
    """Return the next line that a process prints."""
    return process.stdout.readline().strip()


def test_one_computes_and_others_wait(processes: Processes) -> None:
    """Ranks that start together agree, call the predicate once for each element, and leave only the index."""
    first = processes.start("slow")
    assert next_line(first) == "inside"
    others = [processes.start("fast") for _ in range(2)]
    assert [next_line(other) for other in others] == ["waiting"] * 2
    outputs = [process.communicate("go\n") for process in (first, *others)]
    assert [(lines.splitlines()[-1:], errors) for lines, errors in outputs] == [(RIGHT, "")] * 3
    assert processes.count_calls() == 1000
    assert os.listdir(processes.path.parent) == ["verdicts"]
    assert processes.run("fast") == (0, RIGHT, "")
    assert processes.count_calls() == 1000


def test_a_waiting_process_replaces_a_killed_one(processes: Processes) -> None:
    """A process that waits for a killed one computes the index itself."""
    first = processes.start("slow")
    assert next_line(first) == "inside"
    other = processes.start("fast")
    assert next_line(other) == "waiting"
    assert not processes.path.exists()
    first.kill()
    assert other.communicate() == ("True 334\n", "")
    assert os.listdir(processes.path.parent) == ["verdicts"]


@pytest.mark.parametrize(("moment", "there_before"), [("fsync", True), ("replace", False)])
def test_a_kill_while_writing_leaves_no_partial_file(processes: Processes, moment: str, *, there_before: bool) -> None:
    """After a kill before the file is complete or renamed, the next run finds the old file, or none."""
    old = b""
    if there_before:
        assert processes.run("fast")[0] == 0
        old = processes.path.read_bytes()[:-1] + b"?"  # damaged, so that it is written again
        processes.path.write_bytes(old)
    assert processes.run(moment)[0] == -signal.SIGKILL
    assert processes.path.exists() == there_before
    assert not there_before or processes.path.read_bytes() == old
    code, lines, errors = processes.run("fast")
    assert (code, lines, "damaged" in errors) == (0, RIGHT, there_before)
    assert os.listdir(processes.path.parent) == ["verdicts"]


def test_an_interrupt_leaves_no_file(processes: Processes) -> None:
    """Ctrl-C raises KeyboardInterrupt in the caller alone, at once, and leaves no file."""
    process = processes.start("endless")
    assert next_line(process) == "inside"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode in {-signal.SIGINT, 130}
    assert errors.count("Traceback") == 1
    assert errors.strip().endswith("KeyboardInterrupt")
    assert not os.listdir(processes.path.parent)
