"""The code that runs in a process of a `ProcessExecutor`: the initializer once, then one call after the other."""

import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._processes import PackedError, pack_error
from penstock.errors import WorkerError
from penstock.pipeline._processes._chunks import ChunkCall, PackedOutcomes, load

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

KEPT_FUNCTIONS: Final = 32
"""How many functions a process keeps, so that each is sent and rebuilt once; the oldest is dropped first."""

Function: TypeAlias = Callable[..., object]


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
        return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    raise WorkerError(
        f"what a call in another process returns is pickled; got {type(value).__qualname__}, which can't be: "
        f"{pickling.error!r:.500}"
    ) from pickling.error
