"""However a program ends, the processes of its pipelines end within a second, in the middle of a call."""

import os
import signal
from pathlib import Path

import pytest

from tests.pipeline.processes import ops
from tests.processes.helping import ends_promptly, program, watched

PARENT = """
import sys, threading
from penstock.pipeline import PipelineBuilder, ProcessExecutor, run_in_subprocess
from penstock.pipeline._processes import open_processes
from tests.pipeline.processes import ops

if __name__ == "__main__":
    _, method, ready, doing = sys.argv
    running = open_processes(ProcessExecutor(1, start_method=method))
    running.submit(ops.wait_for_ever, ready)
    with open(ready) as pipe:
        print(pipe.readline(), end="", flush=True)
    config = PipelineBuilder().add_source(range(10**9)).pipe(ops.pid_of).add_sink().get_config()
    pipeline = run_in_subprocess(config, num_threads=1, start_method=method)
    print(pipeline.get_item(), flush=True)
    if doing == "reads":
        for item in pipeline:
            pass
    if doing == "waits":
        while not threading.Event().wait(0.5):  # Python sleeps through a signal that comes just before it begins to
            pass
    sys.stdin.readline()  # the test watches the processes by now
"""


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(
    ("start_method", "end", "doing"),
    [
        pytest.param("spawn", signal.SIGKILL, "waits", marks=pytest.mark.long),  # others have this start and this end
        ("forkserver", signal.SIGKILL, "reads"),
        ("spawn", signal.SIGINT, "reads"),
        ("forkserver", None, "ends"),
    ],
)
def test_nothing_outlives_the_parent(start_method: str, end: signal.Signals | None, doing: str, tmp_path: Path) -> None:
    """The processes of an executor, and that of a pipeline, end with the program, and print nothing."""
    with program(PARENT, tmp_path, start_method, ops.pipe_in(tmp_path), doing) as parent:
        pids = [int(parent.stdout.readline()) for _ in range(2)]
        with watched(pids[0]) as executor_ended, watched(pids[1]) as pipeline_ended:
            if end is signal.SIGKILL:
                parent.kill()
            elif end is not None:
                os.killpg(parent.pid, end)  # as by a terminal
            _, errors = parent.communicate("\n", timeout=100)
            assert ends_promptly(executor_ended)
            assert ends_promptly(pipeline_ended)
        assert errors.count("Traceback") == (1 if end is signal.SIGINT else 0), errors
