"""Where a reader can be reached: a Unix socket's address, as text.

`@name` is an abstract address (Linux): no file, nothing to clean up, gone with its last process. Anything with a `/`
is a path, whose file only its owner may use; it is removed by `close`, and a file left by a killed reader is replaced.
Whoever runs under another user is refused at both ends.
"""

import contextlib
import errno
import os
import secrets
import socket
import stat
import struct
import sys
from typing import Final

from penstock.errors import PeerError, UsageError

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid: the kernel's word for who is at the other end
_BACKLOG: Final = 128
_MAX_BYTES: Final = 107  # of sun_path, and a zero behind it


def new_address() -> str:
    """Return an abstract address that nobody else has."""
    return f"@penstock-{os.getpid()}-{secrets.token_hex(8)}"


def listen(address: str) -> socket.socket:
    """Return a socket that listens at the address; it never blocks.

    Raises:
        UsageError: this system has no such sockets, the address is malformed, or another process listens there.
    """
    native = _native_form(address)
    made = _socket()
    try:
        if _is_path(address) and os.path.exists(address):
            _remove_if_stale(address)
        made.bind(native)
        if _is_path(address):
            os.chmod(address, 0o600)
        made.listen(_BACKLOG)
        made.settimeout(0)
    except OSError as error:
        made.close()
        raise UsageError(
            f"a reader's address must be free, and its folder there and writable; got {address!r}: {error.strerror}. "
            "Leave address= out to have one made."
        ) from error
    except BaseException:
        made.close()
        raise
    return made


def absolute(address: str) -> str:
    """Return the address with a whole path, if it has one, so that it means the same in every folder."""
    return os.path.abspath(address) if _is_path(address) else address


def forget(address: str) -> None:
    """Remove the file of a path address, if it has one."""
    if _is_path(address):
        with contextlib.suppress(OSError):
            os.unlink(address)


def connect(address: str) -> socket.socket:
    """Return a socket that is connected to the reader at the address; it never blocks.

    Raises:
        UsageError: this system has no such sockets, or the address is malformed.
        PeerError: nobody listens there, or it is another user's process.
    """
    made = _socket()
    try:
        _connect(made, address)
        require_same_user(made)
    except BaseException:
        made.close()
        raise
    made.settimeout(0)  # not before: a full backlog should be waited for
    return made


def peer_pid(connected: socket.socket) -> int:
    """Return the number of the process at the other end; 0 where this process can't see it."""
    return _credentials(connected)[0]


def require_same_user(connected: socket.socket) -> None:
    """Refuse a process of another user.

    Raises:
        PeerError: it is one.
    """
    pid, user, _ = _credentials(connected)
    if user != os.geteuid():
        raise PeerError(
            f"both ends of a pipe must be processes of one user; this one's is {os.geteuid()}, the other's {user}",
            pid=pid,
        )


def _credentials(connected: socket.socket) -> tuple[int, int, int]:
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(packed)
    return pid, user, group


def _socket() -> socket.socket:
    if sys.platform != "linux":
        raise UsageError(f"a TensorPipe needs Linux: its memory is handed over by descriptor; this is {sys.platform}")
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _is_path(address: str) -> bool:
    return "/" in address and not address.startswith("@")


def _native_form(address: str) -> bytes:
    abstract = address.startswith("@") and len(address) > 1
    if not abstract and not _is_path(address):
        raise UsageError(
            f"an address must be '@name' or a path with a '/' in it; got {address!r}. Pass on a reader's .address as "
            "it is."
        )
    native = b"\0" + os.fsencode(address[1:]) if abstract else os.fsencode(address)
    if len(native) > _MAX_BYTES or "\0" in address:
        raise UsageError(
            f"an address must have at most {_MAX_BYTES} bytes, none of them zero; {address!r} has {len(native)}. Take "
            "a shorter path, such as one in /tmp, or '@name'."
        )
    return native


def _connect(made: socket.socket, address: str) -> None:
    try:
        made.connect(_native_form(address))
    except OSError as error:
        raise PeerError(
            f"no reader listens at {address!r} ({error.strerror}). Open the TensorPipeReader first, keep it open, and "
            "give its .address to the writer."
        ) from error


def _remove_if_stale(path: str) -> None:
    """Remove the socket file of a reader that is gone; leave anything else, for `bind` to complain of.

    Raises:
        OSError: it can't be looked at, or not removed.
    """
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return  # connecting to it would be refused as well
    # A socket of another type finds out whether the other one lives, and is never let in there.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:
                raise
