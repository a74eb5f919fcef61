"""The stream of an iterable dataset in a worker, which returns one batch after the other.

Only the worker that iterates over a stream can continue it. If the dataset has a state, the worker sends it with each
batch, and another worker resumes after the last delivered batch.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

from penstock.sources import forget_state, has_state_dict, load_state
from penstock.torch._data_loader._pickling import Sealed
from penstock.torch._data_loader._work._worker import Work


class StreamRequest(NamedTuple):
    """The request for a stream's next batch; a job carries it in place of indices.

    Attributes:
        epoch: the epoch of the stream.
        size: the number of elements; None for one element that isn't batched.
        drop_last: whether a batch that isn't full is left out.
        state: the dataset's state before this batch; None if it is unknown, or the dataset has none.
    """

    epoch: int
    size: int | None
    drop_last: bool
    state: object = None


class StreamedBatch(NamedTuple):
    """A stream's batch.

    Attributes:
        batch: the collated batch; None at the stream's end.
        has_ended: whether the stream has ended.
        state: the dataset's state after the batch; None if it has none.
    """

    batch: object
    has_ended: bool
    state: object = None


class StreamLostError(Exception):
    """The stream was lost with the worker that read it."""


class Stateful(Protocol):
    """A dataset that can save its state and resume from it."""

    def state_dict(self) -> object:
        """Return the state."""
        ...

    def load_state_dict(self, state: object) -> None:
        """Resume from a state: the next iterator begins there."""
        ...


_MAX_KEPT: Final = 4
_KEPT_BYTES: Final = 1 << 26  # batches of this size may not fit into their memory, and are then requested again


class _Stream:
    """This process's stream.

    Attributes:
        epoch: the epoch of the stream.
        elements: the rest of the stream.
        number: the number of its next batch.
        has_ended: whether the stream has ended.
        kept: the last large batches, by number.
    """

    def __init__(self, epoch: int, elements: Iterator[object], number: int) -> None:
        self.epoch = epoch
        self.elements = elements
        self.number = number
        self.has_ended = False
        self.kept: dict[int, Sealed] = {}

    def take(self, wanted: StreamRequest) -> list[object]:
        """Return the next batch's elements; an empty list at the end."""
        self.number += 1
        size = 1 if wanted.size is None else wanted.size
        found = [] if self.has_ended else list(islice(self.elements, size))
        if not found or (len(found) < size and wanted.drop_last):
            self.has_ended = True
            return []
        return found

    def keep(self, number: int, sealed: Sealed) -> None:
        """Keep a batch, if it is large."""
        self.kept.pop(number - _MAX_KEPT, None)
        if sealed.size_bytes >= _KEPT_BYTES:
            self.kept[number] = sealed


_streams: Final[list[_Stream]] = []  # of this process; one at most


def is_stateful(dataset: object) -> TypeGuard[Stateful]:
    """Return whether a dataset has a state, by torchdata's convention."""
    return has_state_dict(dataset)


def streamed(work: Work, wanted: StreamRequest, number: int, *, is_repeated: bool) -> Sealed:
    """Return the next batch of this process's stream. Random generators aren't seeded between batches.

    Args:
        work: the work, with an iterable dataset.
        wanted: the request.
        number: the number of the batch in the stream.
        is_repeated: whether a worker has crashed on this batch.

    Raises:
        StreamLostError: another worker read the stream.
    """
    stream = _stream(work.dataset, wanted, number, is_repeated=is_repeated)
    if number in stream.kept:
        return stream.kept[number]
    if number != stream.number:
        raise StreamLostError
    elements = stream.take(wanted)
    batch: object = None
    try:
        batch = work.collate_fn(elements[0] if wanted.size is None else elements) if elements else None
    except StopIteration:  # torch takes it for the end
        stream.has_ended = True
    state = work.dataset.state_dict() if is_stateful(work.dataset) else None
    sealed = Sealed(StreamedBatch(batch, stream.has_ended, state))
    stream.keep(number, sealed)
    return sealed


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
    _streams[:] = [_Stream(wanted.epoch, iter(iterable), number)]
    return _streams[0]
