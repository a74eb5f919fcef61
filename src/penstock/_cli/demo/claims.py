"""The claims of the demo: each is a function from the logs of two runs to ✓ or ✗, and can fail."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from penstock._cli.demo.training import Run, Step
from penstock._cli.terminal import ENDED, FAILED, Terminal

MIN_ACCURACY: Final = 0.95
MAX_STATE_BYTES: Final = 1000
MAX_RESUME_SECONDS: Final = 0.010


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    Attributes:
        name: one or two words.
        holds: whether the runs satisfy it.
        detail: its figures; if it does not hold, the deviating values.
        is_timed: whether it depends on a time that was measured once, and so also on how busy the machine was.
    """

    name: str
    holds: bool
    detail: str
    is_timed: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """The results of the runs, from which the claims are judged.

    Attributes:
        straight: run A, from the first step to the last.
        killed: run B until it was killed.
        resumed: run B from its checkpoint on, in another process.
        steps_per_epoch: the number of batches in one pass over the training images.
        epochs: the number of passes of a whole run.
        state_bytes: the length of the loader's state, as JSON, in the checkpoint that run B resumed from.
        recomputed: for some steps, the SHA-256 of the batch, computed from the dataset's description alone.
    """

    straight: Run
    killed: Run
    resumed: Run
    steps_per_epoch: int
    epochs: int
    state_bytes: int
    recomputed: Mapping[int, str]


def judge(evidence: Evidence) -> tuple[Claim, ...]:
    """Return all claims, each with its result."""
    return (
        _was_killed(evidence),
        *_lost_workers(evidence),
        _equal_steps("batches", "the same SHA-256", evidence, lambda step: step.sha256),
        _equal_steps("losses", "equal to the last bit", evidence, lambda step: step.loss),
        _equal_models(evidence),
        _is_accurate(evidence),
        _is_pure(evidence),
        judge_state(evidence.state_bytes),
        _resumes_at_once(evidence),
    )


def print_claims(claims: Sequence[Claim], terminal: Terminal) -> None:
    """Print each claim with ✓ or ✗ before it."""
    for claim in claims:
        mark = terminal.colour("✓", "green") if claim.holds else terminal.colour("✗", "red")
        terminal.entry(mark, claim.name, claim.detail)


def status_of(claims: Sequence[Claim]) -> int:
    """Return the exit status of a demo: 1 if a claim does not hold, else 0.

    A claim about a time is shown but ignored, since the machine may be busy.
    """
    return ENDED if all(claim.holds or claim.is_timed for claim in claims) else FAILED


def _was_killed(evidence: Evidence) -> Claim:
    killed, resumed = evidence.killed, evidence.resumed
    num_made = killed.steps[-1].step + 1 if killed.steps else 0
    done = num_made % evidence.steps_per_epoch
    detail = (
        f"SIGKILL after step {num_made - 1}, {done} of {evidence.steps_per_epoch} batches into its epoch, with "
        f"{killed.describe_workers()}; resumed at step {resumed.resumed_at} in a new process with "
        f"{resumed.describe_workers()}"
    )
    was_cut = killed.model is None and done != 0 and resumed.num_workers != killed.num_workers
    holds = was_cut and resumed.resumed_at is not None and 0 < resumed.resumed_at <= num_made
    return Claim("killed", holds, detail)


def _lost_workers(evidence: Evidence) -> tuple[Claim, ...]:
    """Return the claim that run B lost workers; none on a system without worker processes."""
    runs = evidence.killed, evidence.resumed
    if any(run.workers == "threads" for run in runs):
        return ()
    before, after = (run.killed_workers for run in runs)
    detail = f"SIGKILL ended {before} + {after} of run B's worker processes, before and after it was killed itself"
    return (Claim("workers", before > 0 and after > 0, detail),)


def _equal_steps(name: str, how: str, evidence: Evidence, value: Callable[[Step], str]) -> Claim:
    expected = {step.step: value(step) for step in evidence.straight.steps}
    again = [*evidence.killed.steps, *evidence.resumed.steps]
    num_steps = evidence.epochs * evidence.steps_per_epoch
    wrong = sorted({step.step for step in again if expected.get(step.step) != value(step)})
    missing = sorted(set(range(num_steps)) - (set(expected) & {step.step for step in again}))
    if wrong:
        return Claim(
            name, holds=False, detail=f"{len(wrong)} of {num_steps} steps differ, the first is step {wrong[0]}"
        )
    if missing or num_steps == 0:
        first = f", the first is step {missing[0]}" if missing else ""
        return Claim(name, holds=False, detail=f"{len(missing)} of {num_steps} steps are missing in one run{first}")
    twice = len(again) - num_steps
    detail = f"{how} at all {num_steps} steps; run B computed {twice} of them twice"
    return Claim(name, holds=True, detail=detail)


def _equal_models(evidence: Evidence) -> Claim:
    straight, resumed = evidence.straight.model, evidence.resumed.model
    if straight is None or straight != resumed:
        return Claim("model", holds=False, detail=f"the weights' SHA-256 is {straight} in run A, {resumed} in run B")
    return Claim("model", holds=True, detail=f"the final weights are equal to the last bit, SHA-256 {straight[:16]}…")


def _is_accurate(evidence: Evidence) -> Claim:
    accuracy = evidence.resumed.accuracy or 0.0
    shown = math.floor(accuracy * 1000) / 1000  # rounding up could show a figure above the bound that it misses
    detail = f"{shown:.1%} of the held-out digits are classified correctly; more than {MIN_ACCURACY:.0%} are required"
    return Claim("accuracy", accuracy > MIN_ACCURACY and accuracy == evidence.straight.accuracy, detail)


def _is_pure(evidence: Evidence) -> Claim:
    logged = {step.step: step.sha256 for step in evidence.straight.steps}
    wrong = [step for step, sha256 in evidence.recomputed.items() if logged.get(step) != sha256]
    steps = ", ".join(str(step) for step in evidence.recomputed)
    if wrong or not evidence.recomputed:
        return Claim("replay", holds=False, detail=f"of the recomputed steps {steps}, {wrong} differ from the log")
    return Claim(
        "replay", holds=True, detail=f"steps {steps}, recomputed here without workers, have the SHA-256 of the log"
    )


def judge_state(num_bytes: int) -> Claim:
    """Return the claim that a loader's state is as small as promised; `num_bytes` is its length as JSON."""
    detail = f"the loader saves {num_bytes} bytes of JSON; the limit is {MAX_STATE_BYTES:,}"
    return Claim("state", 0 < num_bytes < MAX_STATE_BYTES, detail)


def judge_resume(seconds: float, first_batch_seconds: float | None = None) -> Claim:
    """Return the claim that a loader resumed as fast as promised.

    Args:
        seconds: the duration of `load_state_dict`.
        first_batch_seconds: the wait for the first batch after that; shown, but without a limit.
    """
    detail = f"loading the state took {seconds * 1e3:.1f} ms; the limit is {MAX_RESUME_SECONDS * 1e3:.0f} ms"
    if first_batch_seconds is not None:
        detail += f". The first batch came after another {first_batch_seconds * 1e3:.1f} ms"
    return Claim("resume", seconds < MAX_RESUME_SECONDS, detail, is_timed=True)


def _resumes_at_once(evidence: Evidence) -> Claim:
    seconds = evidence.resumed.resume_seconds
    if seconds is None or not evidence.resumed.steps:
        return Claim("resume", holds=False, detail="the run was not resumed")
    return judge_resume(seconds, evidence.resumed.steps[0].wait_seconds)
