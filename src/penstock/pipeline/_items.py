"""What an item can be besides a value: left out by its stage (SKIP), or dropped because the stage failed on it."""

from enum import Enum
from typing import Final

from penstock._frozen import frozen


class Skip(Enum):
    """The type of SKIP. None is an item like any other, so leaving one out has a value of its own."""

    SKIP = "SKIP"

    def __repr__(self) -> str:
        return "penstock.pipeline.SKIP"


SKIP: Final = Skip.SKIP
"""What a stage's function returns to leave its item out.

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
    """An item that a stage failed on, and which the pipeline was allowed to do without.

    Attributes:
        stage: the name of the stage.
        item: what the stage was given, as a shortened `repr`.
        error: what it raised. A note holds its traceback as text; the traceback itself is released, since its frames
            would keep the item and everything that was made of it.

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
