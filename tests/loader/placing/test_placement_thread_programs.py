"""A loader whose batches a thread places, in a program that ends, forks or is interrupted."""

import os
import sys

import pytest

from tests.loader.test_processes import STRIDE, STRUCK, run

PLACED_BY_THREAD = """
from penstock._loader._placement_thread import PlacementThread, ThreadPlacedLoader

begun, go_on = threading.Event(), threading.Event()
go_on.set()

class PlacedByThread(ThreadPlacedLoader):
    def __init__(self, dataset, **arguments):
        super().__init__(dataset, **arguments)
        self._ahead, self._keeps_memory, self._thread = 1, True, PlacementThread("placing")

    def _place(self, batch):
        return lambda: batch

    def _place_in_thread(self, batch):
        begun.set()
        go_on.wait()
        return self._place(batch)

def in_a_turn(**arguments):
    # Return a loader whose thread is placing a batch, and its iterator.
    go_on.clear()
    loader = PlacedByThread(dataset("indexed"), **arguments)
    batches = iter(loader)
    while not begun.wait(0.01):
        next(batches)
    return loader, batches
"""


@pytest.mark.parametrize("ends", ["", "sys.exit()", "del loader, batches", "loader.close()"])
def test_a_program_ends_in_silence(ends: str) -> None:
    """A program that ends while a batch is being placed prints nothing; one that is stuck there doesn't keep it."""
    ended = run(
        f"""{PLACED_BY_THREAD}
loader, batches = in_a_turn(num_workers=2)
threading.Timer(0, go_on.set).start()
{ends}
"""
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_a_stuck_thread_does_not_keep_the_program() -> None:
    """A program ends though a batch is being placed for ever."""
    ended = run(f"{PLACED_BY_THREAD}\nloader, batches = in_a_turn(num_workers=1)")
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize("isolated", [False, True])
def test_a_fork_can_not_use_a_started_loader(isolated: bool) -> None:  # noqa: FBT001 - a parameter
    """In a fork, where the thread isn't, `next` raises a ClosedError; the child ends, and the parent goes on."""
    ended = run(
        f"""{PLACED_BY_THREAD}
if __name__ == "__main__":
    loader, batches = in_a_turn(num_workers=1, isolated={isolated})
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except ps.errors.ClosedError as error:
            print("before a fork" in str(error), flush=True)
        loader.state_dict()
        del batches
        loader.close()
        sys.exit(10)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    step = loader.step
    go_on.set()
    print(sum(len(batch) for batch in batches) + 4 * (step + 1) == 400)
"""
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n10\nTrue\n", "")


@pytest.mark.skipif(sys.platform == "win32", reason="there are no POSIX signals here")
@pytest.mark.parametrize("kind", ["indexed", "ordered"])
def test_ctrl_c_at_every_place(kind: str) -> None:
    """Interrupted once, at any instruction of the loader, an iterator that is kept gives every batch once, in order."""
    struck = STRUCK.replace("ps.Loader(dataset", "PlacedByThread(dataset").format(kind=kind, workers=2, stride=STRIDE)
    ended = run(PLACED_BY_THREAD + struck)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "True\n", "")
