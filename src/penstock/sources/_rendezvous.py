"""A rendezvous of one job's ranks on one machine: by a name, each finds the process that was the first to offer it.

Problem: torchrun starts ranks as separate programs, so none gets an address from another. Solution: the name is a
socket in Linux's abstract namespace, on which the first rank listens. The others connect, and the kernel says which
process listens. Nobody accepts these connections, so no thread is needed.

Guarantees:
  - Of several processes that offer a name at once, one listens; the others find it.
  - A name ends with its process, also a killed one. Nothing is left behind, as a file would be.
  - Only processes of one user find each other, in one job: the ranks that have the same `MASTER_ADDR` and
    `MASTER_PORT`. Ranks of a job wait for each other anyway, so a stopped one holds up no other program.
"""

import errno
import hashlib
import os
import socket
import sys
from collections.abc import Mapping
from typing import Final

from penstock._frozen import frozen

_JOB: Final = ("MASTER_ADDR", "MASTER_PORT")
_RANKS: Final = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
_CREDENTIALS_BYTES: Final = 12  # process, user and group, as three ints
_BACKLOG: Final = 4096  # of connections, which nobody accepts; a rank makes one for each source


@frozen
class Job:
    """The job whose rank this process is.

    Attributes:
        name: the same in all its ranks, and in no other job of the machine.
        local_rank: the number of this rank among those on this machine.
        local_ranks: the number of ranks on this machine, at least 2.
    """

    name: str
    local_rank: int
    local_ranks: int


def job_of(environment: Mapping[str, str]) -> Job | None:
    """Return the job whose rank a process is, with other ranks on its machine, as torchrun and its kin describe it.

    Args:
        environment: the environment variables.
    """
    numbers = [environment.get(name, "") for name in _RANKS]
    if sys.platform != "linux" or not all(map(environment.get, _JOB)) or not all(map(str.isdecimal, numbers)):
        return None
    rank, ranks = map(int, numbers)
    return Job(" ".join(environment[name] for name in _JOB), rank, ranks) if rank < ranks and ranks > 1 else None


def name_of(job: Job, what: str) -> str:
    """Return a name for something of a job, of the letters of hexadecimal numbers.

    Args:
        job: the job.
        what: determines the thing.
    """
    text = f"{os.geteuid()}\0{job.name}\0{job.local_ranks}\0{what}"
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=16).hexdigest()


def listener_of(name: str) -> int | None:
    """Return the process of this user that offers a name; None if there is none.

    Raises:
        PermissionError: it is another user's.
        OSError: it can't be known, such as while too many processes ask.
    """
    with _socket() as found:
        try:
            found.connect(_address(name))
        except ConnectionRefusedError:
            return None
        content = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS_BYTES)
    process, user, _ = memoryview(content).cast("i")
    if user != os.geteuid():
        raise PermissionError
    return process


def offered(name: str) -> int | None:
    """Offer a name.

    Returns:
        A descriptor whose end ends the offer; None if another process offers the name, or is about to.

    Raises:
        OSError: the system lacks such names.
    """
    with _socket() as offer:
        try:
            offer.bind(_address(name))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return None
            raise
        offer.listen(_BACKLOG)
        return offer.detach()


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)


def _address(name: str) -> str:
    return f"\0penstock-{name}"  # the NUL puts it into the abstract namespace, which is no folder
