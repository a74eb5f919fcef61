"""With few file descriptors, worker processes work, or the error names the limit."""

import os

import pytest

from tests.programs.forked import outcome

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")

PROGRAM = """
import resource
import penstock as ps

resource.setrlimit(resource.RLIMIT_NOFILE, ({files}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
with ps.Loader(ps.range(400).batch(8), num_workers=4, workers="processes") as loader:
    print(sum(map(len, loader)))
"""


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("files", [*range(20, 64, 6), 96])
def test_without_descriptors_an_error_says_so(files: int) -> None:
    """They may run out when the loader is made, a process is started, or memory is sent. Nothing hangs."""
    run = outcome(PROGRAM.format(files=files))
    if run.returncode:
        assert "Too many open files" in run.stderr or "ulimit -n" in run.stderr
        assert "Exception in thread" not in run.stderr
        assert "Exception ignored" not in run.stderr
    else:
        assert (run.stdout, run.stderr) == ("400\n", "")
