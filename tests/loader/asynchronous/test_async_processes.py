"""A loader over async sources in a program that ends, forks or is interrupted: real processes, real signals."""

import os
import signal
import subprocess
import sys

import pytest

from tests.loader.test_processes import PATIENCE_SECONDS, STRIDE, STRUCK, environment, program, run

pytestmark = pytest.mark.each_value

SOURCE = """
import asyncio

class Awaited:
    # Numbers; from `stuck` on, they never come.
    def __init__(self, length, stuck=1 << 30):
        self.length, self.stuck = length, stuck

    def __len__(self):
        return self.length

    async def read(self, keys):
        if keys.max() >= self.stuck:
            print("stuck", flush=True)
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        return [int(key) for key in keys]

def awaited(kind, length=400, stuck=1 << 30):
    rows = ps.read(Awaited(length, stuck), seed=1)
    rows = rows.shuffle() if stuck > length else rows
    return rows.batch(4) if kind == "indexed" else rows.filter(keep).batch(4)
"""


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["indexed", "ordered"])
@pytest.mark.parametrize("ends", ["", "sys.exit()", "del loader, batches", "loader.close()"])
def test_a_program_ends_in_silence(kind: str, workers: int, ends: str) -> None:
    """A program that ends while requests are under way that are never answered prints nothing."""
    stuck = 100 if workers else 1 << 30
    ended = run(
        f"""{SOURCE}
loader = ps.Loader(awaited({kind!r}, stuck={stuck}), num_workers={workers})
batches = iter(loader)
kept = [next(batches), next(batches)]
{ends}
"""
    )
    assert (ended.returncode, ended.stdout.replace("stuck\n", ""), ended.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_fork_has_an_event_loop_of_its_own(workers: int) -> None:
    """A source that was read before a fork is read in the child too, and goes on in the parent."""
    ended = run(
        f"""{SOURCE}
dataset = awaited("indexed")
before = [batch.tolist() for batch in dataset]
child = os.fork()
if child == 0:
    loader = ps.Loader(dataset, num_workers={workers})
    same = [batch.tolist() for batch in loader] == before == [batch.tolist() for batch in dataset]
    sys.exit(20 + same)
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status), [batch.tolist() for batch in dataset] == before)
"""
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "21 True\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals here")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["indexed", "ordered"])
def test_ctrl_c_ends_a_program_that_waits_for_an_answer(kind: str, workers: int) -> None:
    """SIGINT while a server doesn't answer ends the program by one KeyboardInterrupt, at once."""
    command = program(
        f"""{SOURCE}
signal.signal(signal.SIGINT, signal.default_int_handler)
for batch in ps.Loader(awaited({kind!r}, stuck=8), num_workers={workers}):
    pass
"""
    )
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "stuck\n"
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=PATIENCE_SECONDS)
    assert errors.count("Traceback (most recent call last)") == 1
    assert errors.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals here")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["indexed", "ordered"])
def test_ctrl_c_at_every_place(kind: str, workers: int) -> None:
    """Interrupted once, at any instruction of the loader, an iterator that is kept gives every batch once, in order."""
    text = STRUCK.replace("rows = ps.range(6, seed=1)", "rows = ps.read(Awaited(6), seed=1)")
    assert text != STRUCK
    ended = run(SOURCE + text.format(kind=kind, workers=workers, stride=STRIDE))
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")
