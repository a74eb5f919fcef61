"""Items that a stage skips (SKIP) or drops after a failure (`DroppedItem`), and the size of an item in bytes."""

import sys
from enum import Enum
from typing import Final

from penstock._frozen import frozen
from penstock._tree import flatten

_PLAIN: Final = frozenset({int, float, bool, complex, str, bytes, bytearray, type(None)})


class Skip(Enum):
    """The type of SKIP. None is an item like any other, so skipping needs a value of its own."""

    SKIP = "SKIP"

    def __repr__(self) -> str:
        return "penstock.pipeline.SKIP"


SKIP: Final = Skip.SKIP
"""The value that a stage's function returns to skip its item.

Example:
    >>> from penstock.pipeline import SKIP, PipelineBuilder
    >>> def odd(number):
    ...     return number if number % 2 else SKIP
    >>> with PipelineBuilder().add_source(range(6)).pipe(odd).add_sink().build(num_threads=1).auto_stop() as pipeline:
    ...     print(list(pipeline))
    [1, 3, 5]
"""


@frozen(eq=False)
class DroppedItem:
    """An item that a stage failed on, and that the pipeline dropped because `max_failures` allows it.

    Attributes:
        stage: the name of the stage.
        item: the stage's input, as a shortened `repr`.
        error: the exception that the stage raised. A note holds its traceback as text; the traceback itself is
            released, since its frames would keep the item and everything made from it alive.

    Example:
        >>> from penstock.pipeline import PipelineBuilder
        >>> builder = PipelineBuilder().add_source([1, 0, 2]).pipe(lambda number: 2 // number, name="divide").add_sink()
        >>> with builder.build(num_threads=1, max_failures=1).auto_stop() as pipeline:
        ...     print(list(pipeline))
        ...     for dropped in pipeline.dropped():
        ...         print(dropped.stage, dropped.item, type(dropped.error).__name__)
        [2, 1]
        divide 0 ZeroDivisionError
    """

    stage: str
    item: str
    error: Exception


def size_of(item: object) -> int:
    """Return the size of an item in bytes: `nbytes` of its arrays, `sys.getsizeof` of its other leaves."""
    if type(item) in _PLAIN:
        return sys.getsizeof(item)
    return sum(_leaf_size(leaf) for leaf in flatten(item)[0])


def _leaf_size(leaf: object) -> int:
    nbytes = getattr(leaf, "nbytes", None)
    return nbytes if isinstance(nbytes, int) else sys.getsizeof(leaf)
