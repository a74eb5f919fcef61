"""Several datasets as one: mixed by weights, one after the other, in turn, or side by side."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeGuard, TypeVar, cast

from penstock._dataset._dataset import Dataset
from penstock._graph._length import is_indexable, length
from penstock._graph._nodes import Chain, Mix, Node, StreamingMix, Zip
from penstock._graph._rewrite import prefixed, repeated
from penstock._graph._verify import need_count, need_function, need_integer
from penstock._seeds import derive
from penstock.batching import LengthOf
from penstock.errors import GraphError, UsageError
from penstock.sampling import Concatenation, RoundRobin, WeightedMixture, integer_weights

T = TypeVar("T")
Stop: TypeAlias = Literal["first", "all", "never"]
Weights: TypeAlias = Mapping[str, float]
Schedule: TypeAlias = tuple[tuple[int, tuple[int, ...]], ...]


def mix(
    parts: Mapping[str, Dataset[T]],
    weights: Weights | Mapping[int, Weights] | None = None,
    *,
    stop: Stop = "first",
    measure: str | Callable[[T], int] | None = None,
    seed: int = 0,
) -> Dataset[T]:
    """Return the elements of several datasets, mixed by weights.

    Weights are exact: over a period as long as their sum every part comes exactly as often as its weight says, in an
    order that resonates with no number of ranks and no batch size. Each part's own elements come in its own order,
    which doesn't depend on the other parts: adding one changes nobody else's. A part's random steps derive from its
    name here, so equal parts differ; what was chosen by `take`, `split` and the like stays chosen.

    A schedule changes the weights at given positions of an epoch, and no part loses or repeats an element. A run may
    go on with another future: load its state into a dataset whose schedule is the same up to where it stands.

    If a part can only be read in order, or with `measure`, the mixture is read in order too: the next element is
    always from the part that is furthest behind its share.

    Args:
        parts: a name for each dataset.
        weights: a weight for each name, at least 0: whole numbers are exact, and so are decimal fractions of a period
            up to 65,536; by default all are equal. Or a schedule: from which position on, counted in elements from 0,
            which weights; a name that is left out has weight 0.
        stop: "first" ends with the first part that ends; "all" goes on without it, until all have ended; "never"
            repeats every part without end, each pass an epoch of its own.
        measure: how much an element counts for the weights: a leaf, whose length counts, such as "tokens", or a
            function that returns a whole number; by default 1.
        seed: of the order, and of the random steps above.

    Raises:
        UsageError: if an argument is none of these.
        GraphError: if a part is empty and stop is "never".

    Example:
        >>> import penstock as ps
        >>> dataset = ps.mix({"web": ps.range(100), "code": ps.range(1000, 1100)}, {"web": 3, "code": 1})
        >>> sum(number < 1000 for number in dataset[:40]), len(dataset)
        (30, 133)
    """
    names, nodes = _named(parts)
    if stop not in ("first", "all", "never"):
        raise UsageError(f'stop must be "first", "all" or "never"; got stop={stop!r}')
    if isinstance(measure, str):
        measure = LengthOf(measure)
    elif measure is not None:
        need_function("measure", measure)
    seed = need_integer("seed", seed)
    schedule = _schedule(names, weights)
    nodes = tuple(prefixed(node, name) for node, name in zip(nodes, names, strict=True))
    if measure is None and all(map(is_indexable, nodes)):
        lengths = tuple(length(node) or 0 for node in nodes)
        if stop == "never" and 0 in lengths:
            raise GraphError(
                f'stop="never" repeats every part, and {names[lengths.index(0)]!r} is empty. Leave it out.'
            )
        rule = WeightedMixture(names, lengths, schedule=schedule, stop=stop, seed=derive(seed, "mix"))
        return Dataset(Mix(nodes, names, rule, seed, "mix"))
    if stop == "never":
        nodes = tuple(repeated(node, None) for node in nodes)
    ending: Literal["first", "all"] = "all" if stop == "all" else "first"
    return Dataset(
        StreamingMix(nodes, names, schedule, ending, seed, "mix", cast("Callable[[Any], int] | None", measure))
    )


def concatenate(parts: Mapping[str, Dataset[T]] | Sequence[Dataset[T]], *, seed: int = 0) -> Dataset[T]:
    """Return all elements of the first dataset, then all of the second, and so on.

    Args:
        parts: the datasets, with or without names; the random steps of each derive from its name, or its number.
        seed: of the random steps above.

    Raises:
        UsageError: if there is none, or one is no dataset.

    Example:
        >>> import penstock as ps
        >>> list(ps.concatenate([ps.range(2), ps.range(10, 13)]))
        [0, 1, 10, 11, 12]
    """
    names, nodes = _named(parts)
    nodes = tuple(prefixed(node, name) for node, name in zip(nodes, names, strict=True))
    seed = need_integer("seed", seed)
    if not all(map(is_indexable, nodes)):
        return Dataset(Chain(nodes, names, seed))
    rule = Concatenation(tuple(length(node) or 0 for node in nodes))
    return Dataset(Mix(nodes, names, rule, seed, "concatenate"))


def interleave(parts: Mapping[str, Dataset[T]] | Sequence[Dataset[T]], *, seed: int = 0) -> Dataset[T]:
    """Return one element of each dataset in turn; those that have ended are left out, until all have.

    Args:
        parts: as in `concatenate`; there may be hundreds.
        seed: of the random steps above.

    Raises:
        UsageError: if there is none, or one is no dataset.

    Example:
        >>> import penstock as ps
        >>> list(ps.interleave([ps.range(2), ps.range(10, 14)]))
        [0, 10, 1, 11, 12, 13]
    """
    names, nodes = _named(parts)
    nodes = tuple(prefixed(node, name) for node, name in zip(nodes, names, strict=True))
    seed = need_integer("seed", seed)
    verb = "interleave"
    if all(map(is_indexable, nodes)):
        return Dataset(Mix(nodes, names, RoundRobin(tuple(length(node) or 0 for node in nodes)), seed, verb))
    return Dataset(StreamingMix(nodes, names, ((0, (1,) * len(nodes)),), "all", seed, verb))


def zip_datasets(
    parts: Mapping[str, Dataset[Any]] | Sequence[Dataset[Any]],
    *,
    unequal: Literal["error", "shortest"] = "error",
    seed: int = 0,
) -> Dataset[Any]:
    """Return the elements at the same position of several datasets, side by side.

    Args:
        parts: datasets with names give dicts, without names tuples. Their own order and randomness stay as they are:
            equal seeds shuffle equally.
        unequal: what becomes of different lengths: an "error", or the "shortest" ends all.
        seed: of the random steps above.

    Raises:
        UsageError: if there is none, or one is no dataset.
        GraphError: if the lengths differ and `unequal` is "error".

    Example:
        >>> import penstock as ps
        >>> ps.zip({"x": ps.range(3), "y": ps.range(10, 13)})[1]
        {'x': 1, 'y': 11}
    """
    names, nodes = _named(parts)
    if unequal not in ("error", "shortest"):
        raise UsageError(f'unequal must be "error" or "shortest"; got unequal={unequal!r}')
    lengths = {name: length(node) for name, node in zip(names, nodes, strict=True)}
    known = {count for count in lengths.values() if count is not None}
    if unequal == "error" and len(known) > 1:
        raise GraphError(
            f'zip needs parts of equal lengths; got {lengths}. Pass unequal="shortest" to end with the shortest.'
        )
    return Dataset(Zip(nodes, names, need_integer("seed", seed), isinstance(parts, Mapping), unequal))


def _named(parts: object) -> tuple[tuple[str, ...], tuple[Node, ...]]:
    """Return the names and the nodes of what was given to be joined.

    Raises:
        UsageError: if it is no dict or list of datasets.
    """
    if _is_mapping(parts):
        pairs = list(parts.items())
    elif isinstance(parts, list | tuple):
        pairs = [(str(number), part) for number, part in enumerate(cast("Sequence[object]", parts))]
    else:
        raise UsageError(f"datasets are joined from a dict of them or a list; got {type(parts).__qualname__}")
    if not pairs:
        raise UsageError("at least one dataset is needed to join any; got none")
    nodes: list[Node] = []
    for name, part in pairs:
        if not isinstance(name, str) or not name or "/" in name:
            raise UsageError(f'a part\'s name must be a str of at least one character and no "/"; got {name!r}')
        if not isinstance(part, Dataset):
            raise UsageError(f"part {name!r} must be a Dataset; got {type(part).__qualname__}")
        nodes.append(part.node)
    return tuple(name for name, _ in pairs), tuple(nodes)


def _schedule(names: tuple[str, ...], weights: object) -> Schedule:
    """Return from which positions on which whole-number weights hold, in the order of the names.

    Raises:
        UsageError: if the weights are neither.
    """
    if weights is None:
        return ((0, (1,) * len(names)),)
    if not _is_mapping(weights) or not weights:
        raise UsageError(f"weights must be a dict of a weight for each name, or of these by position; got {weights!r}")
    by_position = {0: weights} if all(isinstance(key, str) for key in weights) else weights
    starts = [need_count("a position of the schedule", start) for start in by_position]
    if 0 not in starts:
        raise UsageError(f"a schedule must say the weights from position 0 on; its positions are {sorted(starts)}")
    return tuple(sorted((start, _at_start(names, by_position[start])) for start in starts))


def _at_start(names: tuple[str, ...], weights: object) -> tuple[int, ...]:
    """Return the whole-number weights of one stretch.

    Raises:
        UsageError: if they are none.
    """
    if not _is_mapping(weights):
        raise UsageError(f"weights must be a dict of a weight for each name; got {weights!r}")
    unknown = [name for name in weights if name not in names]
    if unknown:
        raise UsageError(f"weights must name parts of the mixture, {list(names)}; got {unknown}")
    return integer_weights([weights.get(name, 0) for name in names])


def _is_mapping(value: object) -> TypeGuard[Mapping[Any, Any]]:
    return isinstance(value, Mapping)
