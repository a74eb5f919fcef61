"""The report on the digits: its charts and their text."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock._cli.demo.claims import Claim, Evidence
from penstock._cli.demo.report.charts import Axis, Band, Chart, Marker, Point, Series
from penstock._cli.demo.report.page import Page, Section, Tile, listing, picture_grid
from penstock._cli.demo.training import Run, Step
from penstock._cli.versions import describe_machine

_NEAR_STEPS: Final = 14
_NUM_BINS: Final = 40


@dataclass(frozen=True, slots=True)
class Fed:
    """The first batch: images, float32 of shape (rows, 8, 8) between 0 and 1, and labels, integers of shape (rows,)."""

    images: NDArray[np.float32]
    labels: NDArray[Any]


def digits_page(evidence: Evidence, claims: Sequence[Claim], fed: Fed, script: Path) -> Page:
    """Return the page about two runs, the second of which was killed and resumed."""
    last, back = evidence.killed.steps[-1].step, evidence.resumed.resumed_at or 0
    result = "equal to the last bit" if all(claim.holds for claim in claims) else "not as claimed"
    return Page(
        title=f"Killed, resumed, and {result}",
        lead=f"A digit classifier was trained twice from the same PNG files. Run A was not interrupted. Run B was "
        f"killed by SIGKILL after step {last}, and a new process with another number of workers resumed from its last "
        f"checkpoint, at step {back}.",
        tiles=_tiles(evidence),
        claims=claims,
        sections=[
            Section(
                "Loss",
                "Each step's loss, as the script logged it: run A as a broad line, run B as a thin one. Where the thin "
                "line is inside the broad one, they are equal. Run B computed the shaded steps twice.",
                _loss_chart(evidence, near=False).svg(),
            ),
            Section(
                "The steps around the kill",
                "The same, enlarged: a dot for each step of run B before it was killed, a ring for each step after it "
                "resumed. A dot inside a ring is a step that was computed twice with the same loss.",
                _loss_chart(evidence, near=True).svg(),
            ),
            Section(
                "The first batch",
                f"{len(fed.labels)} digits in the order of the first shuffle, each rotated and shifted at random. The "
                "batch was recomputed for this page; the claim replay compares it with the log.",
                _grid(fed),
            ),
            Section(
                "Throughput",
                "Records per second from the start of each process; a process imports NumPy before its first step.",
                _throughput_chart(evidence).svg(),
            ),
            Section("The script", "The complete training script. Copy it and use your own data.", listing(script)),
        ],
        facts=[
            *describe_machine(),
            ("run A", _describe(evidence.straight)),
            ("run B, killed", _describe(evidence.killed)),
            ("run B, resumed", _describe(evidence.resumed)),
            ("weights", f"SHA-256 {evidence.straight.model}"),
        ],
    )


def _tiles(evidence: Evidence) -> list[Tile]:
    straight, resumed = evidence.straight, evidence.resumed
    rows = sum(step.rows for step in straight.steps)
    seconds = straight.steps[-1].seconds - straight.steps[0].seconds or 1.0
    return [
        Tile(f"{len(straight.steps):,}", "steps", "compared by SHA-256 and by the loss's bits"),
        Tile(f"{evidence.state_bytes}", "bytes", "of loader state in the checkpoint"),
        Tile(f"{(resumed.resume_seconds or 0.0) * 1e3:.1f}", "ms", "to load it, in the new process"),
        Tile(f"{(resumed.accuracy or 0.0):.1%}".removesuffix("%"), "%", "of the held-out digits classified correctly"),
        Tile(f"{rows / seconds:,.0f}", "/s", "digits decoded, augmented and trained on in run A"),
    ]


def _losses(steps: Sequence[Step]) -> list[Point]:
    return [(step.step, float.fromhex(step.loss)) for step in steps]


def _loss_chart(evidence: Evidence, *, near: bool) -> Chart:
    last, back = evidence.killed.steps[-1].step, evidence.resumed.resumed_at or 0
    low, high = 0, max(step.step for step in evidence.straight.steps)
    if near:
        low, high = max(low, back - _NEAR_STEPS), min(high, last + _NEAR_STEPS)
    straight, killed, resumed = (
        [point for point in _losses(run.steps) if low <= point[0] <= high]
        for run in (evidence.straight, evidence.killed, evidence.resumed)
    )
    values = [loss for _, loss in (*straight, *killed, *resumed)]
    return Chart(
        label="The loss at each step of run A and of run B" + (", around the kill" if near else ""),
        horizontal=Axis("step", low, high),
        vertical=Axis("loss", max(min(values) * 0.9, 1e-9), max(values) * 1.1, is_logarithmic=not near),
        series=[
            Series("run A, uninterrupted", straight, "straight"),
            Series("run B, until it was killed", killed, "killed", radius=3.2 if near else 0.0),
            Series("run B, resumed", resumed, "resumed", radius=6.0 if near else 0.0),
        ],
        markers=[
            Marker(back, f"resumed at step {back}", "resumed", is_left=True),
            Marker(last, f"killed after step {last}", "red"),
        ],
        bands=[Band(back, last, f"steps {back} to {last} were computed twice")],
    )


def _throughput_chart(evidence: Evidence) -> Chart:
    origin_b = evidence.killed.started
    straight = _rates(evidence.straight, evidence.straight.started)
    killed = _rates(evidence.killed, origin_b)
    resumed = _rates(evidence.resumed, origin_b)
    points = [*straight, *killed, *resumed]
    return Chart(
        label="Records per second over time, in run A and in run B with its gap between the kill and the resumption",
        horizontal=Axis("seconds since the run was started", 0.0, max(x for x, _ in points)),
        vertical=Axis("records/s", 0.0, max(y for _, y in points) * 1.15),
        series=[
            Series(f"run A, {evidence.straight.describe_workers()}", straight, "straight"),
            Series(f"run B, {evidence.killed.describe_workers()}, until it was killed", killed, "killed"),
            Series(f"run B resumed, {evidence.resumed.describe_workers()}", resumed, "resumed"),
        ],
        markers=[
            Marker(evidence.killed.steps[-1].seconds - origin_b, "killed", "red", is_left=True),
            Marker(evidence.resumed.started - origin_b, "restarted", "resumed"),
        ],
    )


def _rates(run: Run, origin: float) -> list[Point]:
    """Return (seconds since origin, records/s) for up to 40 spans of steps of one length."""
    length = max(1, len(run.steps) // _NUM_BINS)
    marks = run.steps[::length]
    rates: list[Point] = []
    for index, (before, after) in enumerate(pairwise(marks)):
        rows = sum(step.rows for step in run.steps[index * length + 1 : (index + 1) * length + 1])
        middle = (before.seconds + after.seconds) / 2 - origin
        rates.append((middle, rows / max(after.seconds - before.seconds, 1e-9)))
    return rates or [(run.steps[0].seconds - origin, 0.0)]


def _grid(fed: Fed) -> str:
    levels = np.clip(np.round(fed.images * 255), 0, 255).astype(np.uint8)
    return picture_grid(list(levels), [str(label) for label in fed.labels], is_pixelated=True)


def _describe(run: Run) -> str:
    seconds = run.steps[-1].seconds - run.started
    wait = run.steps[-1].wait_seconds / seconds
    rows = sum(step.rows for step in run.steps)
    work = f"{run.describe_workers()}, {len(run.steps)} steps, {rows:,} records"
    return f"{work} in {seconds:.1f} s, {wait:.1%} of it waiting for data"
