"""The processes below this program: found, killed, and waited for.

Their names and the number of workers above them distinguish them: the helper of an isolated loader is a worker itself,
and its own workers are below it.
"""

import os
import select
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Final

from penstock._processes._fork_client import servers
from tests.leaks import spares_of

_PATIENCE_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Process:
    """A process below this program: its id, the name that it sets for itself, and the number of workers above it."""

    pid: int
    name: str
    depth: int

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal; return whether the process existed."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


class Family:
    """Owns descriptors of all processes that were seen, which show their end whichever process is their parent then."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # by id: the depth and the descriptor
        self.living()

    def living(self) -> list[Process]:
        """Return all running processes, also those whose parent has ended."""
        for process in _below(os.getpid(), 0):
            if process.name.startswith("penstock-") and process.pid not in self._seen:
                with suppress(ProcessLookupError):
                    self._seen[process.pid] = process.depth, os.pidfd_open(process.pid)
        for pid in [pid for pid in self._seen if self._has_ended(pid, 0.0)]:
            os.close(self._seen.pop(pid)[1])
        now = [_process(pid, depth) for pid, (depth, _) in self._seen.items()]  # a spare becomes a worker
        return [process for process in now if process is not None]

    def workers(self, depth: int) -> list[Process]:
        """Return the workers with so many workers above them."""
        return [process for process in self.living() if process.name == "penstock-worker" and process.depth == depth]

    def servers(self) -> list[Process]:
        """Return the fork servers."""
        return [process for process in self.living() if process.name == "penstock-forks"]

    def left_over(self) -> list[str]:
        """Wait for all to end; return those that still run. Fork servers, and a spare of each, may stay to the end."""
        pids = servers.held()[0]
        staying = [*pids, *(spare for pid in pids for spare in spares_of(pid)[:1])]
        deadline = monotonic() + _PATIENCE_SECONDS
        left = [
            f"{process}, still running"
            for process in self.living()
            if process.pid not in staying and not self._has_ended(process.pid, max(deadline - monotonic(), 0.0))
        ]
        self.close()
        return left

    def close(self) -> None:
        """Forget all processes."""
        while self._seen:
            os.close(self._seen.popitem()[1][1])

    def _has_ended(self, pid: int, timeout_seconds: float) -> bool:
        waiting = select.poll()
        waiting.register(self._seen[pid][1], select.POLLIN)
        return bool(waiting.poll(1000 * timeout_seconds))


def in_group() -> list[Process]:
    """Return the running processes of this program's group by name; those whose parent has ended are among them."""
    found = [_process(int(name), 0) for name in os.listdir("/proc") if name.isdigit() and _is_in_group(int(name))]
    return [process for process in found if process is not None and process.name.startswith("penstock-")]


def processor_seconds() -> float:
    """Return the seconds of processor that this program and the running processes of `in_group` have used."""
    ticks = sum(sum(map(int, _stat(pid)[11:13])) for pid in (os.getpid(), *(process.pid for process in in_group())))
    return ticks / os.sysconf("SC_CLK_TCK")


def _is_in_group(pid: int) -> bool:
    with suppress(ProcessLookupError):
        return os.getpgid(pid) == os.getpgrp()
    return False


def _below(pid: int, depth: int) -> Iterator[Process]:
    with suppress(FileNotFoundError, ProcessLookupError):  # a process may end meanwhile
        for thread in os.listdir(f"/proc/{pid}/task"):
            with suppress(FileNotFoundError, ProcessLookupError):
                for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                    process = _process(int(child), depth)
                    if process is not None:
                        yield process
                        yield from _below(process.pid, depth + (process.name == "penstock-worker"))


def _process(pid: int, depth: int) -> Process | None:
    with suppress(FileNotFoundError, ProcessLookupError):
        before, _, after = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        if after.split()[0] not in "ZX":
            return Process(pid, before.partition("(")[2], depth)
    return None


def _stat(pid: int) -> list[str]:
    """Return the fields of a process after its name, as `man proc_pid_stat` lists them; zeros if it has ended."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ["0"] * 50
