"""An iterable dataset in a worker: one stream, of which the worker gives batch after batch.

Only the worker that has a stream can go on in it. Where the dataset can tell its state, each batch comes with it, and
another worker goes on from the last that was handed out.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol, TypeGuard

from penstock.sources import forget_state, has_state_dict, load_state
from penstock.torch._data_loader._pickling import Sealed
from penstock.torch._data_loader._work._worker import Work


class Wanted(NamedTuple):
    """What is asked of a stream, in the place of indices.

    Attributes:
        epoch: of which the stream is.
        size: how many elements; None for one that isn't batched.
        drop_last: whether a batch that isn't full is left out.
        state: of the dataset, before this batch; None where it isn't known, or it has none.
    """

    epoch: int
    size: int | None
    drop_last: bool
    state: object = None


class Streamed(NamedTuple):
    """What a stream gave.

    Attributes:
        batch: collated; None at the stream's end.
        has_ended: whether it has ended.
        state: of the dataset, after it, if it can tell that.
    """

    batch: object
    has_ended: bool
    state: object = None


class LostError(Exception):
    """The stream ended with the worker that had it."""


class Stateful(Protocol):
    """A dataset that can tell where it is, and go there."""

    def state_dict(self) -> object:
        """Return where it is."""
        ...

    def load_state_dict(self, state: object) -> None:
        """Go to where it was: the next iterator begins there."""
        ...


_MAX_KEPT: Final = 4
_KEPT_BYTES: Final = 1 << 26  # batches from this size on may not fit the memory that they get, and be asked for again


class _Stream:
    """This process's stream.

    Attributes:
        epoch: of which it is.
        elements: what is left of it.
        number: of its next batch.
        has_ended: whether there is none.
        kept: the last large batches, by number.
    """

    def __init__(self, epoch: int, elements: Iterator[object], number: int) -> None:
        self.epoch = epoch
        self.elements = elements
        self.number = number
        self.has_ended = False
        self.kept: dict[int, Sealed] = {}

    def take(self, wanted: Wanted) -> list[object]:
        """Return the next batch's elements; none at the end."""
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
    """Return whether a dataset can tell its state, by torchdata's convention."""
    return has_state_dict(dataset)


def streamed(work: Work, wanted: Wanted, number: int, *, is_repeated: bool) -> Sealed:
    """Return the next batch of this process's stream. Its generators go on from one to the next.

    Args:
        work: with an iterable dataset.
        wanted: what is asked for.
        number: of the batch in the stream.
        is_repeated: whether a worker has died of it.

    Raises:
        LostError: another worker had the stream.
    """
    stream = _stream(work.dataset, wanted, number, is_repeated=is_repeated)
    if number in stream.kept:
        return stream.kept[number]
    if number != stream.number:
        raise LostError
    elements = stream.take(wanted)
    batch: object = None
    try:
        batch = work.collate_fn(elements[0] if wanted.size is None else elements) if elements else None
    except StopIteration:  # an end, to torch
        stream.has_ended = True
    state = work.dataset.state_dict() if is_stateful(work.dataset) else None
    sealed = Sealed(Streamed(batch, stream.has_ended, state))
    stream.keep(number, sealed)
    return sealed


def _stream(dataset: object, wanted: Wanted, number: int, *, is_repeated: bool) -> _Stream:
    stream = _streams[0] if _streams and _streams[0].epoch == wanted.epoch else None
    if stream is not None and (wanted.state is None or number in stream.kept):
        return stream
    if wanted.state is not None and is_stateful(dataset):
        load_state(dataset, wanted.state)
    elif number or (is_repeated and not is_stateful(dataset)):
        raise LostError
    else:
        forget_state(dataset)
    iterable: Any = dataset
    _streams[:] = [_Stream(wanted.epoch, iter(iterable), number)]
    return _streams[0]
