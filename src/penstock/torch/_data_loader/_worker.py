"""A DataLoader's worker: its start, the exceptions that it sends to the consumer, and its stream.

Exceptions of the user's functions travel as torch sends them, not as `penstock._processes` does. torch raises in the
consumer a new exception of the original type, whose message is the worker's traceback. So `SentError` has the type and
the text only: an exception that can't be pickled, or holds a large batch, keeps its type and isn't sent itself.

The stream of an iterable dataset returns one batch after the other. Only the worker that iterates over it can continue
it. If the dataset has a state, the worker sends the state with each batch, and another worker can resume after the last
delivered batch.
"""

import os
import pickle
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeGuard, cast

import torch

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._only_next import only_next
from penstock._pickles import pickler
from penstock._runtime import NotedError
from penstock._tracebacks import trimmed
from penstock.batching import LayoutMismatchError
from penstock.sources import forget_state, has_state_dict, load_state
from penstock.torch._data_loader._pickling import Arrived, Sealed
from penstock.torch._data_loader._torch_private import (
    SentError,
    become_worker,
    collate_by,
    take_ranks,
    worker_number,
)

_TEXT_CHARACTERS: Final = 50_000  # of a traceback, from its end
_KEPT_BYTES: Final = 1 << 26  # at least, of a batch that may not fit into its memory


@frozen(eq=False)
class UserCode:
    """The user's dataset and functions, which workers call.

    Attributes:
        collate_fn: called with the elements of a batch, or with one element where elements aren't batched.
        init_fn: called with the number of each worker at its start; None for no call.
        is_batched: whether indices come in lists.
        collating: the functions that torch's `default_collate` calls, by type; None for torch's own.
        dataset: the dataset. It is the last field, since only the beginning of a pickle is searched for modules that
            workers need.
    """

    collate_fn: Callable[[Any], Any]
    init_fn: Callable[[int], object] | None
    is_batched: bool
    collating: dict[Any, Any] | None
    dataset: Any

    @property
    def reads_at_once(self) -> bool:
        """Whether the dataset returns all elements of a batch in one call."""
        return self.is_batched and bool(getattr(self.dataset, "__getitems__", None))


@frozen(eq=False)
class Start:
    """The function that each worker calls before its first job.

    Attributes:
        code: the user's dataset and functions: `Sealed` in the consumer, `Arrived` in the worker.
        num_workers: the number of workers.
        base_seed: the base seed of the iterator that the workers serve.
        first: the number of the scheduler's first worker.
        grad: whether the program records gradients, as a fork of it would.
        ranks: the program's rank and the number of ranks in torch.distributed; None without a process group.
        dataset: the name of the dataset's class, for messages.
    """

    code: Sealed | Arrived
    num_workers: int
    base_seed: int
    first: int = 0
    grad: bool = True
    ranks: tuple[int, int] | None = None
    dataset: str = ""

    def __call__(self, place: int) -> int | None:
        """Prepare the worker; return the seed that `worker_init_fn` gave torch's generator, or None if it gave none."""
        number = self.first + place
        torch.set_grad_enabled(self.grad)
        take_ranks(self.ranks)  # before the dataset is there: its __setstate__ may ask for its rank
        code = self._opened()
        collate_by(code.collating)
        become_worker(number, self.num_workers, self.base_seed, code.dataset)
        if code.init_fn is None:
            return None
        before = torch.initial_seed()
        with Caught() as caught:
            code.init_fn(number)
        if isinstance(caught.error, Exception):
            sent_error(caught.error).raise_again()
        elif caught.error is not None:
            raise caught.taken()
        after = torch.initial_seed()
        return None if after == before else after

    def _opened(self) -> UserCode:
        with Caught(Exception) as caught:
            return user_code_of(self.code)
        error = caught.taken()
        error.add_note(
            f"a worker could not rebuild the dataset, of the class {self.dataset}, or a function of the loader from "
            "a pickle, since workers aren't forks of the program. The traceback shows the cause, such as the "
            "`__setstate__` of a class or the import of a module. Open files and connections on first use"
        )
        raise error


def user_code_of(sent: object) -> UserCode:
    """Return the user's dataset and functions, as a worker received them."""
    assert isinstance(sent, Arrived)
    return cast("UserCode", sent.value)


def sent_error(error: BaseException) -> SentError:
    """Return the type and text of an exception, to be sent in its place."""
    lines = traceback.format_exception(type(error), error, trimmed(error))
    text = "".join(lines)[-_TEXT_CHARACTERS:]
    if isinstance(error, Exception):
        return SentError(type(error), text, f"in DataLoader worker process {worker_number()}")
    ended = f"DataLoader worker (pid(s) {os.getpid()}) exited unexpectedly: {type(error).__name__} was raised in it"
    return SentError(RuntimeError, f"{ended}.\nOriginal {text}", "")


@contextmanager
def sending_errors() -> Generator[None]:
    """Send exceptions of the block to the consumer, which raises them with torch's message."""
    with Caught() as caught:
        yield
    if caught.error is None:
        return
    error = caught.taken()
    if isinstance(error, LayoutMismatchError):
        raise error
    raise NotedError(_note(sent_error(error))) from None


def _note(sent: SentError) -> bytes:
    with Caught():
        return bytes(pickler().dumps(sent, protocol=pickle.HIGHEST_PROTOCOL))
    return pickle.dumps(sent._replace(kind=RuntimeError), protocol=pickle.HIGHEST_PROTOCOL)


def received_error(note: bytes) -> SentError | None:
    """Return the exception that `sending_errors` sent; None if the note is of another kind."""
    return pickle.loads(note) if note[:1] == pickle.PROTO else None


class StreamRequest(NamedTuple):
    """The request for a stream's next batch; a job carries it in place of indices.

    Attributes:
        epoch: the epoch of the stream.
        size: the number of elements; None for one element that isn't batched.
        drop_last: whether a batch that isn't full is left out.
        delivered: how many of the stream's batches were certainly delivered when this one was requested.
        state: the dataset's state before this batch; None if it is unknown, or the dataset has none.
    """

    epoch: int
    size: int | None
    drop_last: bool
    delivered: int = 0
    state: object = None


class StreamedBatch(NamedTuple):
    """A stream's batch, or the error in its place.

    Attributes:
        batch: the collated batch.
        is_batch: whether there is one; False at the stream's end.
        has_ended: whether the stream has ended. A batch that isn't full shows that, too.
        state: the dataset's state after the batch; None if it has none.
        error: for `received_error`; empty for none.
    """

    batch: object
    is_batch: bool
    has_ended: bool
    state: object = None
    error: bytes = b""


class StreamLostError(Exception):
    """The stream can't be continued: the worker that read it is gone, or has not kept the batch."""


class Stateful(Protocol):
    """A dataset that can save its state and resume from it."""

    def state_dict(self) -> object:
        """Return the state."""
        ...

    def load_state_dict(self, state: object) -> None:
        """Resume from a state: the next iterator begins there."""
        ...


class _Stream:
    """The stream that this process reads.

    Attributes:
        epoch: the epoch of the stream.
        elements: the remaining elements.
        number: the number of its next batch.
        has_ended: whether the stream has ended.
        kept: batches that may be requested again, by number, or their errors: the first large one that was not
            delivered, which may have had no room, and all after it.
    """

    def __init__(self, epoch: int, elements: Iterator[object], number: int) -> None:
        self.epoch = epoch
        self.elements = elements
        self.number = number
        self.has_ended = False
        self.kept: dict[int, Sealed | Exception] = {}

    def take(self, wanted: StreamRequest) -> list[object]:
        """Return the next batch's elements; an empty list at the end."""
        self.number += 1
        size = 1 if wanted.size is None else wanted.size
        found = [] if self.has_ended else list(islice(self.elements, size))
        self.has_ended = len(found) < size  # an iterator that was read to its end may start again at the next call
        return [] if self.has_ended and wanted.drop_last else found

    def keep(self, number: int, found: Sealed | Exception) -> None:
        """Keep a batch or its error, if it is large or follows one that is kept."""
        if self.kept or _is_large(found):
            self.kept[number] = found

    def forget(self, delivered: int) -> None:
        """Forget the batches before the first large one that was not delivered."""
        for number, found in list(self.kept.items()):
            if number >= delivered and _is_large(found):
                return
            del self.kept[number]


def _is_large(found: Sealed | Exception) -> bool:
    return isinstance(found, Sealed) and found.size_bytes >= _KEPT_BYTES


_streams: Final[list[_Stream]] = []  # this process's stream, if it reads one


def is_stateful(dataset: object) -> TypeGuard[Stateful]:
    """Return whether a dataset has a state, by torchdata's convention."""
    return has_state_dict(dataset)


def streamed(code: UserCode, wanted: StreamRequest, number: int, *, is_repeated: bool) -> Sealed:
    """Return the next batch of this process's stream. Random generators aren't seeded between batches.

    Args:
        code: the user's functions, and an iterable dataset.
        wanted: the request.
        number: the number of the batch in the stream.
        is_repeated: whether a worker has crashed on this batch.

    Raises:
        StreamLostError: another worker has read the stream, or a part of it.
    """
    stream = _stream(code.dataset, wanted, number, is_repeated=is_repeated)
    stream.forget(wanted.delivered)
    known = stream.kept.get(number)
    if isinstance(known, Exception):
        raise known
    if known is not None:
        return known
    if number != stream.number:
        raise StreamLostError
    try:
        found = _taken(stream, code, wanted)
    except Exception as error:
        stream.keep(number, error)
        raise
    stream.keep(number, found)
    return found


def _taken(stream: _Stream, code: UserCode, wanted: StreamRequest) -> Sealed:
    """Return the next batch of a stream, or the error in its place, each with the dataset's state after it."""
    batch, is_batch = None, False
    with Caught(Exception) as reading:
        elements = stream.take(wanted)
        is_batch = bool(elements)
        try:
            batch = code.collate_fn(elements[0] if wanted.size is None else elements) if is_batch else None
        except StopIteration:  # from collate_fn: in torch, too, it ends the stream
            is_batch, stream.has_ended = False, True
    state = code.dataset.state_dict() if is_stateful(code.dataset) else None
    with Caught(Exception) as pickling:
        if reading.error is None:
            return Sealed(StreamedBatch(batch, is_batch, stream.has_ended, state))
    if getattr(stream.elements, "gi_frame", stream) is None:
        stream.has_ended = True  # a generator ends as it raises, while a new one with the state would go on
    error = _note(sent_error((pickling if reading.error is None else reading).taken()))
    return Sealed(StreamedBatch(None, is_batch=False, has_ended=stream.has_ended, state=state, error=error))


def _stream(dataset: object, wanted: StreamRequest, number: int, *, is_repeated: bool) -> _Stream:
    stream = _streams[0] if _streams and _streams[0].epoch == wanted.epoch else None
    if stream is not None and (wanted.state is None or number in stream.kept):
        return stream
    if wanted.state is not None and is_stateful(dataset):
        load_state(dataset, wanted.state)
    elif number or (is_repeated and not is_stateful(dataset)):
        raise StreamLostError
    else:
        forget_state(dataset)
    iterable: Any = dataset
    _streams[:] = [_Stream(wanted.epoch, only_next(iter(iterable)), number)]
    return _streams[0]
