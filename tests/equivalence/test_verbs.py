"""Every verb above every other one equals the definition: elements, origins, resumes, and ranks."""

import inspect
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.combinations import INLINE, THREADS, check_combinations, check_resume
from tests.equivalence.decisions import DECISIONS, random_decisions
from tests.equivalence.definition import digests, epoch_of
from tests.equivalence.functions import as_frames
from tests.equivalence.graphs import described
from tests.equivalence.joins import Counter
from tests.equivalence.verbs import FORMS, VERBS, RefusedError, first, put
from tests.profiles import IS_LONG, fewer

LOOKS: frozenset[str] = frozenset({"check", "element_spec", "explain", "fingerprint", "node", "show"})
"""The attributes of a dataset that tell about it, and make no other one."""
JOINERS: frozenset[str] = frozenset({"mix", "concatenate", "interleave", "zip"})
PAIRS = tuple(itertools.product(FORMS, FORMS))
PARTS = 6  # of all pairs, each a test


def numbers() -> ps.Dataset:
    """Return the dataset below all verbs."""
    return ps.range(12, seed=5)


def is_usual(pair: tuple[str, str]) -> bool:
    """Return whether the short profile has a pair: each form above itself, and above and below a fifth of the others.

    So each is above and below forms of each kind: indexed ones, those that are read in order, folds, and joins. Of
    each five neighbours in the table it is above one, and not always above the same one of the five.
    """
    below, above = map([*FORMS].index, pair)
    return IS_LONG or below == above or (above - below - below // 5) % 5 == 0


def test_the_table_has_every_public_verb() -> None:
    """A verb that is missing from the table would not be tested above another one."""
    public = {name for name, member in inspect.getmembers(ps.Dataset) if not name.startswith("_") and member}
    assert set(VERBS) - {"__getitem__"} == (public - LOOKS) | JOINERS


@pytest.mark.longer
@pytest.mark.parametrize("part", range(PARTS))
def test_all_pairs_equal_the_definition(part: int) -> None:
    """Each form of a verb above each other one; a state that is saved inline resumes inline or with threads."""
    with ps.Loader(numbers(), **THREADS) as owner:  # its threads serve all pairs
        other = {"workers": owner} if IS_LONG or part % 2 else INLINE
        pairs = [pair for pair in PAIRS[part::PARTS] if is_usual(pair)]
        counts = check_combinations(pairs, numbers(), INLINE, other)
    assert counts.compared > 5 * counts.refused


@pytest.mark.longer
def test_pairs_above_a_stream_equal_the_definition() -> None:
    """Each form above a dataset without positions, and one pair of each; in the short profile of every second one."""
    step = 1 if IS_LONG else 2
    pairs = zip([*FORMS][::step], [*FORMS][7::step], strict=False)
    stream = ps.stream(lambda: Counter(18))
    check_combinations([*((name,) for name in FORMS), *pairs], stream, INLINE, THREADS)


@pytest.mark.longer
def test_pairs_in_processes_equal_the_definition() -> None:
    """A sample of all pairs, and each verb between functions that depend on the strides of its arrays.

    The short profile has a third of that sample, and the first form of each verb. One set of worker processes computes
    them, but for a few whose loader runs in a process of its own.
    """
    rows = numbers().map(as_frames)
    with ps.Loader(rows, num_workers=1, workers="processes") as owner:
        next(iter(owner))
        check_combinations(PAIRS[3 :: 61 if IS_LONG else 183], numbers(), INLINE, {"workers": owner})
        forms = [("map turned", name, "map turned") for name in (FORMS if IS_LONG else VERBS)]
        check_combinations(forms, rows, INLINE, {"workers": owner})
    isolated = [("batch", "window_shuffle"), ("batch short", "unbatch"), ("flat_map", "pack")]
    check_combinations(isolated, numbers(), {"isolated": True})


@pytest.mark.long
@pytest.mark.parametrize("lowest", [*FORMS])
def test_all_triples_equal_the_definition(lowest: str) -> None:
    """Each pair of forms above each form."""
    try:
        bottom = put(lowest, numbers(), first).dataset
    except RefusedError:
        return
    check_combinations(PAIRS, bottom, INLINE, THREADS)


@fewer()
@given(described(), DECISIONS, st.sampled_from([(INLINE, THREADS), (THREADS, INLINE), (THREADS, THREADS)]), st.data())
def test_chains_of_any_verbs_equal_the_definition(
    dataset: ps.Dataset, decisions: int | None, places: tuple[dict[str, Any], ...], data: st.DataObject
) -> None:
    """Up to five forms above a random source: two epochs, and a state of one place that another resumes."""
    epochs = (digests(epoch_of(dataset, 0)), digests(epoch_of(dataset, 1)))
    stop = data.draw(st.integers(0, max(len(epochs[0]) - 1, 0)), label="stop")
    with random_decisions(decisions):
        check_resume(dataset, epochs, places, stop)
