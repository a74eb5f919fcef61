"""The leak check itself: it finds planted leaks in the test that planted them, and tidy tests pass."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import leaks

CHECKOUT = Path(__file__).parents[1]

PLANTED = """
import multiprocessing, os, subprocess, sys, threading, types
from multiprocessing import shared_memory
kept, event, transport = [], threading.Event(), types.SimpleNamespace(leased=0)
transport.leased_slots = lambda: transport.leased
def test_plants_thread():
    threading.Thread(target=event.wait, name="forgotten", daemon=True).start()
def test_plants_descriptor():
    os.open(__file__, os.O_RDONLY)
def test_plants_process():
    kept.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
def test_plants_zombie():
    if os.fork() == 0:
        os._exit(0)
def test_plants_memory():
    kept.append(shared_memory.SharedMemory(create=True, size=64))
def test_plants_semaphore():
    kept.append(multiprocessing.get_context("spawn").Lock())
def test_installs_transport():
    sys.modules["penstock.transport"] = transport
def test_plants_slot():
    transport.leased += 1
"""
FOUND = {
    "thread": "*thread 'forgotten' (daemon), still running*",
    "descriptor": "*file descriptor * -> *test_planted.py, still open*",
    "process": "*child process * (*input()*), still running*",
    "zombie": "*child process * ended but never waited for*",
    "memory": "*shared memory /dev/shm/* of 64 bytes, not unlinked*",
    "semaphore": "*shared memory /dev/shm/sem.mp-* of 32 bytes, not unlinked*",
    "slot": "*leased slot (number 1 of those held)*",
}
TIDY = """
import os, subprocess, sys, threading
def test_is_tidy(tmp_path):
    thread = threading.Thread(target=print)
    thread.start()
    subprocess.run([sys.executable, "-c", ""], check=True)
    with open(tmp_path / "file", "w"):
        thread.join()
class Closing:
    def __init__(self):
        self.itself = self
        self.descriptor = os.open(__file__, os.O_RDONLY)
    def __del__(self):
        os.close(self.descriptor)
def test_drops_a_cycle():
    Closing()
def test_fails_with_a_leak():
    os.open(__file__, os.O_RDONLY)
    assert False
class Owner:
    def __init__(self):
        self.itself = self
    def __del__(self):
        sys.is_released = True
def test_fails():
    owner = Owner()
    assert False
"""


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="only Linux lists descriptors and shared memory")
def test_planted_leaks_alone_are_reported(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resource that a test leaves behind is named in an error of that test only.

    A thing that a test ends, or that only garbage holds, is no leak; a failing test shows its own failure alone.
    Resources in the frames of a failed test, the last of its file, are released before the next file's tests.
    """
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    names = "nothing_leaks, pytest_runtest_makereport, settled_module, settled_process"
    pytester.makeconftest(f"import tests.leaks\ntests.leaks.PATIENCE_SECONDS = 0.1\nfrom tests.leaks import {names}")
    released = "import sys\ndef test_is_released():\n    assert sys.is_released"
    pytester.makepyfile(test_planted=PLANTED, test_tidy=TIDY, test_tidy_before=released)
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=len(FOUND) + 1 + 3, errors=len(FOUND), failed=2)
    for kind, message in FOUND.items():
        title = f"*ERROR at teardown of test_plants_{kind}*"
        result.stdout.fnmatch_lines([title, "the test left behind:", message])


SEMAPHORE = """
import _multiprocessing, sys, time
kept = _multiprocessing.SemLock(1, 1, 1, sys.argv[1], False)
print(flush=True)
sys.stdin.read()
"""

ORPHAN = """
import os
ready, orphaned = os.pipe()
if os.fork():
    os.close(ready)
    print("forked", flush=True)
    os.read(0, 1)
    os._exit(0)
os.close(orphaned)
os.read(ready, 1)  # until the parent has ended
"""


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="only Linux lists shared memory")
@pytest.mark.parametrize("is_child", [True, False])
def test_shared_memory_is_its_own_programs(*, is_child: bool) -> None:
    """Shared memory of another program is no leak, and isn't waited for; that of a child of this one is a leak."""
    name = f"/penstock-test-{os.getpid()}-{is_child}"
    script = SEMAPHORE if is_child else f"{ORPHAN}\n{SEMAPHORE}"
    with subprocess.Popen(
        [sys.executable, "-c", script, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        if not is_child:
            assert process.stdout.readline() == "forked\n"
            leaks.held()  # sees the grandchild while it has its first parent
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.readline() == "\n"
        before = {identity: text for identity, text in leaks.held().items() if name[1:] not in identity}
        found = leaks.left_behind(before, 0.1 if is_child else 600.0)
        os.unlink(f"/dev/shm/sem.{name[1:]}")
    assert [name[1:] in left for left in found] == [True] * is_child


@pytest.mark.skipif(not Path("/dev/shm").exists(), reason="only Linux lists shared memory")
def test_a_semaphore_that_another_program_left_is_no_leak() -> None:
    """A killed program's semaphore has neither this process's id in its name, nor a process that maps it."""
    before = leaks.held()
    script = "import _multiprocessing as m, os; m.SemLock(1, 1, 1, f'/mp-{os.getpid()}', False); print(os.getpid())"
    pid = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.strip()
    assert leaks.left_behind(before, 0.1) == []
    os.unlink(f"/dev/shm/sem.mp-{pid}")
