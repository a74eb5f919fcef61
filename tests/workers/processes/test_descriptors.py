"""With few file descriptors, worker processes work, or the error names the limit."""

import errno
import multiprocessing
import os
import pickle
import socket
from typing import Any, cast

import pytest

from penstock._runtime._worker_processes import SharedDescriptors
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
@pytest.mark.parametrize(
    "files",
    [20, 44, 56, *(pytest.param(files, marks=pytest.mark.long) for files in (32, 96))],  # 56 suffice
)
def test_without_descriptors_an_error_says_so(files: int) -> None:
    """They may run out when the loader is made, a process is started, or memory is sent. Nothing hangs."""
    run = outcome(PROGRAM.format(files=files))
    if run.returncode:
        assert "Too many open files" in run.stderr or "ulimit -n" in run.stderr
        assert "Exception in thread" not in run.stderr
        assert "Exception ignored" not in run.stderr
    else:
        assert (run.stdout, run.stderr) == ("400\n", "")


def test_a_worker_that_has_no_room_for_memory_says_so() -> None:
    """The system drops descriptors for which a process has no room; those that arrived are closed, and it fails."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs, open(os.devnull) as file, socket.socket(fileno=os.dup(ours.fileno())) as link:
        socket.send_fds(link, [b"descriptors"], [file.fileno()])
        with pytest.raises(OSError, match="could open only 1 of 2 regions") as caught:
            SharedDescriptors(cast("Any", theirs)).ask([5, 6])
        assert caught.value.errno == errno.EMFILE
        assert pickle.loads(ours.recv_bytes()) == [5, 6]
