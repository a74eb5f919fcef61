"""A child process begins and ends, and its death is reported, by either start method."""

import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.errors import UsageError
from tests.processes import functions
from tests.processes.helping import SECONDS, StartMethod, received, started


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_process_runs_and_ends(start_method: StartMethod) -> None:
    """A process sends through its pipe, has its pid, and ends on the empty message."""
    with started(functions.report, start_method=start_method) as child:
        assert received(child)["pid"] == child.pid
        assert not child.wait_for_end(0)
        child.end(SECONDS)
    assert not psutil.pid_exists(child.pid)


EXITS: dict[str, int] = {"return": 0, "raise": 5, "exit": 6, "signal": -int(signal.SIGTERM)}


@pytest.mark.parametrize(("start_method", "how"), [*(("forkserver", how) for how in EXITS), ("spawn", "signal")])
def test_exit_codes(start_method: StartMethod, how: str) -> None:
    """However a process ends, its exit code is known."""
    with started(functions.end_by, how, start_method=start_method) as child:
        assert child.wait_for_end(SECONDS)
        assert child.death().exit_code == EXITS[how]
        assert child.death() is child.death()


@pytest.mark.parametrize(
    ("start_method", "has_started"), [("forkserver", True), ("forkserver", False), ("spawn", False)]
)
def test_killed(start_method: StartMethod, *, has_started: bool) -> None:
    """The death of a killed process is known at once, wherever it is by then; killing it again does no harm."""
    with started(functions.report, start_method=start_method) as child:
        if has_started:
            received(child)
        child.kill()
        assert child.wait_for_end(SECONDS)
        assert child.death(started=has_started).exit_code == -signal.SIGKILL
        child.kill()


def test_a_process_is_like_the_program_is_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, folder and environment that the program has changed are those of the processes that it starts then."""

    def reported() -> Any:
        with started(functions.report, start_method="forkserver") as child:
            return received(child)

    assert reported()["environment"]["PENSTOCK_TEST"] is None
    monkeypatch.setenv("PENSTOCK_TEST", "changed")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.chdir(tmp_path)
    found = reported()
    assert found["environment"]["PENSTOCK_TEST"] == "changed"
    assert str(tmp_path) in found["path"]
    assert found["folder"] == os.path.realpath(tmp_path)
    monkeypatch.delenv("PENSTOCK_TEST")
    assert reported()["environment"]["PENSTOCK_TEST"] is None


def test_the_folder_of_the_program_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork server forks processes all the same, in the folder that it is in."""
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with started(functions.end_by, "exit", start_method="forkserver") as child:
        assert child.wait_for_end(SECONDS)
        assert child.death().exit_code == 6


def test_a_daemonic_process_spawns_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says how processes can be started there."""
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", value=True)
    with pytest.raises(UsageError, match="Start it with daemon=False"), started(functions.report, start_method="spawn"):
        pass
    with started(functions.report, start_method="forkserver") as child:
        received(child)


def test_output_goes_to_the_programs_streams(capfd: pytest.CaptureFixture[str]) -> None:
    """A process prints to the standard output that the program has when the process is started."""
    with started(functions.say, "printed there\n") as child:
        received(child)
    assert capfd.readouterr().out == "printed there\n"


def test_a_forked_process_holds_nothing_of_others() -> None:
    """A process has its own pipe and the descriptors of its arguments; none of the server, or of other processes."""
    counts: list[int] = []
    for others in range(2):
        with started(functions.report) as first, started(functions.list_descriptors, None) as child:
            if others:
                received(first)
            held = received(child)
            assert sum(target.startswith("socket:") for target in held) == 1, held
            counts.append(len(held))
    assert counts[0] == counts[1]
