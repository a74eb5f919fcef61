"""The loader refuses a wrong state, step or row, says what is wrong, and stays where it was."""

import json
import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.dataset.functions import double, draw, is_even, same

Edit = Callable[[dict[str, Any]], Any]


def numbers(length: int = 40, *, seed: int = 3) -> ps.Dataset:
    """Return batches of shuffled numbers."""
    return ps.range(length, seed=seed).shuffle().batch(4)


def after(dataset: ps.Dataset, steps: int) -> dict[str, Any]:
    """Return the state after some batches."""
    loader = ps.Loader(dataset)
    batches = iter(loader)
    for _ in range(steps):
        next(batches)
    return loader.state_dict()


def changed(part: str, value: object) -> Edit:
    """Return an edit that replaces one part of a state."""
    return lambda state: {**state, part: value}


def without(part: str) -> Edit:
    """Return an edit that removes one part of a state."""
    return lambda state: {key: value for key, value in state.items() if key != part}


WRONG: list[tuple[Edit, str]] = [
    (lambda state: json.dumps(state)[:-1], r"must be what state_dict\(\) returned, or its JSON text"),
    (lambda _: "hello", r"must be what state_dict\(\) returned, or its JSON text; got 'hello' \(Expecting value"),
    (lambda _: [1, 2], r"must be what state_dict\(\) returned; got 1"),
    (lambda _: [], r"or the list of all old ranks' states; got an empty list"),
    (lambda _: None, r"must be what state_dict\(\) returned; got None"),
    (lambda _: {}, r"must be what state_dict\(\) returned; got \{\}"),
    (changed("penstock", 3), r"reads states of versions 1 and 2; got version 3"),
    (changed("penstock", 2), r"with the key 'ahead' or 'legs', and now has neither"),
    (without("step"), r"incomplete or damaged \(KeyError: 'step'\)"),
    (without("shape"), r"incomplete or damaged \(KeyError: 'shape'\)"),
    (changed("step", -1), r"expected a whole number from 0 to 2\*\*62, found -1"),
    (changed("epoch", 0.5), r"expected a whole number from 0 to 2\*\*31, found 0.5"),
    (changed("epoch", value=True), r"expected a whole number from 0 to 2\*\*31, found True"),
    (changed("step", 2**63), r"expected a whole number from 0 to 2\*\*62"),
    (changed("segments", []), r"segments must cover the step"),
    (changed("segments", [[0, 0, 0, 0]]), r"in batches of at least 1"),
    (changed("segments", [[9, 0, 0, 4]]), r"segments must cover the step"),
    (changed("segments", [[1, 0, 0, 4], [0, 0, 0, 4]]), r"segments must follow each other"),
    (changed("segments", [[0, 0, 4]]), r"incomplete or damaged \(TypeError"),
    (changed("position", 41), r"position 41 is past the dataset's 40"),
    (changed("cursor", [0]), r"saved while reading in order; this dataset is indexable"),
]


def test_wrong_states_are_refused() -> None:
    """A damaged or foreign state is a StateError that says what is wrong; the loader continues unchanged."""
    loader = ps.Loader(numbers())
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()
    for edit, message in WRONG:
        with pytest.raises(ps.errors.StateError, match=message):
            loader.load_state_dict(edit(after(numbers(), 2)))
        assert loader.state_dict() == before
    assert next(batches).tolist() == numbers()[1].tolist()
    loader.load_state_dict(json.dumps(after(numbers(), 3)))  # the text of a state is a state
    assert loader.step == 3


@pytest.mark.parametrize(
    ("differing", "dataset"),
    [
        ("source and order", numbers(48)),  # the order of so many elements
        ("source", ps.range(1, 41, seed=3).shuffle().batch(4)),
        ("order", numbers(seed=4)),
        ("order", ps.range(40, seed=3).batch(4)),
    ],
)
def test_states_of_other_datasets_are_refused(differing: str, dataset: ps.Dataset) -> None:
    """A state of another source, seed or order is refused; the message names the step, and the parts to allow."""
    state = after(numbers(), 2)
    loader = ps.Loader(dataset)
    message = rf"belongs to a dataset with another {differing}: .*step .*\. .*allow=\{{"
    with pytest.raises(ps.errors.StateError, match=message):
        loader.load_state_dict(state)
    loader.load_state_dict(state, allow=differing.split(" and "))
    assert loader.step == 2


def test_states_of_ordered_datasets_go_to_other_ranks_together() -> None:
    """Another number of ranks needs each old rank's state once, from the same kind of dataset."""
    dataset = ps.range(40).window_shuffle(3).batch(4)
    loaders = [ps.Loader(dataset, shard=ps.Shard(rank, 2, uneven=True)) for rank in range(2)]
    for loader in loaders:
        next(iter(loader))
    states = [loader.state_dict() for loader in loaders]
    with pytest.raises(ps.errors.StateError, match=r"from the states of all 2 old ranks; missing: rank \[1\]"):
        ps.Loader(dataset).load_state_dict(states[0])
    with pytest.raises(ps.errors.StateError, match=r"missing: rank \[1\]"):
        ps.Loader(dataset).load_state_dict([states[0], states[0]])
    with pytest.raises(
        ps.errors.StateError, match=r"a state of its own. Another rank, or .*; missing: rank \[1\]. Save"
    ):
        loaders[1].load_state_dict(states[0])
    other = {**states[0], "step": 2}
    with pytest.raises(ps.errors.StateError, match=r"two states of rank 0 that differ"):
        ps.Loader(dataset).load_state_dict([states[0], states[1], other])
    alone, repeated = ps.Loader(dataset), ps.Loader(dataset)
    alone.load_state_dict(states)
    repeated.load_state_dict([states[0], states[1], states[0]])
    assert repeated.state_dict() == alone.state_dict()
    with pytest.raises(ps.errors.StateError, match=r"states of one run are needed; these are of \[1, 2\] ranks"):
        ps.Loader(dataset, shard=ps.Shard(0, 4, uneven=True)).load_state_dict([states[0], after(dataset, 2)])
    with pytest.raises(ps.errors.StateError, match=r"saved by an indexable dataset, or one with other steps"):
        ps.Loader(dataset).load_state_dict({**after(dataset, 2), "cursor": [1, 2]})
    with pytest.raises(ps.errors.StateError, match=r"only the last delivered steps are known: 0 to 0; got step=7"):
        ps.Loader(dataset).seek(7)


def test_a_part_of_a_batch_is_not_divided_among_ranks() -> None:
    """A state within an unbatched batch resumes on the same ranks only; at its end, on any."""
    rows = ps.range(40).window_shuffle(3).batch(4).unbatch()
    loaders = [ps.Loader(rows, shard=ps.Shard(rank, 2, uneven=True)) for rank in range(2)]
    iterators = [iter(loader) for loader in loaders]
    firsts = [int(next(iterator)) for iterator in iterators]
    with pytest.raises(
        ps.errors.StateError, match=r"saved within a batch that unbatch\(\) or flat_map\(\) takes apart"
    ):
        ps.Loader(rows).load_state_dict([loader.state_dict() for loader in loaders])
    seconds = [int(next(iterator)) for iterator in iterators]
    alone = ps.Loader(rows)
    alone.load_state_dict([loader.state_dict() for loader in loaders])
    assert sorted(firsts + seconds + [int(row) for row in alone]) == list(range(40))


def test_batches_that_are_held_open_are_not_recut() -> None:
    """Within a window of batches another batch size or remainder is refused; where one ends, each element comes once.

    There are windows of 3 batches, and the last one has 2.
    """
    numbers = ps.range(44).filter(bool)
    loader = ps.Loader(numbers.batch(4).window_shuffle(3))
    batches = iter(loader)
    seen: list[Any] = [next(batches) for _ in range(9)]
    state = loader.state_dict()
    next(batches)
    recut = {(6, "keep"): numbers.batch(6), (4, "drop"): numbers.batch(4, remainder="drop")}
    for (size, remainder), batched in recut.items():
        other = ps.Loader(batched.window_shuffle(3))
        refusal = rf"batch\(4, remainder='keep'\), which batch\({size}, remainder='{remainder}'\) doesn't make"
        with pytest.raises(ps.errors.StateError, match=rf"within a window of batches, of {refusal}"):
            other.load_state_dict(loader.state_dict())
        other.load_state_dict(state)
        dropped = 0 if remainder == "keep" else 3
        assert sorted(row for batch in [*seen, *other] for row in batch.tolist()) == list(range(1, 44 - dropped))


def test_other_functions_and_another_numpy_are_warned_of() -> None:
    """A state of other functions is loaded with a warning, as one of another NumPy where random numbers are drawn."""
    added, doubled = ps.range(8).map(same, name="f").batch(2), ps.range(8).map(double, name="f").batch(2)
    loader = ps.Loader(doubled)
    with pytest.warns(UserWarning, match=r"the dataset's functions differ from those of the state"):
        loader.load_state_dict(after(added, 1))
    assert loader.step == 1
    drawing = ps.range(8).random_map(draw).batch(2)
    with pytest.warns(UserWarning, match=rf"saved under NumPy 0\.1, this is {re.escape(np.__version__)}"):
        ps.Loader(drawing).load_state_dict({**after(drawing, 1), "numpy": "0.1"})
    with warnings.catch_warnings(action="error"):
        ps.Loader(numbers()).load_state_dict({**after(numbers(), 1), "numpy": "0.1"})


def test_steps_and_rows_must_exist() -> None:
    """Steps and rows that don't exist are errors."""
    loader = ps.Loader(numbers())
    calls: list[Callable[[int], object]] = [loader.seek, loader.state_dict, loader.batch_at]
    for call in calls:
        with pytest.raises(ps.errors.UsageError, match=r"step must be at least 0 and at most 2\*\*62; got step=-1"):
            call(-1)
    with pytest.raises(IndexError, match=r"row must be in \[0, 4\), .*; got 4"):
        loader.origin(0, 4)
    with pytest.raises(ps.errors.StateError, match=r"this dataset has no batches; got step=0"):
        ps.Loader(ps.range(0).batch(2)).batch_at(0)
    loader = ps.Loader(ps.range(8).filter(is_even).batch(4))
    next(iter(loader))
    looks: list[Callable[[], object]] = [lambda: loader.batch_at(1), lambda: loader.origin(1, 0)]
    for look in looks:
        with pytest.raises(ps.errors.StateError, match=r"epoch 0 has ended before step 1"):
            look()
