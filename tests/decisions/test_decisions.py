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

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")
DECISIONS = [value for value in vars(_decisions).values() if isinstance(value, Decision)]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.each_value
def test_batches_equal_the_definition(name: str, place: str) -> None:
    """Random decisions change no batch of any dataset in any place."""
    comparison = Comparison()
    comparison.run(name, place, 2 * len(name) + len(place))
    assert comparison.wrong == []
    assert comparison.total == sum(map(len, comparison.expected(name)))


@pytest.mark.parametrize("place", ["threads", "processes"])
def test_a_fault_that_needs_a_rare_alignment_is_found(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few seeds show a chunk that is taken for a whole batch's list of rows."""
    stacks: Any = property(lambda self: isinstance(self.step.merge, Stack))
    monkeypatch.setattr(BatchStage, "_stacks", stacks)
    comparison = Comparison()
    for seed in range(1, 21):
        comparison.run("pack, a function, batch", place, seed)
        if comparison.wrong:
            return
    pytest.fail(f"not found in {comparison.total} batches")


def test_by_default_the_proposal_is_taken() -> None:
    """Without random decisions, any proposal is returned unchecked."""
    assert [decide(decision, 7) for decision in DECISIONS] == [7] * len(DECISIONS)


@pytest.mark.parametrize("decision", DECISIONS, ids=lambda decision: decision.name)
def test_random_decisions_are_legal_and_repeatable(decision: Decision) -> None:
    """Decisions are in range, also below a caller's bound, and depend on the seed alone."""
    highest = min(decision.highest, decision.lowest + 9)
    draws: list[list[int]] = []
    for seed in (*range(30), 3):
        with random_decisions(seed):
            draws.append([decide(decision, decision.lowest, highest) for _ in range(20)])
    assert {low <= value <= highest for low in [decision.lowest] for drawn in draws for value in drawn} == {True}
    assert draws[-1] == draws[3]
    assert len({tuple(drawn) for drawn in draws}) > 5


def test_an_illegal_proposal_is_an_error() -> None:
    """The error names the decision, the value and the listed range."""
    with random_decisions(1), pytest.raises(InternalError, match=r"batches of a job: 5000 is not in \[1, 4096\]"):
        decide(_decisions.JOB_BATCHES, 5000)


def test_the_block_ends_random_decisions() -> None:
    """After the block, and in an inner block with None, proposals are taken; the environment is restored."""
    before = dict(os.environ)
    with random_decisions(1):
        with random_decisions(None):
            assert decide(_decisions.JOB_BATCHES, 5) == 5
        assert os.environ[_decisions.VARIABLE] == "1"
    assert decide(_decisions.JOB_BATCHES, 5) == 5
    assert dict(os.environ) == before


def decided(number: int) -> int:
    """Return a decision of this process."""
    del number
    return decide(_decisions.JOB_POSITIONS, 10_000)


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_processes_decide_at_random(start_method: Any) -> None:
    """Workers follow the block in which their loader started, by any start method."""
    limits = ps.Limits(start_method=start_method)
    found: set[bool] = set()
    for seed in (2, None, 3):
        with (
            random_decisions(seed),
            ps.Loader(ps.range(40).map(decided).batch(1), num_workers=1, workers="processes", limits=limits) as loader,
        ):
            found.add((seed is None) == ({int(batch[0]) for batch in loader} == {10_000}))
    assert found == {True}


def test_rows_that_are_no_list_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch is made of a list only, so a faulty chunk is an error and no wrong batch."""
    stacks: Any = property(lambda self: isinstance(self.step.merge, Stack))
    monkeypatch.setattr(BatchStage, "_stacks", stacks)
    dataset = DATASETS["whole documents, pack, a function"](600)

    def read() -> None:
        for seed in range(1, 21):
            with random_decisions(seed), ps.Loader(dataset, num_workers=1, workers="threads") as loader:
                list(loader)

    with pytest.raises(InternalError, match=r"the list of a batch's 4 rows; got \{'tokens': array"):
        read()
