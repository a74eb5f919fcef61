"""The demo's claims hold for equal runs, and each fails for the difference that it is about."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock._cli.demo.digits import Evidence, judge
from penstock._cli.demo.report import Claim, judge_resume, judge_state, status_of
from penstock._cli.demo.training import Run, Step
from tests.cli.runs import KILLED_AT, NUM_STEPS, RESUMED_AT, make_evidence

Change = Callable[[Evidence], Evidence]


def failed(evidence: Evidence) -> set[str]:
    """Return the names of the claims that do not hold."""
    return {claim.name for claim in judge(evidence) if not claim.holds}


def changed(part: str, **change: Any) -> Change:
    """Return a change of one run's values."""
    return lambda evidence: replace(evidence, **{part: replace(getattr(evidence, part), **change)})


def step_changed(part: str, number: int, change: Callable[[Step], Step]) -> Change:
    """Return a change of one step of a run."""
    return lambda evidence: changed(
        part, steps=tuple(change(step) if step.step == number else step for step in getattr(evidence, part).steps)
    )(evidence)


def steps_kept(part: str, keeps: Callable[[int], bool]) -> Change:
    """Return a change that leaves steps of a run out."""
    return lambda evidence: changed(
        part, steps=tuple(step for step in getattr(evidence, part).steps if keeps(step.step))
    )(evidence)


def other_batch(step: Step) -> Step:
    """Return the step with another batch."""
    return replace(step, sha256="0" * 64)


def next_loss(step: Step) -> Step:
    """Return the step with a loss that differs in its last bit."""
    significand, exponent = step.loss.split("p")
    loss = significand[:-1] + format(int(significand[-1], 16) ^ 1, "x") + "p" + exponent
    assert float.fromhex(loss) != float.fromhex(step.loss)
    return replace(step, loss=loss)


EMPTY = Run(2, "threads", 0.0)
FAULTS: list[tuple[set[str], Change]] = [
    (set(), lambda evidence: evidence),
    ({"losses"}, step_changed("resumed", 20, next_loss)),
    ({"batches", "losses"}, steps_kept("resumed", lambda step: step != 20)),
    # A busy machine's kill may take effect at the end of an epoch, and no step may lie between it and the resumption.
    (set(), lambda evidence: replace(evidence, killed=replace(evidence.killed, steps=evidence.straight.steps[:20]))),
    ({"batches", "losses"}, steps_kept("resumed", lambda step: step > KILLED_AT + 1)),
    ({"model"}, changed("resumed", model="cd" * 32)),
    ({"resume"}, changed("resumed", resume_seconds=0.0101)),
    ({"resume"}, changed("resumed", resume_seconds=None)),
    ({"killed"}, changed("resumed", num_workers=2)),
    ({"killed"}, changed("resumed", resumed_at=None)),
    ({"killed"}, changed("resumed", resumed_at=10)),  # an epoch's end
    ({"killed"}, changed("killed", model="ab" * 32)),  # it was not killed
    ({"workers"}, changed("killed", killed_workers=0)),
    ({"workers"}, changed("resumed", killed_workers=0)),
    ({"state"}, lambda evidence: replace(evidence, state_bytes=1000)),
    ({"state"}, lambda evidence: replace(evidence, state_bytes=0)),
    ({"replay"}, lambda evidence: replace(evidence, recomputed={0: "0" * 64})),
    ({"replay"}, lambda evidence: replace(evidence, recomputed={})),
    ({"accuracy"}, lambda evidence: changed("straight", accuracy=0.95)(changed("resumed", accuracy=0.95)(evidence))),
    (set(), lambda evidence: changed("straight", accuracy=0.951)(changed("resumed", accuracy=0.951)(evidence))),
    ({"accuracy"}, lambda evidence: changed("straight", accuracy=None)(changed("resumed", accuracy=None)(evidence))),
    (
        {"killed", "batches", "losses", "model", "accuracy", "replay", "resume"},
        lambda _: Evidence(EMPTY, EMPTY, replace(EMPTY, num_workers=1), 10, 3, 311, {}),
    ),
]


@pytest.mark.parametrize(("names", "fault"), FAULTS)
def test_each_claim_fails_for_its_own_fault(names: set[str], fault: Change) -> None:
    """A planted fault fails the claims that it is about, and no others."""
    assert failed(fault(make_evidence())) == names


def test_the_first_different_batch_is_named() -> None:
    """A batch that differs in run B is found before the kill, among the steps made twice, and after."""
    evidence = make_evidence()
    for part, step in (("killed", 3), ("killed", KILLED_AT), ("resumed", RESUMED_AT), ("resumed", NUM_STEPS - 1)):
        (claim,) = (claim for claim in judge(step_changed(part, step, other_batch)(evidence)) if not claim.holds)
        assert claim.name == "batches"
        assert f"the first is step {step}" in claim.detail
    assert failed(steps_kept("straight", lambda step: step != NUM_STEPS - 1)(evidence)) >= {"batches", "losses"}
    assert len({claim.name for claim in judge(evidence)}) == len(judge(evidence)) == 9


def test_a_time_alone_fails_no_run() -> None:
    """Every claim that doesn't hold decides the exit status, but for one of a time; not to resume at all is none."""
    late, not_resumed = judge_resume(0.0117), Claim("resume", holds=False, detail="the run was not resumed")
    assert [judge_resume(seconds).holds for seconds in (0.0099, 0.0100, 0.0117)] == [True, False, False]
    assert [judge_state(size).holds for size in (999, 1001)] == [True, False]
    assert status_of([judge_state(311), late]) == 0
    assert status_of([judge_state(1001), judge_resume(0.0001)]) == 1
    assert status_of([judge_state(311), not_resumed]) == 1
