"""The memory of all processes of a session, measured from outside, in /proc (Linux).

A session has a first process and all of its descendants, also those with another parent by now.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PROCESSES = Path("/proc")
KILOBYTE = 1024
BLOCK_BYTES = 512  # the unit in which the system counts a file's blocks


@dataclass(frozen=True, slots=True)
class Held:
    """The memory held at one moment, or the maximum of each field.

    Attributes:
        processes: the number of running processes.
        resident_bytes: their memory; a page that several have mapped counts once (the sum of their PSS).
        open_bytes: memory of the memfds and files in /dev/shm that they have open; each counts once.
        shared_bytes: memory of memfds and of /dev/shm of the whole machine, mapped or not.
    """

    processes: int
    resident_bytes: int
    open_bytes: int
    shared_bytes: int

    def at_most(self, other: "Held") -> "Held":
        """Return the larger value of each field."""
        return Held(
            max(self.processes, other.processes),
            max(self.resident_bytes, other.resident_bytes),
            max(self.open_bytes, other.open_bytes),
            max(self.shared_bytes, other.shared_bytes),
        )


def held(session: int) -> Held:
    """Return the memory that a session's processes hold now."""
    processes = tuple(running(session))
    files: dict[int, int] = {}
    for process in processes:
        files |= _open_files(process)
    return Held(len(processes), sum(map(_resident_bytes, processes)), sum(files.values()), shared_bytes())


def running(session: int) -> Iterator[int]:
    """Yield the processes of a session, without zombies."""
    for folder in PROCESSES.iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):  # the process has ended
            state, _, _, of_session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(of_session) == session and state not in "ZX":
                yield int(folder.name)


def shared_bytes() -> int:
    """Return the machine's memory in memfds, /dev/shm and other files that are kept in memory."""
    return _field((PROCESSES / "meminfo").read_text(), "Shmem:")


def _resident_bytes(process: int) -> int:
    """Return a process's share of the memory that it has mapped."""
    with suppress(OSError):  # the process has ended
        return _field((PROCESSES / str(process) / "smaps_rollup").read_text(), "Pss:")
    return 0


def _open_files(process: int) -> dict[int, int]:
    """Return the bytes of the in-memory files that a process has open, by inode."""
    found: dict[int, int] = {}
    with suppress(OSError):  # the process has ended
        for descriptor in (PROCESSES / str(process) / "fd").iterdir():
            with suppress(OSError):  # the file was closed
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
