"""The messages between the process of a pipeline and its parent.

Items, and the ends of passes and runs, come through the tensor pipe, each as `(run, word, content)`; by the run the
parent recognizes items that were on their way when a new run began. Everything else goes through a pipe of small
pickled messages; an empty one from the parent means the end.
"""

from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple

from penstock._frozen import frozen
from penstock._processes import PackedError
from penstock.pipeline._config import PipelineConfig
from penstock.pipeline._statistics._report import PipelineReport


class Word(IntEnum):
    """The kind of a message of the tensor pipe."""

    ITEM = 0
    END_OF_PASS = 1  # of a continuous source: the next pass follows
    END = 2
    FAILED = 3  # the content is a pickled PackedError


class Setup(NamedTuple):
    """The pipeline that the process runs, and its settings.

    Attributes:
        config: the pipeline.
        num_threads: as in `build_pipeline`.
        max_failures: as in `build_pipeline`.
        statistics: as in `build_pipeline`.
        address: of the parent's end of the tensor pipe.
        capacity: how many items may be on their way.
    """

    config: PipelineConfig
    num_threads: int
    max_failures: int | Fraction
    statistics: bool
    address: str
    capacity: int


class Begin(NamedTuple):
    """Begin a run, which ends the one before.

    Attributes:
        run: its number.
    """

    run: int


class Read(NamedTuple):
    """A pass of a run is being read.

    Attributes:
        run: the run's number.
        passes: how many of its passes the reader has begun to read.
    """

    run: int
    passes: int


class Look(NamedTuple):
    """Request the drops and statistics so far.

    Attributes:
        number: of the question.
    """

    number: int


@frozen
class Seen:
    """The answer to `Look`, and the last message of a process that ends by a command.

    Attributes:
        number: of the question; -1 for the last word.
        dropped: stage, item and error of each item that was dropped and is kept.
        report: None without statistics.
        failure: the failure that ended the last run, whose message may not have been read.
        failed_run: the number of that run.
    """

    number: int
    dropped: tuple[tuple[str, str, PackedError], ...]
    report: PipelineReport | None
    failure: PackedError | None = None
    failed_run: int = 0
