"""Where datasets begin: with a source, the integers of a range, or a stream."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from penstock._dataset._dataset import Dataset
from penstock._graph._nodes import Read, Stream
from penstock._graph._verify import need_integer
from penstock.errors import UsageError
from penstock.sources import Range, as_source, content_digest, source_length

T_co = TypeVar("T_co", covariant=True)


class Records(Protocol[T_co]):
    """A source, as far as the type of its records goes: anything with a length and keys from 0 on."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def __getitem__(self, key: int, /) -> T_co:
        """Return the record of `key`."""
        ...


class AsyncRecords(Protocol[T_co]):
    """A source whose `read` is async, as far as the type of its records goes."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    async def read(self, keys: NDArray[np.int64], /) -> Sequence[T_co]:
        """Return one record for each key, in order."""
        ...


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
def read(source: object, *, seed: int = 0) -> Dataset[Any]:
    """Return the dataset whose element at position i is record i of a source.

    Args:
        source: any object with `__len__` and `__getitem__`; a dict of arrays of one length, whose records are dicts of
            rows; or one of `penstock.sources`. `read(keys)` and `__getitems__(keys)` are used where it has them. One
            with `async def read(self, keys)`, such as a client of a server, needs no `__getitem__`.
        seed: from which the order of every shuffle and the randomness of every `random_map` derive; any integer.

    Raises:
        UsageError: if it is no source, or the seed no integer.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> dataset = ps.read({"x": np.arange(6.0), "y": np.arange(6)}, seed=7)
        >>> dataset[2]["x"].item(), len(dataset.shuffle().batch(4))
        (2.0, 2)
    """
    seed = need_integer("seed", seed)
    opened = as_source(source)
    return Dataset(Read(opened, source_length(opened), seed, content_digest(opened)))


def integers(*bounds: int, seed: int = 0) -> Dataset[int]:
    """Return the dataset of the integers of `range(*bounds)`.

    Args:
        *bounds: stop; or start, stop; or start, stop, step, as for the builtin.
        seed: as in `read`.

    Example:
        >>> import penstock as ps
        >>> list(ps.range(2, 8, 3))
        [2, 5]
    """
    numbers = range(*bounds)
    return read(Range(numbers.start, numbers.stop, numbers.step), seed=seed)


def stream(iterable: "Iterable[T_co] | Callable[[], Iterable[T_co]]", *, seed: int = 0) -> Dataset[T_co]:
    """Return the dataset of what an iterable gives, where there is no random access; it is read in order.

    A loader's state holds the stream's own, if it has one: `get_state` and `set_state`, or `state_dict` and
    `load_state_dict`, on the iterable or its iterator, with JSON values, as Hugging Face's, torchdata's and Streaming's
    datasets have them. Otherwise as many elements as were read are read again, and a warning says how many. Of several
    ranks each reads all, and keeps every `count`-th element.

    One thread reads it, where there are workers ahead of the training loop. They compute what stands above: functions
    of its elements right below the batch, the merge, and functions of batches.

    Args:
        iterable: an object that can be iterated over again and again, or a function that makes one. If it has
            `set_epoch`, that is called before each pass.
        seed: as in `read`.

    Raises:
        UsageError: if it can be iterated over only once.

    Example:
        >>> import penstock as ps
        >>> list(ps.stream(lambda: (number**2 for number in range(4))).map(float))
        [0.0, 1.0, 4.0, 9.0]
    """
    _need_stream(iterable)
    return Dataset(Stream(iterable, need_integer("seed", seed)))


def _need_stream(iterable: object) -> None:
    kind = type(iterable).__qualname__
    if isinstance(iterable, Iterator):
        raise UsageError(
            f"a stream must be able to begin again; a {kind} can be iterated over only once. "
            "Pass a function that makes it, such as stream(lambda: …)."
        )
    if not callable(iterable) and not isinstance(iterable, Iterable):
        raise UsageError(f"stream takes an iterable, or a function that makes one; got {kind}")
