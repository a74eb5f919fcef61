"""The address of a reader: that of a Unix socket, as text.

`@name` is an abstract address (Linux): it has no file, and ends with its last process. An address with a `/` is a path.
Only the owner may use its file; `close` removes it, and a new reader replaces the file of a killed one. Both ends
refuse processes of other users.
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

_CREDENTIALS: Final = struct.Struct("3i")  # pid, uid, gid of the peer, from the kernel
_BACKLOG: Final = 128
_MAX_BYTES: Final = 107  # sun_path without its terminating zero


def new_address() -> str:
    """Return a new abstract address."""
    return f"@penstock-{os.getpid()}-{secrets.token_hex(8)}"


def listen(address: str) -> socket.socket:
    """Return a non-blocking socket that listens at the address.

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
            f"a reader's address must be free, and its folder must exist and be writable; got {address!r}: "
            f"{error.strerror}. Omit address= for a generated one."
        ) from error
    except BaseException:
        made.close()
        raise
    return made


def absolute(address: str) -> str:
    """Return the address, with an absolute path if it is a path, so that it is valid in every folder."""
    return os.path.abspath(address) if _is_path(address) else address


def remove_file(address: str) -> None:
    """Remove the file of the address, if it is a path."""
    if _is_path(address):
        with contextlib.suppress(OSError):
            os.unlink(address)


def connect(address: str) -> socket.socket:
    """Return a non-blocking socket that is connected to the reader at the address.

    Raises:
        UsageError: this system has no such sockets, or the address is malformed.
        PeerError: no reader listens there, or it is another user's process.
    """
    made = _socket()
    try:
        _connect(made, address)
        require_same_user(made)
    except BaseException:
        made.close()
        raise
    made.settimeout(0)  # not before: a full backlog must be waited for
    return made


def peer_pid(connected: socket.socket) -> int:
    """Return the number of the process at the other end; 0 if this process can't see it."""
    return _credentials(connected)[0]


def require_same_user(connected: socket.socket) -> None:
    """Check that the process at the other end belongs to this user.

    Raises:
        PeerError: it belongs to another user.
    """
    pid, user, _ = _credentials(connected)
    if user != os.geteuid():
        raise PeerError(
            f"both ends of a pipe must belong to one user; this process belongs to {os.geteuid()}, the peer to {user}",
            pid=pid,
        )


def _credentials(connected: socket.socket) -> tuple[int, int, int]:
    packed = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, group = _CREDENTIALS.unpack(packed)
    return pid, user, group


def _socket() -> socket.socket:
    if sys.platform != "linux":
        raise UsageError(f"a tensor pipe requires Linux, to send memory by descriptor; this is {sys.platform}")
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _is_path(address: str) -> bool:
    return "/" in address and not address.startswith("@")


def _native_form(address: str) -> bytes:
    abstract = address.startswith("@") and len(address) > 1
    if not abstract and not _is_path(address):
        raise UsageError(
            f"an address must be '@name' or a path with a '/' in it; got {address!r}. Pass the reader's .address "
            "unchanged."
        )
    native = b"\0" + os.fsencode(address[1:]) if abstract else os.fsencode(address)
    if len(native) > _MAX_BYTES or "\0" in address:
        raise UsageError(
            f"an address must have at most {_MAX_BYTES} bytes, none of them zero; {address!r} has {len(native)}. Use "
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
    """Remove the socket file of a reader that has ended; leave any other file, so that `bind` raises.

    Raises:
        OSError: the file can't be read or removed.
    """
    if not stat.S_ISSOCK(os.stat(path).st_mode):
        return  # `bind` raises for it
    # A socket of another type shows whether a reader listens, and that reader never accepts it.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:
                raise
