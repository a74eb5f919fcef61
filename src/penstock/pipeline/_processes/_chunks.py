"""The code that runs in the processes of executors: calls of a stage's function for chunks of items.

Each item has an outcome of its own. In a process of a `ProcessExecutor`, `serve` calls the initializer once, then does
one call after the other; processes of the user's pools call `run_chunk` through `_remote`.

Guarantees:
  - An item that fails doesn't affect the others of its chunk.
  - An exception comes back as the user's own type, with the traceback of its process as a note; also one that is no
    Exception, such as SystemExit, which ends neither the process nor a thread of a pool.
  - Items, results and exceptions that can't be pickled become errors that say so, and never break the process. The
    results of a chunk have one pickle, since they may share objects; so if one of them can't be rebuilt, none can, and
    the whole call fails.
  - A generator is pulled in steps of a few milliseconds where its process can be asked again: between two of them it is
    kept there, and the process does other calls.
"""

import itertools
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from penstock._caught import Caught, CaughtFailure
from penstock._frozen import frozen
from penstock._only_next import only_next
from penstock._pickles import dumps
from penstock._processes import PackedError, pack_error, unpack_raised
from penstock.errors import UsageError, WorkerError
from penstock.pipeline._items import size_of
from penstock.pipeline._tuning import SLOW_CHUNK_SECONDS

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

Outcome: TypeAlias = tuple[bool, object]
"""Whether an item's call succeeded, and its result, or the exception that it raised."""

Op: TypeAlias = Callable[[Any], object]
Function: TypeAlias = Callable[..., object]

KEPT_FUNCTIONS: Final = 32
"""The number of functions that a process keeps, so that each is sent and rebuilt once; the oldest is dropped first."""

_STEP_SECONDS: Final = 0.002
_STEP_VALUES: Final = 1024
_STEP_BYTES: Final = 16 << 20


@dataclass(slots=True)
class Values:
    """The values that an item's generator has yielded, up to its end or to the end of a step.

    Attributes:
        outcomes: the values, and last, if it raised, the exception.
        token: of the generator in the process that keeps it, if it has not ended.
        worker: that process, as its parent knows it.
    """

    outcomes: list[Outcome]
    token: int | None = None
    worker: object = None


_kept: dict[int, Iterator[object]] = {}  # by token, of this process
_tokens = itertools.count()

_Packed: TypeAlias = tuple[bool, object]  # with a PackedError for an exception


def run_chunk(
    op: Op,
    items: Iterable[object],
    *,
    flatten: bool,
    in_steps: bool = False,
    begin: Callable[[], object] = bool,
) -> list[Outcome]:
    """Call a function for each of the items, here.

    Args:
        op: the stage's function.
        items: the items.
        flatten: whether it returns generators, whose results are `Values`.
        in_steps: whether a generator is left when a step is over; the items behind it are not begun then.
        begin: called before each item.

    Returns:
        The outcomes, in the items' order. If the call takes long, it ends with the current item.
    """
    until = perf_counter() + SLOW_CHUNK_SECONDS
    outcomes: list[Outcome] = []
    for item in items:
        begin()
        outcomes.append(_outcome(op, item, flatten=flatten, in_steps=in_steps))
        if _is_open(outcomes[-1]) or perf_counter() > until:
            break
    return outcomes


def _is_open(outcome: Outcome) -> bool:
    return isinstance(outcome[1], Values) and outcome[1].token is not None


def step_generator(token: int) -> "PackedOutcomes":
    """Return the outcomes of the next step of a generator that is kept in this process."""
    return PackedOutcomes.of([(True, _pulled(_kept.pop(token), in_steps=True))])


def close_generator(token: int) -> None:
    """Close a generator that is kept in this process; an exception that it raises then is dropped."""
    iterator = _kept.pop(token)
    with Caught():
        getattr(iterator, "close", bool)()


def _pulled(iterator: Iterator[object], *, in_steps: bool) -> Values:
    outcomes: list[Outcome] = []
    until, held = perf_counter() + _STEP_SECONDS, 0
    with Caught() as caught:
        for value in only_next(iterator):
            outcomes.append((True, value))
            if in_steps:
                held += size_of(value)
                if len(outcomes) >= _STEP_VALUES or held >= _STEP_BYTES or perf_counter() > until:
                    token = next(_tokens)
                    _kept[token] = iterator
                    return Values(outcomes, token)
    if caught.error is not None:
        outcomes.append((False, caught.error))
    return Values(outcomes)


class ChunkCall:
    """A stage's function as processes call it: with a list of items, for packed outcomes.

    It is made once for a stage, and again for a pass before which the function's state has changed. The function is
    pickled when it is first sent, and unpickled in each process when it is first called there.

    Args:
        op: the stage's function.
        name: of the stage, for messages.
        flatten: whether the function returns generators, whose results are `Values`.
        in_steps: whether a generator is left when a step is over.
    """

    def __init__(self, op: Op, name: str, *, flatten: bool, in_steps: bool = False) -> None:
        self._op: Op | None = op
        self._name = name
        self._flatten = flatten
        self._in_steps = in_steps
        self._pickled = b""

    def __call__(self, items: Sequence[object], begin: Callable[[], object] = bool) -> "PackedOutcomes":
        """Return the outcomes; call `begin` before each item."""
        if self._op is None:
            self._op = cast("Op", load(self._pickled, f"the function of stage {self._name!r}"))
        outcomes = run_chunk(self._op, items, flatten=self._flatten, in_steps=self._in_steps, begin=begin)
        return PackedOutcomes.of(outcomes)

    def equals(self, other: "ChunkCall") -> bool:
        """Return whether two calls have the same function in the same state; False if it can't be pickled."""
        with Caught(Exception):
            return self.pickled_op() == other.pickled_op()
        return False

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_op": None, "_pickled": self.pickled_op()}

    def pickled_op(self) -> bytes:
        """Return the function's pickle, which is made once."""
        if not self._pickled:
            self._pickled = dump(self._op, f"the function of stage {self._name!r}")
        return self._pickled


class PackedOutcomes:
    """The outcomes of a chunk on their way: pickled where they were made, so that nothing else can fail to be.

    Attributes:
        data: the outcomes, pickled.
        worker: the process that they came from, if it takes calls for kept generators.
    """

    __slots__ = ("data", "worker")

    def __init__(self, data: bytes, worker: object = None) -> None:
        self.data = data
        self.worker = worker

    @staticmethod
    def of(outcomes: list[Outcome]) -> "PackedOutcomes":
        """Return the outcomes, packed."""
        packed = [_packed(outcome) for outcome in outcomes]
        with Caught():
            return PackedOutcomes(dumps(packed))
        # One of the values can't be pickled: it alone is left out.
        return PackedOutcomes(dumps([_picklable(outcome) for outcome in packed]))

    def unpack(self) -> list[Outcome]:
        """Return the outcomes.

        Raises:
            WorkerError: a result can't be rebuilt in this process.
        """
        return [self._unpacked(packed) for packed in cast("list[_Packed]", load(self.data, "a result"))]

    def _unpacked(self, packed: _Packed) -> Outcome:
        match packed:
            case (False, value):
                return False, unpack_raised(cast("PackedError", value))
            case (True, Values(outcomes, token)):
                return True, Values([self._unpacked(each) for each in outcomes], token, self.worker)
            case _:
                return packed


def _outcome(op: Op, item: object, *, flatten: bool, in_steps: bool) -> Outcome:
    with Caught() as calling:
        result = op(item)
        return True, _pulled(iter(cast("Iterable[object]", result)), in_steps=in_steps) if flatten else result
    return False, calling.error


def _packed(outcome: Outcome) -> _Packed:
    match outcome:
        case (False, BaseException() as error):
            return False, pack_error(error)
        case (True, Values(outcomes, token)):
            return True, Values([_packed(each) for each in outcomes], token)
        case _:
            return outcome


def _picklable(outcome: _Packed) -> _Packed:
    succeeded, value = outcome
    if isinstance(value, Values):
        return True, Values([_picklable(each) for each in value.outcomes], value.token)
    with Caught() as pickling:
        dumps(value)
    if pickling.error is None:
        return succeeded, value
    error = WorkerError(
        f"what a stage returns in another process is pickled; got {type(value).__qualname__}, which can't be: "
        f"{pickling.error!r:.500}. Return something else, or run the stage on threads: executor=None"
    )
    error.__cause__ = pickling.error
    return False, pack_error(error)


def as_exception(error: BaseException | None) -> Exception:
    """Return the exception of the call of a whole chunk, as one that every future can raise.

    A StopIteration is refused by futures of asyncio, a CancelledError is taken for the cancellation of the task that
    awaits the future, and an exception that is no Exception would end the program.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError):
        return error
    replacement = WorkerError(f"the executor of a stage raised {error!r}")
    replacement.__cause__ = error
    return replacement


def dump(value: object, what: str) -> bytes:
    """Return a value pickled for another process.

    Args:
        value: the value.
        what: its name in the message.

    Raises:
        UsageError: it can't be pickled.
    """
    with CaughtFailure() as pickling:
        return dumps(value)
    if isinstance(pickling.error, UsageError):  # a part of it that says so itself
        raise pickling.error
    raise UsageError(
        f"{what} must be picklable to go to another process; got {value!r:.200}, and {pickling.error!r:.500}. Define "
        "it at the top of a module, or run the stage on threads: executor=None"
    ) from pickling.error


def load(pickled: bytes, what: str, loads: Callable[[bytes], object] = pickle.loads) -> object:
    """Return the value that was pickled in another process.

    Args:
        pickled: the pickle.
        what: its name in the message.
        loads: unpickles it. Default `pickle.loads`.

    Raises:
        WorkerError: it can't be rebuilt here.
    """
    with CaughtFailure() as unpickling:
        return loads(pickled)
    raise WorkerError(
        f"{what} can't be rebuilt in process {os.getpid()} ({unpickling.error!r:.500}). It must be importable there, "
        "and what it pickles must suffice to make it again"
    ) from unpickling.error


# -- a process of a `ProcessExecutor`


class Request(NamedTuple):
    """The message before the pickled arguments of a call.

    Attributes:
        function: the number of the function.
        pickled: the function itself, when it is first sent.
    """

    function: int
    pickled: bytes | None


@frozen
class Answer:
    """The answer to a call, before the result itself.

    Attributes:
        error: the exception that the call raised; None if a pickled result follows.
        packed: whether the result is a `PackedOutcomes`.
    """

    error: PackedError | None
    packed: bool = False


def serve(requests: "Connection[Any, Any]", setup: bytes, progress: "Connection[Any, Any]") -> None:
    """Answer the parent's requests until it sends an empty one, or has ended.

    Args:
        requests: this process's side of the pipe.
        setup: the initializer and its arguments.
        progress: gets a byte for each item of a chunk, before it is begun.
    """
    descriptor = progress.fileno()
    functions: dict[int, Function] = {}
    with suppress(EOFError, OSError):
        _initialize(requests, setup)
        while head := requests.recv_bytes():
            _answer(requests, head, functions, lambda: os.write(descriptor, b"."))


def _initialize(requests: "Connection[Any, Any]", setup: bytes) -> None:
    with Caught() as caught:
        initializer, arguments = pickle.loads(setup)
        if initializer is not None:
            initializer(*arguments)
    requests.send_bytes(pickle.dumps(Answer(None if caught.error is None else pack_error(caught.error))))
    if caught.error is None:
        requests.send_bytes(b"")


def _answer(
    requests: "Connection[Any, Any]", head: bytes, functions: dict[int, Function], begin: Callable[[], object]
) -> None:
    # A function of its own, so that an idle process keeps neither arguments nor result.
    request: Request = pickle.loads(head)
    arguments = requests.recv_bytes()
    answer, result = Answer(None), b""
    with Caught() as caught:
        function = _function(request, functions)
        given = cast("tuple[Any, ...]", load(arguments, "what a call is given"))
        value = function(given[0], begin) if isinstance(function, ChunkCall) else function(*given)
        if isinstance(value, PackedOutcomes):
            answer, result = Answer(None, packed=True), value.data
        else:
            result = _pickled(value)
    if caught.error is not None:
        requests.send_bytes(pickle.dumps(Answer(pack_error(caught.error))))
        return
    requests.send_bytes(pickle.dumps(answer))
    requests.send_bytes(result)


def _function(request: Request, functions: dict[int, Function]) -> Function:
    if request.pickled is not None:
        keep(functions, request.function, _missing)
        functions[request.function] = cast("Function", load(request.pickled, "the function of a call"))
    return functions[request.function]


def keep(functions: "dict[int, Any]", number: int, function: object) -> None:
    """Keep a function; both ends of the pipe do so in the same order, so that they keep the same ones."""
    functions[number] = function
    while len(functions) > KEPT_FUNCTIONS:
        del functions[next(iter(functions))]


def _missing(*_: object) -> object:
    raise WorkerError("the function of this call could not be rebuilt in this process when it was first sent")


def _pickled(value: object) -> bytes:
    with Caught() as pickling:
        return dumps(value)
    raise WorkerError(
        f"what a call in another process returns is pickled; got {type(value).__qualname__}, which can't be: "
        f"{pickling.error!r:.500}"
    ) from pickling.error
