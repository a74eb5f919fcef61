"""Batches equal the definition whatever time or scheduling decides, in every place."""

import os
from typing import Any

import pytest

import penstock as ps
from penstock import _decisions
from penstock._decisions import Decision, decide, random_decisions
from penstock._streaming._batch import BatchStage
from penstock.batching import Stack
from penstock.errors import InternalError
from tests.decisions.comparing import PLACES, Comparison
from tests.decisions.datasets import DATASETS
from tests.profiles import IS_LONG

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
DECISIONS = [value for value in vars(_decisions).values() if isinstance(value, Decision)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.each_value
def test_batches_equal_the_definition(name: str, place: str) -> None:
    """Random decisions change no batch of any dataset in any place."""
    comparison = Comparison(300 if IS_LONG else 100)
    comparison.run(name, place, 2 * len(name) + len(place))
    assert comparison.wrong == []
    assert comparison.total == sum(map(len, comparison.expected(name)))


@pytest.fixture
def faulty_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant a fault that needs a rare alignment: a chunk that is taken for a whole batch's list of rows."""
    stacks: Any = property(lambda self: isinstance(self.step.merge, Stack))
    monkeypatch.setattr(BatchStage, "_stacks", stacks)


@pytest.mark.usefixtures("faulty_chunks")
@pytest.mark.parametrize("place", ["threads", "processes"])
def test_a_fault_that_needs_a_rare_alignment_is_found(place: str) -> None:
    """A few seeds show it."""
    comparison = Comparison()
    for seed in range(1, 21):
        comparison.run("pack, a function, batch", place, seed)
        if comparison.wrong:
            return
    pytest.fail(f"not found in {comparison.total} batches")


@pytest.mark.usefixtures("faulty_chunks")
def test_rows_that_are_no_list_are_an_error() -> None:
    """A batch is made of a list only, so a faulty chunk is an error and no wrong batch."""
    dataset = DATASETS["whole documents, pack, a function"](600)

    def read() -> None:
        for seed in range(1, 21):
            with random_decisions(seed), ps.Loader(dataset, num_workers=1, workers="threads") as loader:
                list(loader)

    with pytest.raises(InternalError, match=r"the list of a batch's 4 rows; got \{'tokens': array"):
        read()


def test_random_decisions_are_legal_and_repeatable() -> None:
    """Decisions are in range, also below a caller's bound, and depend on the seed alone; else the proposal is taken."""
    for decision in DECISIONS:
        assert decide(decision, 7) == 7
        highest = min(decision.highest, decision.lowest + 9)
        draws: list[list[int]] = []
        for seed in (*range(30), 3):
            with random_decisions(seed):
                draws.append([decide(decision, decision.lowest, highest) for _ in range(20)])
        assert all(decision.lowest <= value <= highest for drawn in draws for value in drawn)
        assert draws[-1] == draws[3]
        assert len({tuple(drawn) for drawn in draws}) > 5


def test_the_block_ends_random_decisions() -> None:
    """After the block, and in an inner block with None, proposals are taken; within it, an illegal one is an error."""
    before = dict(os.environ)
    with random_decisions(1):
        with random_decisions(None):
            assert decide(_decisions.JOB_BATCHES, 5) == 5
        assert os.environ[_decisions.VARIABLE] == "1"
        with pytest.raises(InternalError, match=r"batches of a job: 5000 is not in \[1, 4096\]"):
            decide(_decisions.JOB_BATCHES, 5000)
    assert decide(_decisions.JOB_BATCHES, 5) == 5
    assert dict(os.environ) == before


def decided(number: int) -> int:
    """Return a decision of this process."""
    del number
    return decide(_decisions.JOB_POSITIONS, 10_000)


@pytest.mark.parametrize(("start_method", "seeds"), [("forkserver", (2, None, 3)), ("spawn", (2,))])
def test_processes_decide_at_random(start_method: Any, seeds: tuple[int | None, ...]) -> None:
    """Workers follow the block in which their loader started, by any start method."""
    dataset, limits = ps.range(40).map(decided).batch(1), ps.Limits(start_method=start_method)
    for seed in seeds:
        with (
            random_decisions(seed),
            ps.Loader(dataset, num_workers=1, workers="processes", limits=limits) as loader,
        ):
            assert ({int(batch[0]) for batch in loader} == {10_000}) == (seed is None)
