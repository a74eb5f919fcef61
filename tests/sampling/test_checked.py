"""A checked sampler returns the same results, or an error names the sampler and its result."""

import re
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock as ps
from penstock.errors import UsageError
from penstock.sampling import CheckedSampler


@dataclass(frozen=True)
class Answers:
    """A user's sampler that answers from a table."""

    table: tuple[Any, ...]

    def __len__(self) -> int:
        return len(self.table)

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the table's answer."""
        del epoch
        return cast("tuple[int, int]", tuple(map(np.int64, self.table[position])))


@dataclass(frozen=True)
class BlockAnswers(Answers):
    """The same with a block form."""

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the table's answers."""
        del epochs
        answers = np.array(self.table, np.int64).reshape(-1, 2)[positions]
        return answers[:, 0], answers[:, 1]


tables = st.lists(st.tuples(st.integers(-1, 2), st.integers(-2, 6)), min_size=1, max_size=6).map(tuple)


@given(st.sampled_from([Answers, BlockAnswers]), tables, st.integers(0, 5))
def test_answers_are_as_before_or_named(kind: type[Answers], table: tuple[Any, ...], parent_length: int) -> None:
    """The first result out of range is an error with sampler, position, result and length, in both forms."""
    sampler = kind(table)
    checked = CheckedSampler(sampler, parent_length)
    assert len(checked) == len(table)
    messages: list[str] = []
    for position, answer in enumerate(table):
        if answer[0] >= 0 and 0 <= answer[1] < parent_length:
            assert checked(3, position) == answer
            assert {type(number) for number in checked(3, position)} == {int}
            continue
        messages.append(
            f"a sampler must return an epoch from 0 and a key in [0, {parent_length}), since the parent has "
            f"{parent_length} elements; {sampler!r} returned (epoch, key) = {answer} at position {position} of epoch 3."
        )
        with pytest.raises(UsageError, match="^" + re.escape(messages[-1])):
            checked(3, position)
    epochs, positions = np.full(len(table), 3), np.arange(len(table))
    if messages:
        with pytest.raises(UsageError, match="^" + re.escape(messages[0])):
            checked.block(epochs, positions)
    else:
        assert list(zip(*(part.tolist() for part in checked.block(epochs, positions)), strict=True)) == list(table)


@dataclass(frozen=True)
class Swapped(BlockAnswers):
    """A sampler whose block form returns keys and epochs, in the wrong order."""

    def block(
        self, epochs: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the table's answers in the wrong order."""
        result_epochs, keys = super().block(epochs, positions)
        return keys, result_epochs


def test_a_block_form_that_differs_is_named() -> None:
    """A block form that returns something else than the scalar form is an error: in `check`, and in any loader."""
    sampler = Swapped(((0, 0), (0, 1), (0, 2)))
    dataset = ps.range(3).reindex(sampler)
    message = re.escape(f"{sampler!r} returned (epoch, key) = (1, 0) in a block, and (0, 1) alone, at position 1 of ep")
    with pytest.raises(UsageError, match=message):
        dataset.check()
    with pytest.raises(UsageError, match=message):
        next(iter(ps.Loader(dataset.batch(3))))
    assert len(CheckedSampler(sampler, 3).block(np.empty(0, np.int64), np.empty(0, np.int64))[0]) == 0
