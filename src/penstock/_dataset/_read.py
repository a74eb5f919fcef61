"""Functions that make a dataset of a source, a range of integers, or a stream."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, Protocol, TypeVar, cast, overload

import numpy as np
from numpy.typing import NDArray

from penstock._dataset._dataset import Dataset
from penstock._dataset._field_names import explained
from penstock._graph import Read, Stream, need_integer
from penstock.errors import UsageError
from penstock.sources import Range, as_source, content_digest, source_length

T_co = TypeVar("T_co", covariant=True)


class Records(Protocol[T_co]):
    """A source, for the type of its records: an object with a length, and a record for each key from 0."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def __getitem__(self, key: int, /) -> T_co:
        """Return the record of `key`."""
        ...


class AsyncRecords(Protocol[T_co]):
    """A source with an async `read`, for the type of its records."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    async def read(self, keys: NDArray[np.int64], /) -> Sequence[T_co]:
        """Return one record for each key, in order."""
        ...


@overload
def read(source: str | PathLike[str], *, seed: int = 0) -> Dataset[Any]: ...
@overload
def read(source: dict[str, Any], *, seed: int = 0) -> Dataset[dict[str, Any]]: ...
@overload
def read(source: NDArray[Any], *, seed: int = 0) -> Dataset[Any]: ...
@overload
def read(source: AsyncRecords[T_co], *, seed: int = 0) -> Dataset[T_co]: ...
@overload
def read(source: Records[T_co], *, seed: int = 0) -> Dataset[T_co]: ...
@overload
def read(source: object, *, seed: int = 0) -> Dataset[Any]: ...
@explained("read")
def read(source: object, *, seed: int = 0) -> Dataset[Any]:
    """Return the dataset whose element at position i is record i of a source.

    Args:
        source: any object with `__len__` and `__getitem__`; a dict of arrays of one length, whose records are dicts of
            rows; a path of one file, a glob or a folder, whose source is chosen by the names and first bytes of the
            files; or a source of `penstock.sources`. Its methods `read(keys)` and `__getitems__(keys)` are used if it
            has them. A source with `async def read(self, keys)`, such as a client of a server, needs no `__getitem__`.
            The records of a list are its items, also if they are paths; `ps.read(ps.sources.Tar(paths))` reads files.
            If a function changes such an item, later epochs have the change: let it return a new one.
        seed: any integer. The orders of shuffles and the random numbers of random maps derive from it.

    Raises:
        UsageError: the object isn't a source, the format of a path is unknown, or the seed isn't an integer.
        SourceError: a file can't be read.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> dataset = ps.read({"x": np.arange(6.0), "y": np.arange(6)}, seed=7)
        >>> dataset[2]["x"].item(), len(dataset.shuffle().batch(4))
        (2.0, 2)
    """
    seed = need_integer("seed", seed)
    _refuse_iterable(source)
    opened = as_source(source)
    return Dataset(Read(opened, source_length(opened), seed, content_digest(opened)))


@explained("range")
def integers(*bounds: int, seed: int = 0) -> Dataset[int]:
    """Return the dataset of the integers of `range(*bounds)`.

    Args:
        *bounds: stop; or start, stop; or start, stop, step, as of the builtin.
        seed: as in `read`.

    Example:
        >>> import penstock as ps
        >>> list(ps.range(2, 8, 3))
        [2, 5]
    """
    numbers = range(*bounds)
    return read(Range(numbers.start, numbers.stop, numbers.step), seed=seed)


@explained("stream")
def stream(iterable: "Iterable[T_co] | Callable[[], Iterable[T_co]]", *, seed: int = 0) -> Dataset[T_co]:
    """Return the dataset of an iterable's elements, for data without random access. It is read in order.

    A loader's state includes the state of the iterable or its iterator, if it has one: `get_state` and `set_state`, or
    `state_dict` and `load_state_dict`, with JSON values, as in the datasets of Hugging Face, torchdata and Streaming.
    Otherwise a resume reads the elements before the state again, and a warning has their number. Each of several ranks
    reads all elements, and keeps every `count`-th one.

    With workers, one thread reads the iterable ahead of the training loop, and the workers compute the functions of
    elements directly below the batch, the merge, and functions of batches.

    Args:
        iterable: an object that can be iterated over any number of times, or a function that makes an iterable. If it
            has `set_epoch`, that is called before each pass. It must yield new objects: a loader reads ahead, so a
            buffer or a dict that is used again would lose its content; and if a function writes to its input, no two
            elements may share memory.
        seed: as in `read`.

    Raises:
        UsageError: the object can be iterated over only once.

    Example:
        >>> import penstock as ps
        >>> list(ps.stream(lambda: (number**2 for number in range(4))).map(float))
        [0.0, 1.0, 4.0, 9.0]
    """
    _need_stream(iterable)
    return Dataset(Stream(iterable, need_integer("seed", seed)))


def _refuse_iterable(source: object) -> None:
    """Check that an object isn't one that can only be iterated over.

    Raises:
        UsageError: it has no length, and can be iterated over.
    """
    if hasattr(type(source), "__len__") or not isinstance(source, Iterable):
        return
    kind = type(cast("object", source)).__qualname__
    remedy = "ps.stream(lambda: …), with a function that makes it," if isinstance(source, Iterator) else "ps.stream(it)"
    raise UsageError(
        f"a source has a length and items; the {kind} can only be iterated over. Use {remedy} to read it in order, or "
        "ps.read(list(it)) if it fits into memory."
    )


def _need_stream(iterable: object) -> None:
    kind = type(iterable).__qualname__
    if isinstance(iterable, Iterator):
        raise UsageError(
            f"a stream must be iterable any number of times; a {kind} can be iterated over only once. "
            "Pass a function that makes it, such as stream(lambda: …)."
        )
    if not callable(iterable) and not isinstance(iterable, Iterable):
        raise UsageError(f"stream takes an iterable, or a function that makes one; got {kind}")
