"""With few file descriptors, worker processes work, or the error names the limit."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")

PROGRAM = """
import resource, sys
import penstock as ps

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with ps.Loader(ps.range(400).batch(8), num_workers=4, workers="processes") as loader:
        print(sum(map(len, loader)))
"""


@pytest.mark.parametrize("files", [*range(20, 64, 6), 96])
def test_without_descriptors_an_error_says_so(files: int, tmp_path: os.PathLike[str]) -> None:
    """They may run out when the loader is made, a process is started, or memory is sent. Nothing hangs."""
    script = os.path.join(tmp_path, "program.py")
    with open(script, "w", encoding="ascii") as file:
        file.write(PROGRAM)
    run = subprocess.run([sys.executable, script, str(files)], capture_output=True, text=True, check=False, timeout=60)
    if run.returncode:
        assert "Too many open files" in run.stderr or "ulimit -n" in run.stderr
        assert "Exception in thread" not in run.stderr
        assert "Exception ignored" not in run.stderr
    else:
        assert (run.stdout, run.stderr) == ("400\n", "")
