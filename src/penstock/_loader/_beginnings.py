"""Epochs 0 that loaders of this program have delivered, by the line that made the loader.

A program that makes a loader inside its loop over epochs gets epoch 0 each time: a new loader knows of no other.
Nothing fails, and the model sees one order of the data only. So a loader that begins with epoch 0, made by the same
line as one that has delivered the epoch 0 of an equal dataset, logs a warning. Loaders that other lines made are meant
to repeat, as in a comparison, and a dataset whose epochs are all alike repeats in any case.
"""

import inspect
import logging
import threading
from collections import OrderedDict
from typing import Final

_MOST: Final = 256
_logger = logging.getLogger("penstock")
_lock: Final = threading.Lock()
_delivered: Final[OrderedDict[tuple[str, str], bool]] = OrderedDict()
"""By the line and the dataset of a loader, oldest first: whether a warning was logged."""


def line_of_caller() -> str:
    """Return the file and the line of the program that called Penstock."""
    frame = inspect.currentframe()
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "penstock":
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def has_delivered(line: str) -> bool:
    """Return whether a loader that this line made has delivered its epoch 0."""
    with _lock:
        return any(known == line for known, _ in _delivered)


def note_delivered(line: str, dataset: str) -> None:
    """Note that a loader that this line made has delivered epoch 0 of a dataset to its end."""
    with _lock:
        _delivered.setdefault((line, dataset), False)
        if len(_delivered) > _MOST:
            _delivered.popitem(last=False)


def warn_if_repeated(line: str, dataset: str) -> None:
    """Log a warning, once, if a loader that this line made has delivered epoch 0 of an equal dataset."""
    with _lock:
        if _delivered.get((line, dataset), True):
            return
        _delivered[line, dataset] = True
    _logger.warning(
        "the loader made at %s begins with epoch 0 of a dataset whose epoch 0 an earlier loader, made by the same "
        "line, has delivered, so it has the same order. Make the loader once, before the loop over epochs, and iterate "
        "over it for each; or call loader.load_state_dict(state), or loader.seek(position=0, epoch=epoch)",
        line,
    )
