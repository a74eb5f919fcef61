"""The demo's claims hold for equal runs, and each fails for the difference that it is about."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.runs import (
    KILLED_AT,
    NUM_STEPS,
    RESUMED_AT,
    Claim,
    Evidence,
    Run,
    Step,
    judge,
    judge_resume,
    judge_state,
    make_evidence,
    status_of,
)


def failed(evidence: Evidence) -> set[str]:
    """Return the names of the claims that do not hold."""
    return {claim.name for claim in judge(evidence) if not claim.holds}


def change_step(run: Run, number: int, change: Callable[[Step], Step]) -> Run:
    """Return the run with one of its steps changed."""
    assert number in {step.step for step in run.steps}
    return replace(run, steps=tuple(change(step) if step.step == number else step for step in run.steps))


def wrong_sha256(step: Step) -> Step:
    """Return the step with another batch."""
    return replace(step, sha256="0" * 64)


def next_loss(step: Step) -> Step:
    """Return the step with a loss that differs in its last bit."""
    significand, exponent = step.loss.split("p")
    changed = significand[:-1] + format(int(significand[-1], 16) ^ 1, "x") + "p" + exponent
    assert float.fromhex(changed) != float.fromhex(step.loss)
    return replace(step, loss=changed)


def test_every_claim_holds_for_equal_runs() -> None:
    """Two runs that logged the same bits make every claim true, and each has its own name."""
    claims = judge(make_evidence())
    assert [claim.name for claim in claims if not claim.holds] == []
    assert len({claim.name for claim in claims}) == len(claims) == 9


@pytest.mark.parametrize(
    ("part", "step"), [("killed", 3), ("killed", KILLED_AT), ("resumed", RESUMED_AT), ("resumed", NUM_STEPS - 1)]
)
def test_one_different_batch_fails_the_claim_on_batches(part: str, step: int) -> None:
    """A batch that differs in run B is found before the kill, among the steps made twice, and after."""
    evidence = make_evidence()
    run: Run = getattr(evidence, part)
    change: dict[str, Any] = {part: change_step(run, step, wrong_sha256)}
    (claim,) = [claim for claim in judge(replace(evidence, **change)) if not claim.holds]
    assert claim.name == "batches"
    assert f"the first is step {step}" in claim.detail


def test_a_loss_that_differs_in_its_last_bit_fails_the_claim_on_losses() -> None:
    """Losses are compared as bits, not to within a tolerance."""
    evidence = make_evidence()
    assert failed(replace(evidence, resumed=change_step(evidence.resumed, 20, next_loss))) == {"losses"}


def without(run: Run, number: int) -> Run:
    """Return the run with one of its steps left out."""
    return replace(run, steps=tuple(step for step in run.steps if step.step != number))


def test_a_step_that_was_never_made_fails() -> None:
    """Equal steps are not enough: both runs must have made all of them."""
    evidence = make_evidence()
    assert failed(replace(evidence, resumed=without(evidence.resumed, 20))) == {"batches", "losses"}
    assert failed(replace(evidence, straight=without(evidence.straight, NUM_STEPS - 1))) >= {"batches", "losses"}


def test_a_resumption_behind_the_kill_is_a_gap() -> None:
    """Steps that lie between the kill and the resumption were lost, and that is said."""
    evidence = make_evidence()
    late = replace(evidence.resumed, steps=tuple(step for step in evidence.resumed.steps if step.step > KILLED_AT + 1))
    assert {"batches", "losses"} <= failed(replace(evidence, resumed=late))


def test_a_kill_may_take_effect_at_the_end_of_an_epoch() -> None:
    """On a busy machine the script runs on for some steps; the run resumes inside an epoch all the same."""
    evidence = make_evidence()
    late = replace(evidence.killed, steps=evidence.straight.steps[:20])
    assert "killed" not in failed(replace(evidence, killed=late))


FAULTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "the models differ": ("model", "resumed", {"model": "cd" * 32}),
    "loading the state took too long": ("resume", "resumed", {"resume_seconds": 0.0101}),
    "no state was loaded": ("resume", "resumed", {"resume_seconds": None}),
    "the workers were as many as before": ("killed", "resumed", {"num_workers": 2}),
    "it began again": ("killed", "resumed", {"resumed_at": None}),
    "it resumed at an epoch's end": ("killed", "resumed", {"resumed_at": 10}),
    "it was not killed": ("killed", "killed", {"model": "ab" * 32}),
    "no worker was killed before": ("workers", "killed", {"killed_workers": 0}),
    "no worker was killed after": ("workers", "resumed", {"killed_workers": 0}),
    "the state is too large": ("state", "", {"state_bytes": 1000}),
    "there is no state": ("state", "", {"state_bytes": 0}),
    "the description gives another batch": ("replay", "", {"recomputed": {0: "0" * 64}}),
    "nothing was recomputed": ("replay", "", {"recomputed": {}}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_claim_fails_alone(fault: str) -> None:
    """A planted fault fails the one claim that it is about."""
    name, part, change = FAULTS[fault]
    evidence = make_evidence()
    if part:
        run: Run = getattr(evidence, part)
        change = {part: replace(run, **change)}
    assert failed(replace(evidence, **change)) == {name}


@pytest.mark.parametrize(("accuracy", "holds"), [(0.95, False), (0.951, True), (None, False)])
def test_accuracy_must_be_above_95_percent_in_both_runs(accuracy: float | None, *, holds: bool) -> None:
    """The bound itself is not enough, and a run without an end has no accuracy."""
    evidence = make_evidence()
    both = replace(
        evidence,
        straight=replace(evidence.straight, accuracy=accuracy),
        resumed=replace(evidence.resumed, accuracy=accuracy),
    )
    assert ("accuracy" not in failed(both)) == holds


def test_empty_runs_prove_nothing() -> None:
    """Runs that logged nothing make no claim on batches, losses or the model true."""
    empty = Run(2, "threads", 0.0)
    evidence = Evidence(empty, empty, Run(1, "threads", 0.0), 10, 3, 311, {})
    assert {"killed", "batches", "losses", "model", "accuracy", "replay", "resume"} == failed(evidence)


def test_a_time_alone_fails_no_run() -> None:
    """Every claim that doesn't hold decides the exit status, but for one of a time; not to resume at all is none."""
    late, not_resumed = judge_resume(0.0117), Claim("resume", holds=False, detail="the run was not resumed")
    assert not late.holds
    assert status_of([judge_state(311), late]) == 0
    assert status_of([judge_state(1001), judge_resume(0.0001)]) == 1
    assert status_of([judge_state(311), not_resumed]) == 1


def test_the_promises_of_a_state_are_the_same_for_ones_own_images() -> None:
    """`demo --images` judges size and time by the same bounds."""
    assert judge_state(999).holds
    assert judge_resume(0.0099).holds
    assert not judge_resume(0.0100).holds
    assert isinstance(judge_state(1), Claim)
