"""Comparison of a combination of verbs with the definition: elements, origins, resumes, and ranks."""

import itertools
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import penstock as ps
from penstock.errors import GraphError, UsageError
from tests.equivalence.definition import delivered, digest, outcomes, positions_of, raised, rank_of
from tests.equivalence.verbs import RefusedError, as_it_is, put

INLINE: dict[str, Any] = {}
THREADS: dict[str, Any] = {"num_workers": 2, "workers": "threads"}


class Counts(NamedTuple):
    """The numbers of combinations that were checked and refused."""

    compared: int
    refused: int
    """By the library, when they were described."""


def check_combinations(combinations: Iterable[Sequence[str]], bottom: ps.Dataset, *places: dict[str, Any]) -> Counts:
    """Compare combinations with the definition.

    Args:
        combinations: the forms of each, the lowest first.
        bottom: below them.
        *places: arguments of a loader. A state of one is loaded into the next one.
    """
    compared = refused = 0
    below: dict[tuple[str, ...], ps.Dataset | None] = {(): bottom}  # what several have in common is described once
    for names in combinations:
        try:
            dataset = _below(tuple(names[:-1]), below)
            is_refused = dataset is None or not check(names, dataset, *places)
        except Exception as error:
            error.add_note(f"in the combination {' | '.join(names)}")
            raise
        compared, refused = compared + (not is_refused), refused + is_refused
    return Counts(compared, refused)


def _below(names: tuple[str, ...], known: dict[tuple[str, ...], ps.Dataset | None]) -> ps.Dataset | None:
    """Return the dataset of some forms; None if the library refuses it."""
    if names not in known:
        dataset = _below(names[:-1], known)
        try:
            known[names] = None if dataset is None else put(names[-1], dataset).dataset
        except RefusedError:
            known[names] = None
    return known[names]


def check(names: Sequence[str], below: ps.Dataset, *places: dict[str, Any]) -> bool:
    """Compare the last form with the definition, as it is or with origins; return False if it is refused."""
    number = zlib.crc32("|".join(names).encode())  # another one for each, the same in every run
    seen = as_it_is if number % 2 else observed
    try:
        dataset, epochs = put(names[-1], below, seen=seen)
    except RefusedError:
        return False
    check_resume(seen(dataset), epochs, places, number % 7)
    if number % 3 == 0:
        check_rank(observed(dataset), number // 6 % 2)
    return True


def observed(dataset: ps.Dataset) -> ps.Dataset:
    """Return the dataset's elements, each with its origin and a seed."""
    return dataset.map_with_origin(_observed, name="observed")


def _observed(element: Any, origin: ps.Origin) -> Any:
    address = (origin.epoch, origin.position, origin.key, origin.seed >> 1, origin.ordinal)
    return {"element": element, "origin": address, "index": -1 if origin.index is None else origin.index}


def check_resume(
    dataset: ps.Dataset, epochs: tuple[list[Any], list[Any]], places: Sequence[dict[str, Any]], stop: int
) -> None:
    """Compare the batches of a loader up to a state, and those of others after it."""
    flat = [*epochs[0], *epochs[1]]
    found: list[Any] = []
    state = None
    for place in places:
        with ps.Loader(dataset, **place) as loader:
            if state is not None:
                loader.load_state_dict(state)
            is_last = place is places[-1]
            while len(found) < len(flat):
                found += map(digest, delivered(loader if is_last else itertools.islice(loader, stop + 1)))
                if not is_last:
                    break
            state = loader.state_dict()
    assert found == flat, f"a loader's elements are others than the definition's, resumed after {stop + 1}"


def check_rank(dataset: ps.Dataset, rank: int) -> None:
    """Compare the batches of one of two ranks, if the dataset can be divided and is read in order."""
    if positions_of(dataset) is not None:
        return
    try:
        loader = ps.Loader(dataset, shard=ps.Shard(rank, 2, uneven=True))
    except (GraphError, UsageError):
        return
    with loader:
        expected = outcomes(rank_of(dataset, 0, rank, 2))
        found = outcomes(loader)
    if raised(expected):  # batches that don't stack, since a rank has fewer rows
        expected, found = [*expected[:-1], expected[-1][0]], [*found[:-1], found[-1][0]]
    assert found == expected, f"rank {rank}'s elements are others than the definition's"
