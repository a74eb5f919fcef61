"""The demo's processes: their log is read, a failure shows their output, and they end with their scope."""

import os
import signal
from pathlib import Path

import pytest

from penstock._cli.demo.digits import choose_kill_step
from penstock._cli.demo.training import Command, Process, Run, RunError, add_line, start
from penstock.errors import UsageError

_STEP = '{"step": %d, "sha256": "ab", "loss": "0x1p+0", "rows": 64, "seconds": 1.5, "wait_seconds": 0.25, "more": 1}'


def command(tmp_path: Path, lines: list[str], ending: str = "") -> Command:
    """Return a command for a script that logs lines, and then runs an ending."""
    path = tmp_path / "script.py"
    code = f"import os, signal, sys\nlog = open(sys.argv[-1], 'a', buffering=1)\nfor line in {lines!r}:\n"
    path.write_text(f"{code}    print(line, file=log)\n{ending}", encoding="utf-8")
    return Command(path, tmp_path, epochs=1, num_workers=2, workers="threads", checkpoint=tmp_path / "checkpoint.npz")


def test_a_run_is_read_to_its_end(tmp_path: Path) -> None:
    """Steps, a resumption and the end arrive as they were logged; what else a line holds is left out."""
    resumed, end = '{"resumed_at": 3, "resume_seconds": 0.001}', '{"accuracy": 0.5, "model": "cd"}'
    with start(command(tmp_path, [resumed, _STEP % 3, _STEP % 4, end])) as process:
        lengths = [len(run.steps) for run in process.follow()]
    run = process.run
    assert lengths == [0, 1, 2, 2]
    assert [step.step for step in run.steps] == [3, 4]
    assert (run.steps[0].loss, run.steps[0].rows, run.steps[0].seconds) == ("0x1p+0", 64, 1.5)
    assert (run.num_workers, run.resumed_at, run.resume_seconds) == (2, 3, 0.001)
    assert (run.accuracy, run.model) == (0.5, "cd")
    with pytest.raises(RunError, match="it has the line"):
        add_line(Run(2, "threads", 0.0), {"stp": 3})


def test_a_failing_script_raises_with_its_last_lines(tmp_path: Path) -> None:
    """The error has the exit status and the end of the traceback; one that another process killed has failed, too."""
    for ending, message in (
        ("raise ValueError('the reason')\n", r"(?s)it ended with 1:.*ValueError: the reason"),
        ("os.kill(os.getpid(), signal.SIGKILL)\n", "it ended with -9"),
    ):
        script = command(tmp_path, [_STEP % 0], ending)
        with pytest.raises(RunError, match=message), start(script) as process:
            list(process.follow())


def test_all_that_was_logged_before_the_kill_is_read(tmp_path: Path) -> None:
    """`kill` sends SIGKILL, and all lines that the script had written are still read."""
    with start(command(tmp_path, [_STEP % number for number in range(5)], "signal.pause()\n")) as process:
        for run in process.follow():
            if len(run.steps) == 5:
                process.kill()
    assert [step.step for step in process.run.steps] == [0, 1, 2, 3, 4]
    assert process.popen.returncode == -signal.SIGKILL
    assert process.run.model is None


def _interrupt(process: Process) -> None:
    """Read one line, and let Ctrl-C come."""
    next(process.follow())
    raise KeyboardInterrupt


def test_leaving_the_scope_kills_the_process(tmp_path: Path) -> None:
    """An exception, such as that of Ctrl-C, leaves no process behind."""
    script = command(tmp_path, [_STEP % 0], "signal.pause()\n")
    with pytest.raises(KeyboardInterrupt), start(script) as process:
        _interrupt(process)
    assert process.popen.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(process.popen.pid, 0)


def test_the_kill_is_inside_an_epoch_and_after_a_checkpoint() -> None:
    """For any chance, a checkpoint is before the step, and the epoch is neither new nor nearly done."""
    for epochs in (3, 4, 30):
        drawn = {choose_kill_step(epochs * 23, 23, 20, which.__mod__) for which in range(1000)}
        for step in drawn:
            assert step >= 20
            assert 4 <= step % 23 <= 15
            assert step // 20 * 20 % 23 != 0
            assert epochs * 23 // 4 <= step <= epochs * 23 * 3 // 4 + 1
        assert len(drawn) > 3
    with pytest.raises(UsageError, match=r"got 23 steps\. Raise --epochs"):
        choose_kill_step(23, 23, 20, lambda _: 0)
