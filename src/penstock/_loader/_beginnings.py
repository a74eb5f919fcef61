"""The warning about a loader that is made again for each epoch, and so delivers epoch 0 each time.

A program may make a loader inside its loop over epochs. Each new loader begins with epoch 0. Nothing fails, but the
model sees one order of the data only. So this module records each line of the program whose loader has delivered epoch
0 of a dataset. If the same line makes another loader, and that begins with epoch 0 of an equal dataset, it logs a
warning. There is none for loaders of different lines, which may be compared on purpose, nor for datasets whose epochs
are all alike.
"""

import inspect
import logging
import threading
from collections import OrderedDict
from typing import Final

from penstock._loader._policy import REMEMBERED_LOADERS

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
        if len(_delivered) > REMEMBERED_LOADERS:
            _delivered.popitem(last=False)


def warn_if_repeated(line: str, dataset: str) -> None:
    """Log a warning, once, if a loader that this line made has delivered epoch 0 of an equal dataset."""
    with _lock:
        if _delivered.get((line, dataset), True):
            return
        _delivered[line, dataset] = True
    _logger.warning(
        "the loader made at %s begins with epoch 0, and an earlier loader that the same line made has delivered epoch "
        "0 of an equal dataset; so both have the same order. Make the loader once, before the loop over epochs, and "
        "iterate over it for each; or call loader.load_state_dict(state), or loader.seek(position=0, epoch=epoch)",
        line,
    )
