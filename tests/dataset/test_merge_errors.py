"""An error while a batch is merged names the batch, in every place."""

from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.dataset.functions import keep


class TooDarkError(Exception):
    """A user's own exception, with two arguments."""

    def __init__(self, darkness: int, rows: int) -> None:
        super().__init__(darkness, rows)
        self.darkness = darkness


def refuses_seven(numbers: list[int]) -> Any:
    """Merge numbers; raise if 7 is among them."""
    if 7 in numbers:
        raise TooDarkError(7, len(numbers))
    return np.array(numbers)


BATCHES = {
    "indexed": ps.range(12).batch(4, merge=refuses_seven),
    "ordered": ps.range(12).filter(keep).batch(4, merge=refuses_seven),
    "nested": ps.range(12).batch(4, merge=refuses_seven).batch(1),
}
NOTES = {
    kind: f"while making the batch of step 1: epoch 0, from position {1 if kind == 'nested' else 4} on"
    for kind in BATCHES
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", BATCHES)
def test_an_error_in_a_merge_function_names_its_batch(kind: str, workers: int) -> None:
    """The error is raised unchanged, with a note of the batch, after the batch before it."""
    found: list[Any] = []
    with ps.Loader(BATCHES[kind], num_workers=workers) as loader, pytest.raises(TooDarkError) as raised:
        found.extend(loader)
    assert len(found) == 1
    assert raised.value.darkness == 7
    assert raised.value.__notes__ == [NOTES[kind]]


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_do_not_stack_name_their_batch(workers: int) -> None:
    """The error of rows of different shapes names their batch, too."""
    ragged = ps.range(8).map(lambda number: np.zeros(2 if number == 6 else 1)).batch(4)
    with ps.Loader(ragged, num_workers=workers) as loader, pytest.raises(ps.errors.UsageError) as raised:
        list(loader)
    assert raised.value.__notes__ == ["while making the batch of step 1: epoch 0, from position 4 on"]


def test_seeded_globals_exclude_rng() -> None:
    """A step that seeds the global generators gets no seed as an argument."""
    rng: Any = "seed"  # the type checkers would refuse it, too
    with pytest.raises(ps.errors.UsageError, match="hands nothing to the function, so rng='seed' has no use"):
        ps.range(3).random_map(abs, rng=rng, globals=True)
