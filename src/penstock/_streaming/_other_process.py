"""A function's result in another process."""

import sys
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from penstock._caught import Caught
from penstock._pickles import dump, load, pickler, stream_of
from penstock._processes import (
    RestartPolicy,
    Starting,
    Supervisor,
    fixed_seeds,
    has_cloudpickle,
    is_guarded,
    modules_of,
    naming,
    unimportable,
    uses_server,
)

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

ResultT = TypeVar("ResultT")

_Call: TypeAlias = tuple[Callable[..., object], tuple[object, ...]]
_MAX_BYTES: Final = 1 << 28  # of the arguments: arrays in memory are copied twice


def result_elsewhere(function: Callable[..., ResultT], *arguments: object) -> ResultT | None:
    """Return the result of a function in another process.

    Args:
        function: of a module.
        arguments: can be pickled.

    Returns:
        Its result. None if it can't be called there: an argument can't be pickled or is large, something fails there,
        or this system has no fork server.
    """
    if not uses_server(None):
        return None
    with Caught(Exception):
        pickled = _pickled((function, arguments))
        if pickled is not None and not unimportable(stream := bytes(stream_of(memoryview(pickled)))):
            return cast("ResultT | None", _received(pickled, naming(modules_of(stream))))
    return None


def _pickled(value: object) -> bytes | None:
    """Return the block of a pickle with its arrays; None if it would be large."""
    made = dump(value, pickler().dumps)
    if made.nbytes > _MAX_BYTES:
        return None
    block = bytearray(made.nbytes)
    for offset, piece in made.pieces:
        block[offset : offset + len(piece)] = piece
    return bytes(block)


def _received(pickled: bytes, needs: bytes) -> object:
    # With cloudpickle, functions of the script travel by value, and its statements needn't run again.
    starting = Starting(imports_main=not has_cloudpickle() and is_guarded())
    policy = RestartPolicy()
    with closing(Supervisor(_answer, lambda _number, _started: fixed_seeds(), policy=policy, starting=starting)) as own:
        child = own.start("process of check", (needs, pickled))
        child.wait()
        return cast("object", child.pipe.recv())


def _answer(pipe: "Connection[Any, Any]", _needs: bytes, pickled: bytes) -> None:
    """Send the result, or None. The fork server has imported the modules that are needed."""
    result: object = None
    with Caught():
        function, arguments = cast("_Call", load(memoryview(pickled), copied_bytes=sys.maxsize))
        result = function(*arguments)
    pipe.send(result)
