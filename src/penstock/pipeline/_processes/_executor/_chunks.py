"""A stage's function is called for a chunk of items in another process; each item has an outcome of its own.

Guarantees:
  - An item that fails doesn't touch the others of its chunk.
  - An exception comes back as the user's own type, with the traceback of its process as a note.
  - What can't be pickled, items, results or exceptions, is an error that says so, and never breaks the process.
"""

import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

from penstock._caught import Caught
from penstock.concurrency._children._packed_error import PackedError, pack_error, unpack_error
from penstock.errors import UsageError, WorkerError

Outcome: TypeAlias = tuple[bool, object]
"""Whether an item's call succeeded, and its result, or the exception that it raised."""

Op: TypeAlias = Callable[[Any], object]

_Packed: TypeAlias = tuple[bool, object]  # with a PackedError for an exception


def run_chunk(op: Op, items: Iterable[object], *, flatten: bool, begin: Callable[[], object] = bool) -> list[Outcome]:
    """Call a function for each of the items, here.

    Args:
        op: the stage's function.
        items: what to call it with.
        flatten: whether it returns generators, whose values are collected in lists.
        begin: called before each item.

    Returns:
        The outcomes, in the items' order.
    """
    outcomes: list[Outcome] = []
    for item in items:
        begin()
        outcomes.append(_outcome(op, item, flatten=flatten))
    return outcomes


class ChunkCall:
    """A stage's function as processes call it: with a list of items, for packed outcomes.

    It is made once for a stage. The function is pickled once, when it is first sent, and unpickled in each process when
    it is first called there.

    Args:
        op: the stage's function.
        name: of the stage, for messages.
        flatten: whether the function returns generators, whose values are collected in lists.
    """

    def __init__(self, op: Op, name: str, *, flatten: bool) -> None:
        self._op: Op | None = op
        self._name = name
        self._flatten = flatten
        self._pickled = b""

    def __call__(self, items: Sequence[object], begin: Callable[[], object] = bool) -> "PackedOutcomes":
        """Return the outcomes; call `begin` before each item."""
        if self._op is None:
            self._op = cast("Op", load(self._pickled, f"the function of stage {self._name!r}"))
        return PackedOutcomes.of(run_chunk(self._op, items, flatten=self._flatten, begin=begin))

    def __getstate__(self) -> dict[str, object]:
        if not self._pickled:
            self._pickled = dump(self._op, f"the function of stage {self._name!r}")
        return {**vars(self), "_op": None}


class PackedOutcomes:
    """The outcomes of a chunk on their way: pickled where they were made, so that nothing else can fail to be."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @staticmethod
    def of(outcomes: list[Outcome]) -> "PackedOutcomes":
        """Return the outcomes, packed."""
        packed = [_packed(outcome) for outcome in outcomes]
        with Caught():
            return PackedOutcomes(pickle.dumps(packed, protocol=pickle.HIGHEST_PROTOCOL))
        # One of the values can't be pickled: it alone is left out.
        return PackedOutcomes(pickle.dumps([_picklable(outcome) for outcome in packed]))

    def unpack(self) -> list[Outcome]:
        """Return the outcomes.

        Raises:
            WorkerError: a result can't be rebuilt in this process.
        """
        packed = cast("list[_Packed]", load(self.data, "a result"))
        return [
            (False, unpack_error(cast("PackedError", value))) if not succeeded else (True, value)
            for succeeded, value in packed
        ]


def _outcome(op: Op, item: object, *, flatten: bool) -> Outcome:
    with Caught() as calling:
        result = op(item)
        return True, list(cast("Iterable[object]", result)) if flatten else result
    return False, as_exception(calling.error)


def _packed(outcome: Outcome) -> _Packed:
    match outcome:
        case (False, Exception() as error):
            return False, pack_error(error)
        case _:
            return outcome


def _picklable(outcome: _Packed) -> _Packed:
    succeeded, value = outcome
    with Caught() as pickling:
        pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    if pickling.error is None:
        return succeeded, value
    error = WorkerError(
        f"what a stage returns in another process is pickled; got {type(value).__qualname__}, which can't be: "
        f"{pickling.error!r:.500}. Return something else, or run the stage on threads: executor=None"
    )
    error.__cause__ = pickling.error
    return False, pack_error(error)


def as_exception(error: BaseException | None) -> Exception:
    """Return what a user's function raised as an exception that neither ends a process nor, sent on, the program."""
    if isinstance(error, Exception):
        return error
    told = WorkerError(f"a stage's function raised {error!r}")
    told.__cause__ = error
    return told


def dump(value: object, what: str) -> bytes:
    """Return a value pickled for another process.

    Args:
        value: what to pickle.
        what: it is called in the message.

    Raises:
        UsageError: it can't be pickled.
    """
    with Caught() as pickling:
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    pickling.pass_interrupt()
    if isinstance(pickling.error, UsageError):  # a part of it that says so itself
        raise pickling.error
    raise UsageError(
        f"{what} must be picklable to go to another process; got {value!r:.200}, and {pickling.error!r:.500}. Define "
        "it at the top of a module, or run the stage on threads: executor=None"
    ) from pickling.error


def load(pickled: bytes, what: str) -> object:
    """Return the value that was pickled in another process.

    Raises:
        WorkerError: it can't be rebuilt here.
    """
    with Caught() as unpickling:
        return pickle.loads(pickled)
    unpickling.pass_interrupt()
    raise WorkerError(
        f"{what} can't be rebuilt in process {os.getpid()} ({unpickling.error!r:.500}). It must be importable there, "
        "and what it pickles must suffice to make it again"
    ) from unpickling.error
