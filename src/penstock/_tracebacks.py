"""Tracebacks of users' exceptions, without Penstock's frames but the first.

About ten frames of Penstock are between `for batch in loader` and a user's function. None of them helps to find an
error of that function: the exception's notes name the step, the position and the record. So `trim` removes them from
the traceback, except the first, and the program sees the frames of its own functions. `PENSTOCK_FULL_TRACEBACK=1` keeps
all frames, for work on Penstock itself.

An exception that a frame of Penstock raised keeps all of its frames, because they are needed to find its cause. But if
a user's function called Penstock wrongly, and so raised a PenstockError other than InternalError, its own frames show
the cause.
"""

import os
from types import TracebackType
from typing import Final, NoReturn

from penstock._caught import raised_by_handler
from penstock.errors import InternalError, PenstockError

FULL: Final = "PENSTOCK_FULL_TRACEBACK"
"""The environment variable that keeps all frames."""


def trim(error: BaseException, *, keeps_first: bool = True) -> None:
    """Remove Penstock's frames from the traceback of an exception before it reaches the program.

    Args:
        error: the exception. One that a signal's handler raised isn't changed: its frames show the interrupted place.
        keeps_first: whether the first frame stays. False is for a caller that raises the exception again, which adds
            the caller's frame.
    """
    if not raised_by_handler(error):
        BaseException.with_traceback(error, trimmed(error, keeps_first=keeps_first))  # a subclass may refuse attributes


def raise_caught(error: BaseException) -> NoReturn:
    """Raise a user's exception that was caught in another process or an earlier call; `trimmed` ignores this frame."""
    try:
        raise error
    finally:
        del error  # its traceback holds this frame


def trimmed(error: BaseException, *, keeps_first: bool = True) -> TracebackType | None:
    """Return an exception's traceback without Penstock's frames, or with the first; the exception isn't changed."""
    whole = error.__traceback__
    if whole is None or isinstance(error, InternalError) or os.environ.get(FULL, "0") not in {"", "0"}:
        return whole
    entries = [whole]
    while (entry := entries[-1].tb_next) is not None:
        entries.append(entry)
    kept = [entry for entry in entries[1:] if not _is_ours(entry)]
    was_caught = entries[-1].tb_frame.f_code is raise_caught.__code__
    is_own_failure = _is_ours(entries[-1]) and (not kept or not isinstance(error, PenstockError))
    if is_own_failure and not was_caught:
        return whole
    short: TracebackType | None = None
    for entry in reversed([whole, *kept] if keeps_first else kept):
        short = TracebackType(short, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return short


def _is_ours(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__")).partition(".")[0] == "penstock"
