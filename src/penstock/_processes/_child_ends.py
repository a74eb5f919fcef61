"""How child processes begin and end, as their parent sees it: deaf to Ctrl-C from the start, and with a cause told."""

import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing import resource_tracker

from penstock.errors import WorkerError


@contextmanager
def interrupts_blocked() -> Generator[None]:
    """Block SIGINT in this thread, and so in the processes that it starts; the program's other threads get it."""
    if sys.platform == "win32":
        yield
        return
    # It would be started with the first process, and Python lets SIGINT through in this thread when it does so.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def death_of(process: str, pid: int | None, exit_code: int | None, *, started: bool) -> WorkerError:
    """Return the error that tells how a process ended.

    Args:
        process: what it was, as in "process of worker 3".
        pid: its number.
        exit_code: negative for a signal; None if somebody else has waited for it.
        started: whether it got as far as its own work; else the message says what to look at.
    """
    if exit_code is not None and exit_code < 0:
        how = f"was killed by {_signal_name(-exit_code)}"
    else:
        how = f"ended with exit code {'unknown' if exit_code is None else exit_code}"
    if exit_code == -signal.SIGKILL:
        how += " (by the system, if memory ran out)"
    if not started:
        how += (
            " before it had started. Its own output says why; a script must start what it does under "
            "`if __name__ == '__main__':`, since each process imports it"
        )
    return WorkerError(f"the {process} (pid {pid}) {how}", exit_code=exit_code)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
