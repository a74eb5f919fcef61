"""A pipe needs nothing of /dev/shm: it works where that is absent, and so where it is small, as in containers."""

import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import threading, numpy as np
from penstock.transport import TensorPipeReader, TensorPipeWriter

def send(address):
    with TensorPipeWriter(address) as writer:
        for step in range(4):
            writer.send(np.full(25_000_000, step, np.uint8))

with TensorPipeReader() as reader:
    threading.Thread(target=send, args=(reader.address,)).start()
    kept = list(reader)
    assert len(kept) == 4 and all((array == step).all() for step, array in enumerate(kept))
print(sum(array.nbytes for array in kept))
"""
WITHOUT = "mount -t tmpfs -o size=0,nr_inodes=1,mode=0 none /dev/shm && exec "


def test_a_pipe_carries_more_than_dev_shm_holds() -> None:
    """100 MB are kept alive at once, in a private mount namespace without /dev/shm."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("private mount namespaces are not permitted here")
    command = [unshare, "-m", "bash", "-c", WITHOUT + '"$0" -W ignore -c "$1"', sys.executable, PROGRAM]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "100000000"), done.stderr
