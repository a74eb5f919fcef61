"""A pipe needs nothing of /dev/shm: it works where that is small, as in containers, and where it is absent."""

import shutil
import subprocess
import sys

import pytest

PROGRAM = """
import numpy as np, sys
from penstock.transport import TensorPipeReader
from tests.transport.pipe.children import running
from tests.transport.pipe.test_small_machine import send_large
with TensorPipeReader() as reader, running("spawn", send_large, reader.address):
    kept = list(reader)
    assert len(kept) == 4 and all((array == step).all() for step, array in enumerate(kept))
print(sum(array.nbytes for array in kept))
"""
IN_A_SMALL_ONE = "mount -t tmpfs -o size=64m none /dev/shm && exec "
WITHOUT_ANY = "mount -t tmpfs -o size=0,nr_inodes=1,mode=0 none /dev/shm && exec "


def send_large(address: str) -> None:
    """Send 100 MB."""
    import numpy as np  # noqa: PLC0415 - the child's own

    from penstock.transport import TensorPipeWriter  # noqa: PLC0415 - the child's own

    with TensorPipeWriter(address) as writer:
        for step in range(4):
            writer.send(np.full(25_000_000, step, np.uint8))


@pytest.mark.parametrize("shape", [IN_A_SMALL_ONE, WITHOUT_ANY])
def test_a_pipe_carries_more_than_dev_shm_holds(shape: str) -> None:
    """100 MB are kept alive at once, in a private mount namespace with 64 MB of /dev/shm, and with none."""
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-m", "true"], check=False, capture_output=True).returncode:
        pytest.skip("private mount namespaces are not permitted here")
    command = [unshare, "-m", "bash", "-c", shape + '"$0" -W ignore -c "$1"', sys.executable, PROGRAM]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "100000000"), done.stderr
