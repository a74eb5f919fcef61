"""Functions that make one dataset of several: `mix`, `concatenate`, `interleave` and `zip`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar, cast

import numpy as np

from penstock import _streaming
from penstock._dataset._dataset import Dataset
from penstock._dataset._field_names import explained
from penstock._graph import (
    Combine,
    Node,
    is_endless,
    length,
    need_count,
    need_function,
    need_integer,
    prefixed,
    repeated,
)
from penstock._seeds import derive
from penstock.batching import LengthOf
from penstock.errors import GraphError, UsageError
from penstock.sampling import Concatenation, RoundRobin, WeightedMixture, integer_weights

T = TypeVar("T")
Stop: TypeAlias = Literal["first", "all", "never"]
Weights: TypeAlias = Mapping[str, float]
Schedule: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]


@explained("mix")
def mix(
    parts: Mapping[str, Dataset[T]] | Sequence[Dataset[T]],
    weights: Weights | Sequence[float] | Mapping[int, Weights | Sequence[float]] | None = None,
    *,
    stop: Stop = "first",
    measure: str | Callable[[T], int] | None = None,
    seed: int = 0,
) -> Dataset[T]:
    """Return the elements of several datasets, mixed by weights.

    Integer weights are exact: each period of the mixture has as many elements as the weights add up to, and each part
    has as many of them as its weight. The order within a period favours no part, for any number of ranks and any batch
    size. Each part's elements keep the part's own order, so another part doesn't change it.

    The seeds of a part's random steps derive from its name, so two equal parts draw different numbers. The elements
    that `take`, `split` and similar verbs choose stay the same.

    A schedule changes the weights at given positions of an epoch; no part loses or repeats an element. A run may resume
    with another schedule if the two are equal up to the position of the state.

    If a part is read in order, or if `measure` is given, the mixture is read in order, too. The next element is then
    always from the part that is furthest behind its share.

    Args:
        parts: the datasets, by name. Those of a list have the names "0", "1" and so on.
        weights: a dict with a weight of at least 0 for each name, or, for a list of datasets, the list of their
            weights. A name that is missing in the dict has weight 0. Decimal fractions are exact if their period has at
            most 65,536 elements; otherwise they are rounded to that period. Default: equal weights. Or a schedule: a
            dict from positions, counted in elements from 0, to the weights from each position on.
        stop: "first" ends the mixture with the first part that ends. "all" continues with the other parts until all
            have ended, and skips weights of a schedule whose parts have all ended. "never" repeats each part without
            end; each pass over a part is one of its epochs.
        measure: how much an element counts towards the weights: the name of a leaf, such as "tokens", whose length
            counts, or a function of the element that returns an integer. Default: 1 for each element.
        seed: the seed of the mixture's order, and of random steps above the mixture.

    Raises:
        UsageError: an argument isn't as described.
        GraphError: stop is "never", and a part is empty, or can't be repeated, see `Dataset.repeat`.

    Example:
        >>> import penstock as ps
        >>> dataset = ps.mix({"web": ps.range(100), "code": ps.range(1000, 1100)}, {"web": 3, "code": 1})
        >>> sum(number < 1000 for number in dataset[:40]), len(dataset)
        (30, 133)
    """
    names, nodes = _prefixed(parts)
    if stop not in ("first", "all", "never"):
        raise UsageError(f'stop must be "first", "all" or "never"; got stop={stop!r}')
    if isinstance(measure, str):
        measure = LengthOf(measure)
    elif measure is not None:
        need_function("measure", measure)
    seed = need_integer("seed", seed)
    schedule = _schedule(names, _named_weights(parts, weights))
    ending = stop
    rule = None
    lengths = None if measure is not None else _lengths(nodes)
    empty = [name for name, node in zip(names, nodes, strict=True) if length(node) == 0]
    if stop == "never" and empty:
        raise GraphError(f'stop="never" repeats every part, and part {empty[0]!r} is empty. Leave this part out.')
    if lengths is not None:
        rule = WeightedMixture(names, lengths, schedule=schedule, stop=stop, seed=derive(seed, "mix"))
    elif stop == "never":
        named = zip(names, nodes, strict=True)
        nodes = tuple(repeated(node, None, f'mix(stop="never") over part {name!r}') for name, node in named)
        ending = "first"
    return Dataset(Combine(nodes, names, _streaming.Mix(rule, schedule, ending, measure), seed))


@explained("concatenate")
def concatenate(
    parts: Mapping[str, Dataset[T]] | Sequence[Dataset[T]] | Dataset[T], *more: Dataset[T], seed: int = 0
) -> Dataset[T]:
    """Return all elements of the first dataset, then all of the second, and so on.

    Args:
        parts: the datasets, as a dict by name, as a list, or as arguments. The seeds of a dataset's random steps derive
            from its name, or its number in the list.
        *more: the other datasets, if `parts` is the first one.
        seed: the seed of random steps above the result.

    Raises:
        UsageError: there is no part, or one is not a dataset.

    Example:
        >>> import penstock as ps
        >>> list(ps.concatenate([ps.range(2), ps.range(10, 13)]))
        [0, 1, 10, 11, 12]
    """
    names, nodes = _prefixed(_listed(parts, more))
    seed = need_integer("seed", seed)
    lengths = _lengths(nodes)
    rule = None if lengths is None else Concatenation(lengths)
    return Dataset(Combine(nodes, names, _streaming.Concatenate(rule), seed))


@explained("interleave")
def interleave(
    parts: Mapping[str, Dataset[T]] | Sequence[Dataset[T]] | Dataset[T], *more: Dataset[T], seed: int = 0
) -> Dataset[T]:
    """Return one element of each dataset in turn; a dataset that has ended is skipped, until all have ended.

    Args:
        parts: as in `concatenate`. Hundreds of parts are no problem.
        *more: as in `concatenate`.
        seed: the seed of random steps above the result.

    Raises:
        UsageError: there is no part, or one is not a dataset.

    Example:
        >>> import penstock as ps
        >>> list(ps.interleave([ps.range(2), ps.range(10, 14)]))
        [0, 10, 1, 11, 12, 13]
    """
    names, nodes = _prefixed(_listed(parts, more))
    seed = need_integer("seed", seed)
    lengths = _lengths(nodes)
    rule = None if lengths is None else RoundRobin(lengths)
    return Dataset(Combine(nodes, names, _streaming.Interleave(rule), seed))


@explained("zip")
def zip_datasets(
    parts: Mapping[str, Dataset[Any]] | Sequence[Dataset[Any]] | Dataset[Any],
    *more: Dataset[Any],
    unequal: Literal["error", "shortest"] = "error",
    seed: int = 0,
) -> Dataset[Any]:
    """Return a dataset whose element at each position combines the elements of several datasets there.

    If a part is read in order, so is the result, and each of several ranks combines the elements of its own positions
    of the parts. So all parts must leave out, add or reorder elements by the same steps, such as a filter, and with the
    same result; a loader of several ranks refuses other steps. A filter above `zip` leaves out whole elements.

    Args:
        parts: a dict of datasets, for elements that are dicts with the same keys; or the datasets as a list or as
            arguments, for elements that are tuples. The parts keep their own seeds, so parts with equal seeds are
            shuffled equally.
        *more: the other datasets, if `parts` is the first one.
        unequal: "error" raises an error if the lengths differ; "shortest" ends with the shortest part.
        seed: the seed of random steps above the result.

    Raises:
        UsageError: there is no part, or one is not a dataset.
        GraphError: the lengths differ, and `unequal` is "error".

    Example:
        >>> import penstock as ps
        >>> ps.zip({"x": ps.range(3), "y": ps.range(10, 13)})[1]
        {'x': 1, 'y': 11}
    """
    names, nodes = _named(_listed(parts, more))
    if unequal not in ("error", "shortest"):
        raise UsageError(f'unequal must be "error" or "shortest"; got unequal={unequal!r}')
    lengths = {name: _length_or_endless(node) for name, node in zip(names, nodes, strict=True)}
    known = {count for count in lengths.values() if count is not None}
    if unequal == "error" and len(known) > 1:
        raise GraphError(
            f'zip needs parts of equal lengths; got {lengths}. Pass unequal="shortest" to end with the shortest.'
        )
    return Dataset(Combine(nodes, names, _streaming.Zip(_is_mapping(parts), unequal), need_integer("seed", seed)))


def _length_or_endless(node: Node) -> int | str | None:
    """Return the length of a part of a zip, or "without end"; None if it is read in order."""
    count = length(node)
    return "without end" if count is not None and is_endless(node) else count


def _lengths(nodes: tuple[Node, ...]) -> tuple[int, ...] | None:
    """Return the lengths of the parts; None if one is read in order."""
    lengths = tuple(count for count in map(length, nodes) if count is not None)
    return lengths if len(lengths) == len(nodes) else None


def _prefixed(parts: object) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """Return the names of the parts, and their nodes with seeds that derive from the names.

    Raises:
        UsageError: the argument isn't a dict or list of datasets.
    """
    names, nodes = _named(parts)
    return names, tuple(map(prefixed, nodes, names))


def _listed(parts: object, more: tuple[object, ...]) -> object:
    """Return a list of the datasets if they are separate arguments; otherwise `parts`, a dict or list, unchanged.

    Raises:
        UsageError: there are more arguments after a dict or list of datasets.
    """
    if not more:
        return parts
    if isinstance(parts, Dataset):
        return [cast("object", parts), *more]
    raise UsageError(
        f"the datasets must be one dict, one list, or one after the other; got {type(parts).__qualname__} and "
        f"{len(more)} more. Put all datasets into one list, or one dict."
    )


def _named_weights(parts: object, weights: object) -> object:
    """Return lists of weights, also those of a schedule, as dicts by the names of the datasets; others unchanged.

    Raises:
        UsageError: the weights are a list, and the datasets are not a list of the same length.
    """
    if _is_mapping(weights):
        return {key: _named_weights(parts, each) if _is_list(each) else each for key, each in weights.items()}
    if not _is_list(weights):
        return weights
    listed = list(weights)
    if not isinstance(parts, list | tuple):
        raise UsageError(
            f"weights must be a dict with a weight for each name if the datasets are a dict; got {weights!r}"
        )
    count = len(cast("Sequence[object]", parts))
    if len(listed) != count:
        raise UsageError(f"weights must be one for each of the {count} datasets; got {weights!r}")
    return {str(number): weight for number, weight in enumerate(listed)}


def _named(parts: object) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """Return the names and the nodes of the parts.

    Raises:
        UsageError: the argument isn't a dict or list of datasets.
    """
    if _is_mapping(parts):
        pairs = list(parts.items())
    elif isinstance(parts, list | tuple):
        pairs = [(str(number), part) for number, part in enumerate(cast("Sequence[object]", parts))]
    else:
        raise UsageError(f"parts must be a dict or a list of datasets; got {type(parts).__qualname__}")
    if not pairs:
        raise UsageError("parts must have at least one dataset; got none")
    nodes: list[Node] = []
    for name, part in pairs:
        if not isinstance(name, str) or not name or "/" in name:
            raise UsageError(f'a part\'s name must be a str of at least one character and no "/"; got {name!r}')
        if not isinstance(part, Dataset):
            raise UsageError(
                f"part {name!r} must be a Dataset; got {type(part).__qualname__}. Make one with ps.read(…)."
            )
        nodes.append(part.node)
    return tuple(name for name, _ in pairs), tuple(nodes)


def _schedule(names: tuple[str, ...], weights: object) -> Schedule:
    """Return the schedule: for each change of weights its position, and the integer weights in the order of the names.

    Raises:
        UsageError: the weights aren't a dict of weights or a schedule.
    """
    if weights is None:
        return ((0, (1,) * len(names)),)
    if not _is_mapping(weights) or not weights:
        raise UsageError(
            f"weights must be a dict with a weight for each name, or such dicts by position; or, if the datasets are a "
            f"list, a list of weights; got {weights!r}"
        )
    given = {0: weights} if all(isinstance(key, str) for key in weights) else weights
    by_position = {need_count("schedule position", start): each for start, each in given.items()}
    if 0 not in by_position:
        raise UsageError(
            f"a schedule must have the weights from position 0 on; its positions are {sorted(by_position)}"
        )
    return tuple(sorted((start, _at_start(names, each)) for start, each in by_position.items()))


def _at_start(names: tuple[str, ...], weights: object) -> tuple[int, ...]:
    """Return the weights of one entry of the schedule, as integers in the order of the names.

    Raises:
        UsageError: the entry isn't a dict of weights.
    """
    if not _is_mapping(weights):
        raise UsageError(f"weights must be a dict with a weight for each name; got {weights!r}")
    known = frozenset(names)
    unknown = [name for name in weights if name not in known]
    if unknown:
        raise UsageError(f"weights must name parts of the mixture, {list(names)}; got {unknown}")
    return integer_weights([weights.get(name, 0) for name in names])


def _is_list(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple | np.ndarray)


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)
