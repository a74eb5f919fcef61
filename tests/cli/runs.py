"""Runs as the demo's script would have logged them, for tests that plant a difference in one."""

import hashlib
from dataclasses import replace

from penstock._cli.demo.digits import Evidence
from penstock._cli.demo.training import Run, Step

STEPS_PER_EPOCH = 10
EPOCHS = 3
NUM_STEPS = STEPS_PER_EPOCH * EPOCHS
KILLED_AT = 15
RESUMED_AT = 12


def make_step(step: int, started: float) -> Step:
    """Return what a faultless script logs about a step."""
    sha256 = hashlib.sha256(str(step).encode()).hexdigest()
    return Step(step, sha256, (2.0 / (step + 1)).hex(), 64, started + 0.1 * step, 0.01 * step)


def make_run(first: int, last: int, num_workers: int, started: float) -> Run:
    """Return a faultless run from step `first` to step `last`."""
    run = Run(num_workers, "threads", started, tuple(make_step(step, started) for step in range(first, last + 1)))
    return replace(run, accuracy=0.97, model="ab" * 32) if last == NUM_STEPS - 1 else run


def make_evidence() -> Evidence:
    """Return evidence under which every claim holds."""
    killed = make_run(0, KILLED_AT, 2, 15.0)
    resumed = make_run(RESUMED_AT, NUM_STEPS - 1, 1, 20.0)
    return Evidence(
        straight=make_run(0, NUM_STEPS - 1, 2, 10.0),
        killed=replace(killed, workers="processes", killed_workers=3),
        resumed=replace(resumed, workers="processes", killed_workers=2, resumed_at=RESUMED_AT, resume_seconds=0.0004),
        steps_per_epoch=STEPS_PER_EPOCH,
        epochs=EPOCHS,
        state_bytes=311,
        recomputed={step: make_step(step, 0.0).sha256 for step in (0, KILLED_AT, NUM_STEPS - 1)},
    )
