"""An exception goes to another process: as itself where pickle can rebuild it there, else in words."""

import os
import pickle
import sys
import traceback
from typing import Any, Final, TypeVar

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock.errors import WorkerError

Raised = TypeVar("Raised", bound=BaseException)

_TEXT_CHARACTERS: Final = 10_000  # of a traceback, from its end: deep recursion makes them as long as a book
_WORDS_CHARACTERS: Final = 2_000


@frozen
class PackedError:
    """An exception on its way.

    Attributes:
        pickled: the exception; empty where it can't be pickled and rebuilt.
        description: its type and words.
        traceback: where it was raised, as text; empty where its cause tells.
        pid: the process that it was raised in.
        cause: the exception's cause, where that is sent too.
    """

    pickled: bytes
    description: str
    traceback: str
    pid: int
    cause: "PackedError | None" = None


def pack_error(error: BaseException, *, with_cause: bool = False) -> PackedError:
    """Return an exception as it is sent.

    Args:
        error: the exception.
        with_cause: whether its cause is sent as an exception too, and not only as a part of the traceback.

    Returns:
        The packed exception.
    """
    pickled = b""
    with Caught():  # it may refuse in any way; it is told in words then
        # It is loaded where functions of scripts arrived by value: so did their exceptions' types, and so they return.
        pickles: Any = sys.modules.get("cloudpickle", pickle)
        tried = bytes(pickles.dumps(error, protocol=pickle.HIGHEST_PROTOCOL))
        # Exceptions often pickle well, and then can't be built again, or become something else.
        if type(pickle.loads(tried)) is type(error):
            pickled = tried
    cause = error.__cause__ if with_cause else None
    description, text = error_text(error)
    if cause is None:
        return PackedError(pickled, description, text, os.getpid())
    return PackedError(pickled, description, "", os.getpid(), pack_error(cause))


def error_text(error: BaseException) -> tuple[str, str]:
    """Return an exception's type and words, and its traceback from some place on, whatever its class does."""
    words, text = "(its __str__ failed)", ""
    with Caught():
        words = str(error)[:_WORDS_CHARACTERS]
    with Caught():  # formatting calls __str__, too
        text = "".join(traceback.format_exception(error))[-_TEXT_CHARACTERS:].rstrip()
    return f"{type(error).__qualname__}: {words}", text


def unpack_raised(packed: PackedError) -> BaseException:
    """Return what was raised in another process, of any kind, to be the cause of an error that is raised here.

    Returns:
        The exception itself, with the traceback there as a note; a WorkerError with its description where it can't be
        rebuilt.
    """
    return _unpacked(packed, BaseException)


def unpack_error(packed: PackedError) -> Exception:
    """Return the exception to raise for what was packed in another process.

    Returns:
        The exception itself, with the traceback there as a note; a WorkerError with its description where it can't be
        rebuilt, and where it is none that functions should raise, such as SystemExit.
    """
    return _unpacked(packed, Exception)


def _unpacked(packed: PackedError, kind: type[Raised]) -> Raised | WorkerError:
    original: object = None
    if packed.pickled:
        with Caught() as caught:  # its class may not exist here
            original = pickle.loads(packed.pickled)
        caught.pass_interrupt()
    raised = f"process {packed.pid} raised {packed.description}"
    error = original if isinstance(original, kind) else WorkerError(raised)
    if packed.cause is not None:
        error.__cause__ = unpack_raised(packed.cause)
    if packed.traceback:
        error.add_note(f"In process {packed.pid}:\n{packed.traceback}")
    return error
