"""Exceptions that travel: from a child process to its parent, and between the two ends of a tensor pipe.

The problem: an exception that one process raises has to be raised again in another. Pickle loses its traceback and its
cause. Many exceptions pickle well and can't be rebuilt, or are rebuilt as something else; others can't be pickled, or
their class doesn't exist in the other process. And all code of a user's exception may fail itself: `__reduce__`,
`__setstate__`, `__str__`.

The solution: `pack_error` rebuilds the pickle at once, where it was made, and keeps it only if it gives an exception of
the same type. Beside it, the exception always travels as text: its type, its message, and the traceback. The receiver
rebuilds the exception and adds the traceback as a note; where it can't, it raises an error that consists of the text.

Rejected: sending the text alone, since callers catch exceptions by their type; pickling traceback objects, since frames
hold the user's arrays and can't be pickled; a class for each user of this module, as there was once.

Guarantees:
  - Packing and unpacking always succeed, whatever the exception's class does.
  - The receiver gets an exception of the original type, with its notes, or an error that names type and message.
  - Text is bounded: at most 2,000 characters of a message and the last 10,000 of a traceback.
  - Ctrl-C in the main thread of the receiver is raised, and never taken for a failure to unpack.
"""

import os
import pickle
import sys
import traceback
from typing import Final, TypeVar, cast

from penstock._caught import Caught, CaughtFailure, add_note
from penstock._frozen import frozen
from penstock._pickles import pickler
from penstock._tracebacks import trimmed
from penstock.errors import InternalError, PenstockError, WorkerError

Raised = TypeVar("Raised", bound=BaseException)

_TRACEBACK_CHARACTERS: Final = 10_000  # from its end: deep recursion makes tracebacks as long as a book
_MESSAGE_CHARACTERS: Final = 2_000


@frozen
class PackedError:
    """An exception, ready to be sent.

    Attributes:
        pickled: the exception; empty if it can't be pickled and rebuilt, or wasn't to be pickled.
        kind: the qualified name of its type.
        message: its `str`.
        traceback: the traceback as text; empty if the cause has it.
        pid: the process that packed it.
        cause: the exception's cause, if that is sent as an exception too.
    """

    pickled: bytes
    kind: str
    message: str
    traceback: str
    pid: int
    cause: "PackedError | None" = None


def pack_error(
    error: BaseException,
    *,
    with_cause: bool = False,
    with_pickle: bool = True,
    contain: type[BaseException] = BaseException,
) -> PackedError:
    """Return an exception, ready to be sent.

    Args:
        error: the exception.
        with_cause: whether its cause is sent as an exception too, and not only as a part of the traceback.
        with_pickle: whether the receiver may unpickle.
        contain: exceptions of this type that pickling or formatting raises are contained. Outside of child processes
            it must be Exception, so that Ctrl-C is not lost.

    Returns:
        The packed exception.
    """
    pickled = b""
    if with_pickle:
        with Caught(contain):
            # Loaded where functions of a script arrived by value: the types of their exceptions return so, too.
            dumps = pickler().dumps if "cloudpickle" in sys.modules else pickle.dumps
            tried = bytes(dumps(error, protocol=pickle.HIGHEST_PROTOCOL))
            if type(pickle.loads(tried)) is type(error):
                pickled = tried
    kind = type(error).__qualname__
    message, text = _texts(error, contain)
    cause = error.__cause__ if with_cause else None
    if cause is None:
        return PackedError(pickled, kind, message, text, os.getpid())
    packed_cause = pack_error(cause, with_pickle=with_pickle, contain=contain)
    return PackedError(pickled, kind, message, "", os.getpid(), packed_cause)


def error_text(error: BaseException) -> tuple[str, str]:
    """Return an exception's type and message in one line, and its traceback, even if its `__str__` fails."""
    message, text = _texts(error, BaseException)
    return f"{type(error).__qualname__}: {message}", text


def without_frames(error: Raised, place: str) -> Raised:
    """Return an exception that can be kept: its traceback becomes a note, as if another process had sent it.

    Frames keep their variables, and the frames that called them. With a traceback, a loader that keeps an error would
    keep itself, and its processes would run on when the program drops it.

    Args:
        error: the exception; it is changed.
        place: begins the note; "process", the pid and the traceback follow.
    """
    notes = getattr(error, "__notes__", [])
    notes[:] = [note for note in notes if not note.startswith(place)]  # of the same object, raised before
    if isinstance(error, InternalError) or not isinstance(error, PenstockError):
        _, text = _texts(error, Exception)
        add_note(error, f"{place} process {os.getpid()}:\n{text}")
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        each = chain.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            BaseException.with_traceback(each, None)  # a subclass may refuse to have attributes set
            chain += [each.__cause__, each.__context__]
            if isinstance(each, BaseExceptionGroup):
                chain += cast("BaseExceptionGroup[BaseException]", each).exceptions
    return error


def _texts(error: BaseException, contain: type[BaseException]) -> tuple[str, str]:
    message, text = "(its __str__ failed)", ""
    with Caught(contain):
        message = str(error)[:_MESSAGE_CHARACTERS]
    with Caught(contain):  # formatting calls __str__, too
        lines = traceback.format_exception(type(error), error, trimmed(error))
        text = "".join(lines)[-_TRACEBACK_CHARACTERS:].rstrip()
    return message, text


def unpack_raised(packed: PackedError, *, place: str = "In") -> BaseException:
    """Return an exception of any kind that another process raised, such as SystemExit.

    Args:
        packed: the exception, as it arrived.
        place: begins the note; "process", the pid and the traceback follow.

    Returns:
        The exception itself, with the other process's traceback as a note; a WorkerError that names its type and
        message if it can't be rebuilt.
    """
    return _unpack(packed, BaseException, None, place)


def unpack_error(packed: PackedError, *, replacement: Exception | None = None, place: str = "In") -> Exception:
    """Return the exception to raise for one that another process raised.

    Args:
        packed: the exception, as it arrived.
        replacement: returned if the exception can't be rebuilt, or is none that functions should raise, such as
            SystemExit. Default: a WorkerError that names its type and message.
        place: begins the note; "process", the pid and the traceback follow.

    Returns:
        The exception itself, or the replacement, with the other process's traceback as a note.
    """
    return _unpack(packed, Exception, replacement, place)


def _unpack(packed: PackedError, kind: type[Raised], replacement: Exception | None, place: str) -> Raised | Exception:
    original: object = None
    if packed.pickled:
        with CaughtFailure():  # its class may not exist here
            original = pickle.loads(packed.pickled)
    if replacement is None:
        replacement = WorkerError(f"process {packed.pid} raised {packed.kind}: {packed.message}")
    error = original if isinstance(original, kind) else replacement
    if packed.cause is not None:
        object.__setattr__(error, "__cause__", unpack_raised(packed.cause))  # its class may refuse to set attributes
    if packed.traceback:
        add_note(error, f"{place} process {packed.pid}:\n{packed.traceback}")
    return error
