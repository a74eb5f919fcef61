"""Exceptions sent to the other end of a pipe: pickled between processes that trust each other, else as text.

They are sent as JSON, so that an end that isn't trusted can send only text.
"""

import json
from typing import Any, Final

from penstock._processes import PackedError, pack_error, unpack_error
from penstock.errors import MessageError, PeerError

_PICKLED_BYTES: Final = 16_384  # all must fit into the socket at once: a failing end does not wait


def pack_failure(error: BaseException, *, allow_pickle: bool) -> bytes:
    """Return a description of an exception, with the exception itself if pickle is allowed and works for it."""
    packed = pack_error(error, with_pickle=allow_pickle, contain=Exception)
    described: dict[str, Any] = {"type": packed.kind, "message": packed.message, "traceback": packed.traceback}
    if packed.pickled and len(packed.pickled) <= _PICKLED_BYTES:
        described["pickled"] = packed.pickled.hex()
    return json.dumps(described).encode()


def unpack_failure(described: bytes, *, peer: str, pid: int, allow_pickle: bool) -> Exception:
    """Return the exception to raise for a failure at the other end.

    Args:
        described: the result of `pack_failure` there.
        peer: the name of the other end in messages: "the writer".
        pid: its process.
        allow_pickle: whether it is trusted.

    Returns:
        The original exception, with the remote traceback as a note; else a PeerError with type, message and traceback.

    Raises:
        MessageError: the description is malformed.
    """
    try:
        fields = json.loads(described)
        kind, message, text = (str(fields[name]) for name in ("type", "message", "traceback"))
        pickled = bytes.fromhex(fields.get("pickled", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as cause:
        raise MessageError(
            f"a failure must be described by type, message and traceback; got {described[:64]!r}"
        ) from cause
    packed = PackedError(pickled if allow_pickle else b"", kind, message, text.rstrip(), pid)
    replacement = PeerError(f"{peer} failed with {kind}: {message}", pid=pid)
    return unpack_error(packed, replacement=replacement, place="At the other end of the pipe, in")
