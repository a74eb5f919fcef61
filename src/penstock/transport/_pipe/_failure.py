"""An exception goes to the other end of a pipe: as itself between processes that trust each other, else as text."""

import contextlib
import json
import pickle
import traceback
from typing import Any, Final

from penstock.errors import MessageError, PeerError

_MESSAGE_CHARACTERS: Final = 2_000
_TEXT_CHARACTERS: Final = 10_000  # of a traceback, from its end: deep recursion makes them as long as a book
_PICKLED_BYTES: Final = 16_384  # all must fit into the socket at once: who fails does not wait
_REMOTE: Final = "At the other end of the pipe"


def pack_failure(error: BaseException, *, allow_pickle: bool) -> bytes:
    """Return a description of an exception, with the exception itself where that may be pickled and can be."""
    text = "".join(traceback.format_exception(error))
    described: dict[str, Any] = {
        "type": type(error).__qualname__,
        "message": _words(error)[:_MESSAGE_CHARACTERS],
        "traceback": text[-_TEXT_CHARACTERS:],
    }
    if allow_pickle:
        with contextlib.suppress(Exception):  # it may refuse in any way; it is described then
            pickled = pickle.dumps(error)
            pickle.loads(pickled)  # exceptions often pickle well and then can't be built again
            if len(pickled) <= _PICKLED_BYTES:
                described["pickled"] = pickled.hex()
    return json.dumps(described).encode()


def unpack_failure(described: bytes, *, who: str, pid: int, allow_pickle: bool) -> Exception:
    """Return the exception to raise for a failure at the other end.

    Args:
        described: what `pack_failure` returned there.
        who: what the other end is called: "the writer".
        pid: its process.
        allow_pickle: whether it is trusted.

    Returns:
        The original exception, with the traceback there as a note; else a PeerError that tells type, message and
        traceback.

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
    original: object = None
    if allow_pickle and pickled:
        with contextlib.suppress(Exception):  # its class may not exist here; then it is told in words
            original = pickle.loads(pickled)
    error = original if isinstance(original, Exception) else PeerError(f"{who} failed with {kind}: {message}", pid=pid)
    error.add_note(f"{_REMOTE}, in process {pid}:\n{text.rstrip()}")
    return error


def _words(error: BaseException) -> str:
    with contextlib.suppress(Exception):  # a user's __str__ may fail; the type still tells something
        return str(error)
    return "(no message)"
