"""The batches that a loader must deliver, by the definition alone, and their comparison byte for byte."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

import penstock as ps
from penstock._graph._apply import Context
from penstock._graph._evaluate import element_at
from penstock._graph._length import is_endless, length
from penstock._streaming._in_order import elements, in_order
from penstock._tensors import memory_order
from penstock.errors import GraphError
from tests.equivalence.kinds import as_array, is_dict, is_list_or_tuple, is_numpy


def positions_of(dataset: ps.Dataset) -> int | None:
    """Return the number of positions; None if the dataset can only be read in order."""
    return length(dataset.node)


def epoch_of(dataset: ps.Dataset, epoch: int) -> Iterator[Any]:
    """Yield all elements of an epoch, in order, by the plain definition."""
    count = positions_of(dataset)
    if count is None:
        yield from elements(dataset.node, epoch, 0, Context())
    else:
        yield from (element_of(dataset, epoch, position) for position in range(count))


def element_of(dataset: ps.Dataset, epoch: int, position: int) -> Any:
    """Return one element of a dataset with positions, by the plain definition."""
    return element_at(dataset.node, epoch, position, Context())


def never_ends(dataset: ps.Dataset) -> bool:
    """Return whether an epoch has no end."""
    return is_endless(dataset.node)


def outcomes(batches: Iterable[Any]) -> list[Any]:
    """Return the digest of each batch, and, if the iteration raises, the error."""
    found: list[Any] = []
    try:
        found.extend(map(digest, delivered(batches)))
    except ValueError as error:
        found.append((type(error), str(error)))
    return found


def delivered(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield a loader's batches; an epoch whose elements were all skipped has none, and ends with an error."""
    count = 0
    try:
        for batch in batches:
            count += 1
            yield batch
    except GraphError as error:
        if count or "gave no batch" not in str(error):
            raise


def raised(found: list[Any]) -> bool:
    """Return whether outcomes end with an error."""
    return (
        bool(found)
        and isinstance(found[-1], tuple)
        and isinstance(found[-1][0], type)
        and issubclass(found[-1][0], ValueError)
    )


def digest(element: Any) -> Any:
    """Return a value that is equal only for elements of the same structure, types, dtypes, shapes and bytes.

    The bytes of arrays are in the same order in memory, too, unless there are gaps between them.
    """
    if is_dict(element):
        return {"dict": [(key, digest(value)) for key, value in element.items()]}
    if is_list_or_tuple(element):
        return (type(element), [digest(value) for value in element])
    if is_numpy(element):
        array = as_array(element)
        return (type(element), array.dtype.str, array.shape, array.tobytes(), memory_order(array))
    return (type(element), element)


def digests(batches: Any) -> list[Any]:
    """Return the digest of each."""
    return [digest(batch) for batch in delivered(batches)]


def rows(batch: Any, start: int, stop: int) -> Any:
    """Return rows [start, stop) of a batch, as new arrays."""
    if is_dict(batch):
        return {key: rows(value, start, stop) for key, value in batch.items()}
    if is_list_or_tuple(batch):
        return batch[start:stop]
    return np.array(batch[start:stop])


def concatenated(parts: Sequence[Any]) -> Any:
    """Return the batch of which the ranks' batches are the parts."""
    first = parts[0]
    if is_dict(first):
        return {key: concatenated([part[key] for part in parts]) for key in first}
    if is_list_or_tuple(first):
        return [row for part in parts for row in part]
    return np.concatenate(parts)


def ranks_of(dataset: ps.Dataset, count: int, *, num_workers: int = 0) -> list[ps.Loader]:
    """Return a loader for each rank."""
    return [ps.Loader(dataset, num_workers=num_workers, shard=ps.Shard(rank, count)) for rank in range(count)]


def close_all(loaders: Iterable[ps.Loader]) -> None:
    """Close every loader."""
    for loader in loaders:
        loader.close()


def rank_of(dataset: ps.Dataset, epoch: int, rank: int, ranks: int) -> Iterator[Any]:
    """Yield the elements of one rank of a dataset without positions, by the plain definition."""
    yield from (element for element, _ in in_order(dataset.node, epoch, Context(), rank, ranks))
