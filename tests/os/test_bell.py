"""The bell wakes its one waiter, coalesces rings, and lets every Ctrl-C through."""

import functools
import os
import resource
import select
import signal
import sys
import threading
from types import FrameType

import pytest

from penstock._os import Bell, CommonBell
from tests.programs.forked import outcome

pytestmark = pytest.mark.usefixtures("forked_programs")


def test_rings_are_kept_until_they_are_cleared() -> None:
    """A late waiter misses none; many coalesce up to a clear, which never blocks, and the first one after it counts."""
    bell = Bell()
    bell.clear()
    assert select.select([bell], [], [], 0)[0] == []
    for _ in range(10_000):
        bell.ring()
    assert bell.wait()
    assert bell.wait(timeout_seconds=0)
    bell.clear()
    assert not bell.wait(timeout_seconds=0)
    bell.clear()
    bell.ring()
    assert bell.wait(timeout_seconds=0)
    assert select.select([bell], [], [], 0)[0] == [bell]


@pytest.mark.skipif(sys.platform != "linux", reason="a common bell has several listeners only on Linux")
def test_a_ring_wakes_every_listener() -> None:
    """A listener that clears the common bell wakes the others, and stays quiet itself."""
    common = CommonBell(Bell())
    listeners = [common.listen() for _ in range(3)]
    for first in listeners:
        common.bell.ring()
        first.clear()
        woken = [listener.wait(timeout_seconds=0) for listener in listeners]
        assert woken == [listener is not first for listener in listeners]
        for listener in listeners:
            listener.clear()


def test_a_thread_that_waits_is_woken_by_another() -> None:
    """Two threads pass a token back and forth through two bells, so that only the other's ring ends each wait."""
    there, back = Bell(), Bell()
    tokens = 0

    def answer() -> None:
        nonlocal tokens
        for _ in range(500):
            there.wait()
            there.clear()
            tokens += 1
            back.ring()

    thread = threading.Thread(target=answer)
    thread.start()
    for sent in range(1, 501):
        there.ring()
        back.wait()
        back.clear()
        assert tokens == sent
    thread.join()


def test_a_bell_closes_its_descriptors() -> None:
    """Nothing stays open when the last reference is gone, the descriptors of a wait on the main thread included."""

    def use() -> None:
        bell = Bell()
        bell.ring()
        bell.wait()

    use()
    before = len(os.listdir("/dev/fd"))
    for _ in range(20):
        use()
    assert len(os.listdir("/dev/fd")) == before


def test_the_former_wakeup_descriptor_is_restored_and_gets_the_signals() -> None:
    """An event loop that watches for signals gets those that arrived during a wait, and those after it."""
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    bell = Bell()

    def ring(_number: int, _frame: FrameType | None) -> None:
        bell.ring()

    former_handler = signal.signal(signal.SIGUSR1, ring)
    former = signal.set_wakeup_fd(write_end)
    try:
        killer = threading.Thread(target=signal.raise_signal, args=(signal.SIGUSR1,))
        killer.start()
        assert bell.wait()
        killer.join()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signal.set_wakeup_fd(former) == write_end
        assert os.read(read_end, 16) == bytes([signal.SIGUSR1] * 2)
    finally:
        signal.set_wakeup_fd(former)
        signal.signal(signal.SIGUSR1, former_handler)
        os.close(read_end)
        os.close(write_end)


@pytest.mark.parametrize("by", ["a thread", "a signal"])
def test_without_descriptors_a_wait_ends_all_the_same(by: str) -> None:
    """Where no file may be opened, a ring is heard, signals are handled, and time runs out as ever."""
    bell, silent = Bell(), Bell()

    def ring(_number: int, _frame: FrameType | None) -> None:
        bell.ring()

    former = signal.signal(signal.SIGUSR1, ring)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # which are open
    act = bell.ring if by == "a thread" else functools.partial(os.kill, os.getpid(), signal.SIGUSR1)
    thread = threading.Thread(target=act)
    thread.start()
    try:
        assert bell.wait()
        assert not silent.wait(0.01)
    finally:
        thread.join()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        signal.signal(signal.SIGUSR1, former)


# Both ways in which a signal reaches a process: to whichever thread the system picks, and to a thread that isn't main.
@pytest.mark.parametrize("send", ["os.kill(os.getpid(), signal.SIGINT)", "signal.raise_signal(signal.SIGINT)"])
def test_no_interrupt_is_lost_at_any_point_of_a_wait(send: str) -> None:
    """Each of many Ctrl-C, sent by a thread at arbitrary points, ends exactly one wait; a lost one hangs the run."""
    program = f"""
        import os, signal, threading
        from penstock._os import Bell

        ROUNDS = 1500
        go = threading.Semaphore(0)
        bell = Bell()

        def interrupt():
            for spin in range(ROUNDS):
                go.acquire()
                for _ in range(spin * 7 % 400):
                    pass
                {send}

        thread = threading.Thread(target=interrupt)
        thread.start()
        interrupted = 0
        for _ in range(ROUNDS):
            try:
                go.release()
                while True:
                    bell.wait()
            except KeyboardInterrupt:
                interrupted += 1
        thread.join()
        print(interrupted)
    """
    assert outcome(program).stdout == "1500\n"


def test_an_interrupt_ends_the_process_from_within_a_wait() -> None:
    """An uncaught Ctrl-C ends the process as always, while other threads sleep in claim_wait."""
    program = """
        import os, signal, threading
        from penstock._ring import SlotRing

        ring = SlotRing(max_blocks=1)
        ring.arm(0, number=0, blocks=1)
        claim = ring.claim(worker=0)
        workers = [threading.Thread(target=ring.claim_wait, args=(i,), daemon=True) for i in range(1, 4)]
        for worker in workers:
            worker.start()
        threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGINT), daemon=True).start()
        ring.wait_ready(0)
    """
    result = outcome(program)
    assert "KeyboardInterrupt" in result.stderr
    assert result.returncode in {-signal.SIGINT, 130}
