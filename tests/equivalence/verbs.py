"""All verbs in one table, and a function that puts any of them above any other.

The table can't miss a combination of two verbs. `VERBS` has one form or several of every public verb of a `Dataset`
and of every function that joins datasets; a test fails where one is missing. `put` puts any form above any dataset.
Where the elements below don't suit the verb, as scalars don't suit `unbatch`, a function between the two makes elements
that do. So each pair of forms either is a dataset, or is refused by the library when it is described. The tests go
through all pairs, and the long ones through all triples; random graphs draw their steps from the same table.
"""

import itertools
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import penstock as ps
from penstock.errors import GraphError, InternalError, NoLengthError, UsageError
from tests.equivalence.combiners import Filled, Neighbours, Running
from tests.equivalence.definition import digest, epoch_of, positions_of
from tests.equivalence.functions import (
    add_one,
    as_document,
    as_frames,
    as_inner,
    copies,
    fails_sometimes,
    jitter,
    keeps_two_of_three,
    size_of,
    totals,
    turned,
    twice,
    weight_of,
    with_origin,
    with_seed,
    writes_or_fails,
)

T = TypeVar("T")


class Pick(Protocol):
    """A function that returns one of some values: the first of them, or a random one."""

    def __call__(self, options: Sequence[T], /) -> T:
        """Return one of the options."""
        ...


Form: TypeAlias = Callable[[ps.Dataset, Pick], ps.Dataset]
Adaptor: TypeAlias = Callable[[Any], Any]

_FOLDER: Final = Path(tempfile.mkdtemp(prefix="penstock-verbs-"))
_FILES: Final = itertools.count()
_MOST: Final = 10_000  # elements of an epoch: none has so many, unless it has no end


def first(options: Sequence[T]) -> T:
    """Return the first of some values."""
    return options[0]


def as_it_is(dataset: ps.Dataset) -> ps.Dataset:
    """Return the dataset."""
    return dataset


class Backwards:
    """A sampler of the user's, without `block`: the elements from the last one to the first."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the source's position of an element."""
        return epoch, self.length - 1 - position


weakref.finalize(Backwards, shutil.rmtree, _FOLDER, ignore_errors=True)  # when the program ends


def _count(dataset: ps.Dataset) -> int:
    """Return the number of a dataset's elements; 0 if the verb refuses it, for lack of positions or of an end."""
    try:
        return len(dataset)
    except NoLengthError:
        return 0


def _lengths(dataset: ps.Dataset) -> list[int]:
    """Return the number of rows of each element, if a verb needs these."""
    return [size_of(element) for element in epoch_of(dataset, 0)] if _count(dataset) else []


def _index() -> Path:
    """Return the path of a file that doesn't exist yet."""
    return _FOLDER / str(next(_FILES))


def _bucket(dataset: ps.Dataset, pick: Pick) -> ps.Dataset:
    return dataset.bucket(size_of, [2, 400], rows=pick((2, 3)), remainder=pick(("keep", "drop")))


def _bucket_planned(dataset: ps.Dataset, pick: Pick) -> ps.Dataset:
    return dataset.bucket(size_of, [2, 400], rows=pick((2, 4)), lengths=_lengths(dataset), remainder="keep")


def _bucket_cut(dataset: ps.Dataset, pick: Pick) -> ps.Dataset:
    return dataset.bucket(size_of, [2, 400], rows=pick((2, 4)), lengths=_lengths(dataset), remainder="drop")


def _filled(dataset: ps.Dataset) -> ps.Dataset:
    """Return a dataset that has elements; a repeat of one without elements would never yield any.

    Raises:
        GraphError: it has none.
    """
    if _is_empty(dataset):
        raise GraphError("without end nothing is read over and over")
    return dataset


def _two(dataset: ps.Dataset) -> dict[str, ps.Dataset]:
    return {"web": dataset, "code": dataset}


VERBS: Final[Mapping[str, Mapping[str, Form]]] = {
    "shuffle": {
        "": lambda d, _: d.shuffle(),
        "blocks": lambda d, pick: d.shuffle(blocks=3, live=pick((2, 1, 4)), rows=4),
    },
    "reindex": {"": lambda d, _: d.reindex(Backwards(positions_of(d) or 0))},
    "shard": {"": lambda d, pick: d.shard(pick((1, 0)), pick((2, 3)))},
    "take": {"": lambda d, pick: d.take(pick((11, 5, 1, 0)))},
    "skip": {"": lambda d, pick: d.skip(pick((1, 3)))},
    "select": {"": lambda d, _: d.select([0, -1, 0, _count(d) // 2, -1] if _count(d) else [])},
    "split": {"": lambda d, pick: d.split({"train": 0.7, "val": 0.3})[pick(("train", "val"))]},
    "subset": {"": lambda d, pick: d.subset(max(_count(d) - pick((2, 1)), 0))},
    "sample": {"": lambda d, pick: d.sample([1 + i % 3 for i in range(_count(d))], pick((9, 20)) if _count(d) else 0)},
    "balance": {"": lambda d, pick: d.balance([i % pick((2, 3)) for i in range(_count(d))])},
    "window_shuffle": {"": lambda d, pick: d.window_shuffle(pick((3, 2, 5, 9)))},
    "limit": {"": lambda d, pick: d.limit(pick((7, 3, 1, 0, 20)))},
    "repeat": {
        "": lambda d, pick: d.repeat(pick((2, 3, 1))),
        "same": lambda d, _: d.repeat(2, reshuffle=False),
        "endless": lambda d, pick: _filled(d).repeat().limit(pick((30, 9))),
    },
    "epoch": {"": lambda d, pick: d.epoch(pick((1, 0, 4)))},
    "__getitem__": {
        "": lambda d, pick: d[pick((slice(1, None, 2), slice(None, None, -1), slice(-9, -1), slice(2, 40)))]
    },
    "map": {
        "": lambda d, _: d.map(add_one),
        "turned": lambda d, _: d.map(turned),
        "skip": lambda d, pick: d.map(pick((fails_sometimes, writes_or_fails)), on_error="skip"),
        "substitute": lambda d, _: d.map(fails_sometimes, on_error=ps.Substitute(attempts=64)),
    },
    "random_map": {"": lambda d, _: d.random_map(jitter), "seed": lambda d, _: d.random_map(with_seed, rng="seed")},
    "map_with_origin": {"": lambda d, _: d.map_with_origin(with_origin)},
    "filter": {
        "": lambda d, _: d.filter(keeps_two_of_three),
        "index": lambda d, _: d.filter(keeps_two_of_three, index=_index()),
    },
    "flat_map": {
        "": lambda d, pick: d.flat_map(pick((copies, twice))),
        "counts": lambda d, _: d.flat_map(twice, counts=[2] * _count(d)),
    },
    "windows": {
        "": lambda d, pick: d.windows(pick((2, 1)), pick((1, 2)), lengths=_lengths(d)),
        "pad": lambda d, _: d.windows(2, 2, lengths=_lengths(d), partial="pad"),
    },
    "cache": {"": lambda d, _: d.cache()},
    "batch": {
        "": lambda d, pick: d.batch(pick((4, 2, 1, 6))),
        "short": lambda d, pick: d.batch(pick((5, 3)), remainder=pick(("keep", "drop"))),
        "pad": lambda d, pick: d.batch(pick((10, 4)), remainder="pad"),
        "merge": lambda d, pick: d.batch(pick((2, 4, 3)), merge=totals, remainder=pick(("keep", "drop", "pad"))),
    },
    "padded_batch": {"": lambda d, pick: d.padded_batch(pick((2, 3)), remainder=pick(("keep", "drop", "pad")))},
    "unbatch": {"": lambda d, _: d.unbatch()},
    "rebatch": {"": lambda d, pick: d.rebatch(pick((2, 6, 5)), remainder=pick(("keep", "drop", "pad")))},
    "pack": {
        "": lambda d, pick: d.pack(pick((5, 4, 9))),
        "split": lambda d, pick: d.pack(pick((6, 2)), how="split"),
        "lengths": lambda d, pick: d.pack(pick((5, 9)), lengths=_lengths(d)),
    },
    "combine": {
        "": lambda d, _: d.combine(Filled),
        "neighbours": lambda d, _: d.combine(Neighbours),
        "running": lambda d, _: d.combine(Running),
    },
    "bucket": {"": _bucket, "lengths": _bucket_planned, "lengths drop": _bucket_cut},
    "mix": {
        "": lambda d, _: ps.mix(_two(d), {"web": 2, "code": 1}, stop="all"),
        "one": lambda d, _: ps.mix({"only": d}),
        "measure": lambda d, pick: ps.mix(_two(d), measure=weight_of, stop=pick(("first", "all"))),
        "scheduled": lambda d, _: ps.mix(_two(d), {0: {"web": 1}, 3: {"web": 1, "code": 2}}),
        "never": lambda d, pick: ps.mix(_two(_filled(d)), stop="never").limit(pick((25, 7))),
    },
    "concatenate": {
        "": lambda d, _: ps.concatenate(_two(d)),
        "unlike": lambda d, _: ps.concatenate([d, d.filter(keeps_two_of_three)]),
    },
    "interleave": {"": lambda d, _: ps.interleave([d, d])},
    "zip": {
        "": lambda d, _: ps.zip(_two(d)),
        "shortest": lambda d, _: ps.zip([d, d.filter(keeps_two_of_three)], unequal="shortest"),
    },
}


FORMS: Final[Mapping[str, Form]] = {
    f"{verb} {form}".strip(): function for verb, forms in VERBS.items() for form, function in forms.items()
}
"""Every form of every verb, by its name."""

_ADAPTORS: Final[tuple[Adaptor | None, ...]] = (None, as_document, as_frames, as_inner)


class RefusedError(Exception):
    """The library refuses a verb above the steps below it."""


class Combined(NamedTuple):
    """A form above a dataset, and two epochs of it, as it is seen, by the definition."""

    dataset: ps.Dataset
    epochs: tuple[list[Any], list[Any]]


class UnsuitableError(AssertionError):
    """A form accepts none of the elements that the adaptors make."""


def put(name: str, dataset: ps.Dataset, pick: Pick = first, seen: Adaptor = as_it_is) -> Combined:
    """Return the form of a verb above a dataset, or above a function that makes suitable elements.

    Args:
        name: the form.
        dataset: below it.
        pick: chooses the form's arguments.
        seen: returns the dataset whose epochs are computed, made of the form's.

    Raises:
        RefusedError: the library says, when the dataset is described, that the verb can't be there.
    """
    trouble: Exception | None = None
    for adaptor in _ADAPTORS:
        try:
            described = FORMS[name](dataset if adaptor is None else dataset.map(adaptor), pick)
            return Combined(described, (_digests(seen(described), 0), _digests(seen(described), 1)))
        except InternalError:
            raise
        except Exception as error:
            trouble = error
            if isinstance(error, GraphError) and _refuses(name, dataset, pick):
                raise RefusedError(str(error)) from error
            if isinstance(error, UsageError) and str(error).startswith("epoch must be in [0"):  # endless in endless
                raise RefusedError(str(error)) from error
    if _is_empty(dataset) or "must keep the number of rows" in str(trouble):  # as of a batch that replaced another
        raise RefusedError(str(trouble)) from trouble
    raise UnsuitableError(f"{name} suits no elements above {dataset!r}") from trouble


def _refuses(name: str, dataset: ps.Dataset, pick: Pick) -> bool:
    """Return whether the library refuses the form for any elements, when it is described."""
    try:
        FORMS[name](dataset.map(as_frames), pick)
    except GraphError:
        return True
    return False


def _is_empty(dataset: ps.Dataset) -> bool:
    return next(epoch_of(dataset, 0), None) is None


def _digests(dataset: ps.Dataset, epoch: int) -> list[Any]:
    found = [digest(element) for element in itertools.islice(epoch_of(dataset, epoch), _MOST)]
    if len(found) == _MOST:
        raise UnsuitableError(f"an epoch with at least {_MOST:,} elements would be compared in part: {dataset!r}")
    return found
