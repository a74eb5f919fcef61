"""The errors that Penstock raises.

    PenstockError
    ├── UsageError (ValueError)        the call was wrong; nothing has started
    │   ├── GraphError                 this dataset cannot be built or run
    │   │   └── NoLengthError (TypeError)      its length is known only after reading, or it has no end
    │   ├── StateError                 this state belongs to another dataset or version
    │   └── AlreadyRunningError (RuntimeError)   start() of a pipeline that runs
    ├── SourceError (OSError)          reading failed; carries the source and the keys
    │   └── CorruptRecordError         the bytes were read but are not a record
    ├── WorkerError                    a worker could not start, died, or hangs; carries exit code or signal
    ├── PeerError (ConnectionError)    the process at the other end of a pipe failed or died; carries its pid
    ├── MessageError (ValueError)      data from another process is not a message that may be read here
    ├── EndOfPipeError (EOFError)      every writer has ended; nothing was lost
    ├── PipelineFailure                a stage of a pipeline failed; the user's exception is its cause
    ├── ClosedError                    you closed it
    ├── MissingDependencyError (ImportError)   carries the extra to install
    └── InternalError                  a bug in Penstock; please report

A user's own exception is none of these: it passes through with its type, and a note names the place. Its traceback has
the frames of the user's code, and one of Penstock's; all of them if the environment variable `PENSTOCK_FULL_TRACEBACK`
is 1.
"""

import functools
from collections.abc import Callable, Sequence


class PenstockError(Exception):
    """The base class of all errors that Penstock defines."""


class UsageError(PenstockError, ValueError):
    """The call was wrong; nothing has started. The message names the rule, the value given and the remedy."""


class GraphError(UsageError):
    """This dataset cannot be built or run as it is described. The message names the step by its chain."""


class NoLengthError(GraphError, TypeError):
    """`len()` of a dataset whose length is known only after reading, or which has no end.

    It is a TypeError too, so that `list(dataset)`, which calls `len()` for a hint, continues without it.
    """


class StateError(UsageError):
    """This state belongs to another dataset or version, or is not a state."""


class AlreadyRunningError(UsageError, RuntimeError):
    """`start()` was called on a pipeline that runs. Stop it before you start it again."""


class SourceError(PenstockError, OSError):
    """Reading records failed.

    Attributes:
        source: the `repr` of the source.
        keys: the requested keys; at most the first eight.
    """

    def __init__(self, message: str, *, source: str = "", keys: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.source = source
        self.keys: tuple[int, ...] = tuple(keys[:8])


class CorruptRecordError(SourceError):
    """The bytes were read, but they are not a record."""


class WorkerError(PenstockError, RuntimeError):
    """A worker could not start, died, or hangs.

    Attributes:
        exit_code: the worker's exit code; negative for a signal; None if it never started, or is a thread.
        has_started: whether the worker was ready for work; if not, no record is the cause.
    """

    def __init__(self, message: str, *, exit_code: int | None = None, has_started: bool = True) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.has_started = has_started


class PeerError(PenstockError, ConnectionError):
    """The process at the other end of a pipe failed, or died before it reported its end.

    Attributes:
        pid: that process's number, or 0 where it is not known.
    """

    def __init__(self, message: str, *, pid: int = 0) -> None:
        super().__init__(message)
        self.pid = pid


class MessageError(PenstockError, ValueError):
    """Data from another process is not a message: truncated, of another version, or not to be unpickled here."""


class EndOfPipeError(PenstockError, EOFError):
    """Every writer of the pipe has ended, and all items that they sent were received."""


class PipelineFailure(PenstockError, RuntimeError):  # noqa: N818 - the name that users of such engines know
    """A stage of a pipeline failed; the items computed before it were delivered. Its `__cause__` is the exception.

    Attributes:
        stage: the name of the stage.
        item: a shortened `repr` of the stage's input when it failed; empty if it had no input.
    """

    def __init__(self, message: str, *, stage: str = "", item: str = "") -> None:
        super().__init__(message)
        self.stage = stage
        self.item = item


class ClosedError(PenstockError, RuntimeError):
    """An object was used after it had been closed."""


class MissingDependencyError(PenstockError, ModuleNotFoundError):
    """An optional dependency is missing.

    Attributes:
        extra: the extra that installs it, as in `pip install 'penstock[extra]'`.
    """

    def __init__(self, what: str, *, extra: str) -> None:
        super().__init__(f"{what} is needed here and is not installed. Run: pip install 'penstock[{extra}]'")
        self._what = what
        self.extra = extra

    def __reduce__(self) -> tuple[Callable[[str], "MissingDependencyError"], tuple[str], dict[str, object]]:
        return functools.partial(MissingDependencyError, extra=self.extra), (self._what,), self.__dict__


class InternalError(PenstockError, RuntimeError):
    """A bug in Penstock; please report it with the traceback."""
