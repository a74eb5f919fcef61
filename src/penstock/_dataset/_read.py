"""Where datasets begin: with a source, or with the integers of a range."""

from typing import Any, Protocol, TypeVar, overload

from numpy.typing import NDArray

from penstock._dataset._dataset import Dataset
from penstock._graph._nodes import Read
from penstock._graph._verify import need_integer
from penstock.sources._as_source import as_source, source_length
from penstock.sources._range import Range

T_co = TypeVar("T_co", covariant=True)


class Records(Protocol[T_co]):
    """A source, as far as the type of its records goes: anything with a length and keys from 0 on."""

    def __len__(self) -> int:
        """Return the number of records."""
        ...

    def __getitem__(self, key: int, /) -> T_co:
        """Return the record of `key`."""
        ...


@overload
def read(source: dict[str, Any], *, seed: int = 0) -> Dataset[dict[str, Any]]: ...
@overload
def read(source: NDArray[Any], *, seed: int = 0) -> Dataset[Any]: ...
@overload
def read(source: Records[T_co], *, seed: int = 0) -> Dataset[T_co]: ...
@overload
def read(source: object, *, seed: int = 0) -> Dataset[Any]: ...
def read(source: object, *, seed: int = 0) -> Dataset[Any]:
    """Return the dataset whose element at position i is record i of a source.

    Args:
        source: any object with `__len__` and `__getitem__`; a dict of arrays of one length, whose records are dicts of
            rows; or one of `penstock.sources`. `read(keys)` and `__getitems__(keys)` are used where it has them.
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
    return Dataset(Read(opened, source_length(opened), seed))


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
