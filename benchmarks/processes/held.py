"""What the processes of a session hold, looked at from outside, in /proc (Linux).

A session is a process that was started as its first, and all that came from it, whoever is their parent by now.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROCESSES = Path("/proc")
KILOBYTE = 1024
BLOCK_BYTES = 512  # in which the system counts what a file takes


@dataclass(frozen=True, slots=True)
class Held:
    """What is held at one moment, or the most of each.

    Attributes:
        processes: how many are running.
        resident_bytes: their memory, where a page that several have mapped counts once (the sum of their PSS).
        open_bytes: memory of the memfds and files in /dev/shm that they have open; each counts once.
        shared_bytes: memory of memfds and of /dev/shm, of the whole machine, mapped or not.
    """

    processes: int
    resident_bytes: int
    open_bytes: int
    shared_bytes: int

    def at_most(self, other: "Held") -> "Held":
        """Return the larger of each."""
        return Held(
            max(self.processes, other.processes),
            max(self.resident_bytes, other.resident_bytes),
            max(self.open_bytes, other.open_bytes),
            max(self.shared_bytes, other.shared_bytes),
        )


def held(session: int) -> Held:
    """Return what a session's processes hold now."""
    processes = tuple(running(session))
    files: dict[int, int] = {}
    for process in processes:
        files |= _open_files(process)
    return Held(len(processes), sum(map(_resident_bytes, processes)), sum(files.values()), shared_bytes())


def running(session: int) -> Iterator[int]:
    """Yield the processes of a session, without those that have ended and wait for their parent to see it."""
    for folder in PROCESSES.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):  # it has ended meanwhile
            state, _, _, of_session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(of_session) == session and state not in "ZX":
                yield int(folder.name)


def shared_bytes() -> int:
    """Return how much memory of the machine is in memfds, /dev/shm and other files that are kept in memory."""
    return _field((PROCESSES / "meminfo").read_text(), "Shmem:")


def _resident_bytes(process: int) -> int:
    """Return a process's share of the memory that it has mapped."""
    with suppress(OSError):  # it has ended meanwhile
        return _field((PROCESSES / str(process) / "smaps_rollup").read_text(), "Pss:")
    return 0


def _open_files(process: int) -> dict[int, int]:
    """Return how many bytes the files take, by their number, that a process has open and are kept in memory."""
    found: dict[int, int] = {}
    with suppress(OSError):  # it has ended meanwhile
        for descriptor in (PROCESSES / str(process) / "fd").iterdir():
            with suppress(OSError):  # it was closed meanwhile
                if str(descriptor.readlink()).startswith(("/memfd:", "/dev/shm/")):
                    status = descriptor.stat()
                    found[status.st_ino] = BLOCK_BYTES * status.st_blocks
    return found


def _field(lines: str, name: str) -> int:
    """Return a field that is given in kilobytes, in bytes; 0 if there is none."""
    for line in lines.splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * KILOBYTE
    return 0
