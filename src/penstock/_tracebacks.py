"""Tracebacks of users' exceptions, in which one frame of Penstock stands for all of them.

A user's function is called some ten frames below `for batch in loader`, and none of these frames says anything about
the error: its notes name the step, the position and the record. So the traceback that the program gets has the first of
them, and then the user's own. `PENSTOCK_FULL_TRACEBACK=1` keeps all, for work on Penstock itself.

An exception that Penstock's own code raised without being asked for, such as an InternalError or a TypeError that a
frame of Penstock raised itself, keeps all of its frames, since they are needed to find its cause.
"""

import os
from types import TracebackType
from typing import Final, NoReturn

from penstock._caught import raised_by_handler
from penstock.errors import InternalError, PenstockError

FULL: Final = "PENSTOCK_FULL_TRACEBACK"
"""The environment variable that keeps all frames."""


def trim(error: BaseException, *, keeps_first: bool = True) -> None:
    """Remove Penstock's frames from the traceback of an exception that the program is to get.

    Args:
        error: the exception. That of a signal's handler isn't changed: its frames show the place of the interrupt.
        keeps_first: whether the first frame stays; False if the caller raises the exception again, and adds its own.
    """
    if not raised_by_handler(error):
        error.__traceback__ = trimmed(error, keeps_first=keeps_first)


def raise_sent(error: BaseException) -> NoReturn:
    """Raise an exception of the user's that another process raised; its frames are there."""
    try:
        raise error
    finally:
        del error  # its traceback holds this frame


def trimmed(error: BaseException, *, keeps_first: bool = True) -> TracebackType | None:
    """Return an exception's traceback without Penstock's frames, except perhaps the first; it isn't changed."""
    whole = error.__traceback__
    if whole is None or isinstance(error, InternalError) or os.environ.get(FULL, "0") not in {"", "0"}:
        return whole
    entries = [whole]
    while (entry := entries[-1].tb_next) is not None:
        entries.append(entry)
    kept = [entry for entry in entries[1:] if not _is_ours(entry)]
    was_sent = entries[-1].tb_frame.f_code is raise_sent.__code__
    is_own_failure = _is_ours(entries[-1]) and (not kept or not isinstance(error, PenstockError))
    if is_own_failure and not was_sent:
        return whole
    short: TracebackType | None = None
    for entry in reversed([whole, *kept] if keeps_first else kept):
        short = TracebackType(short, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return short


def _is_ours(entry: TracebackType) -> bool:
    return str(entry.tb_frame.f_globals.get("__name__")).partition(".")[0] == "penstock"
