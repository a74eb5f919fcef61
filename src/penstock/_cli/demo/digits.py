"""The demo on digits: one training run is uninterrupted, one is killed and resumed, and the two are compared.

The data are 1,797 handwritten digits that scikit-learn contains: the test part of "Optical Recognition of Handwritten
Digits" by E. Alpaydin and C. Kaynak (UCI, 1998). They are written as PNG files once; their 17 levels of grey (0 to 16)
become brightness 0 to 240 in steps of 15, without loss.
"""

import importlib.util
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from penstock._cli.demo.report import (
    Axis,
    Band,
    Chart,
    Claim,
    Marker,
    Page,
    Point,
    Section,
    Series,
    Tile,
    check_report,
    describe_machine,
    encode_png,
    judge_resume,
    judge_state,
    listing,
    picture_grid,
    print_claims,
    require_pillow,
    status_of,
)
from penstock._cli.demo.training import Command, Kind, Run, Step, start
from penstock._cli.terminal import Terminal
from penstock._optional import need
from penstock.errors import InternalError, UsageError

BRIGHTNESS: Final = 15
NUM_DIGITS: Final = 1797
MIN_ACCURACY: Final = 0.95
_WINDOW_SECONDS: Final = 1.0  # of the pace that is shown
_MARGIN: Final = 4
_WORKER_SECONDS: Final = 1.0  # between the kills of two workers
_NEAR_STEPS: Final = 14  # shown on either side of the kill
_NUM_BINS: Final = 40


@dataclass(frozen=True, slots=True)
class Setting:
    """The user's options: paths, the length of the runs, and the number of workers."""

    directory: Path | None
    report: Path
    epochs: int
    num_workers: int


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


@dataclass(frozen=True, slots=True)
class Fed:
    """The first batch: images, float32 of shape (rows, 8, 8) between 0 and 1, and labels, integers of shape (rows,)."""

    images: NDArray[np.float32]
    labels: NDArray[Any]


def run_story(setting: Setting, terminal: Terminal) -> int:
    """Run the whole demo, print its results, write its report, and return the exit status.

    Raises:
        UsageError: the report's folder does not exist.
        MissingDependencyError: Pillow or scikit-learn is not installed.
        RunError: the training script failed.
    """
    check_report(setting.report)
    require_pillow()
    began = time.perf_counter()
    with working_directory(setting.directory) as directory:
        terminal.line(
            terminal.colour(
                "Penstock: one run without interruption, one with killed workers that is killed and resumed", "bold"
            )
        )
        folder = write_pictures(directory, terminal, is_kept=setting.directory is not None)
        script = _Script(folder)
        evidence = _run_both(setting, script, directory, terminal)
        claims = judge(evidence)
        terminal.line()
        print_claims(claims, terminal)
        setting.report.write_text(digits_page(evidence, claims, script.fed(), script.path).html(), encoding="utf-8")
    terminal.line()
    terminal.line(f"  training script, to copy   {script.path}")
    terminal.line(f"  report                     {setting.report.resolve()}")
    terminal.line(terminal.colour(f"  {time.perf_counter() - began:.0f} seconds in total", "dim"))
    return status_of(claims)


def choose_kill_step(num_steps: int, steps_per_epoch: int, save_every: int, chance: Callable[[int], int]) -> int:
    """Return the step after which to kill: inside an epoch, in the middle half of the run.

    The last checkpoint before it is also inside an epoch.

    Args:
        num_steps: the number of steps of the whole run.
        steps_per_epoch: the length of an epoch; no step close to its end is chosen, since a kill may take effect later.
        save_every: the script writes a checkpoint after each multiple of it.
        chance: a function that returns any integer in [0, n) for n.

    Raises:
        UsageError: the run is too short to have such a step.
    """
    steps = [
        step
        for step in range(save_every, num_steps)
        if num_steps // 4 <= step <= num_steps * 3 // 4 + 1
        and _MARGIN <= step % steps_per_epoch <= steps_per_epoch - 2 * _MARGIN
        and step % save_every >= _MARGIN
        and (step - step % save_every) % steps_per_epoch != 0
    ]
    if not steps:
        raise UsageError(
            f"the runs must be long enough to be killed inside an epoch; got {num_steps} steps. Raise --epochs"
        )
    return steps[chance(len(steps))]


class _Script:
    """The example script, imported to compute the expected batches from its dataset in this process."""

    def __init__(self, folder: Path) -> None:
        self.path = find_script()
        self.folder = folder
        self._module: Any = _import(self.path)
        self._train, _ = self._module.describe(folder)
        self.save_every: int = self._module.SAVE_EVERY
        self.steps_per_epoch = len(self._train)

    def digest(self, step: int) -> str:
        """Return the SHA-256 of a step's batch, computed here without workers, in the log's form."""
        digest: str = self._module.digest(self._batch(step))
        return digest

    def fed(self) -> Fed:
        """Return the first batch."""
        batch = self._batch(0)
        return Fed(batch["image"], batch["label"])

    def _batch(self, step: int) -> dict[str, Any]:
        with ps.Loader(self._train) as loader:
            batch: dict[str, Any] = loader.batch_at(step)
            return batch


def _import(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("penstock_example_digits", path)
    if spec is None or spec.loader is None:
        raise InternalError(f"the example script must be a Python file; got {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@contextmanager
def working_directory(chosen: Path | None) -> Generator[Path]:
    """Yield the chosen directory, made if it does not exist, or else a temporary one that is removed afterwards."""
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen
    else:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
            yield Path(directory)


def write_pictures(directory: Path, terminal: Terminal, *, is_kept: bool) -> Path:
    """Write the digits into a folder of a directory, say so, and return the folder."""
    folder = directory / "digits"
    count = write_digits(
        folder, lambda share: terminal.progress("data ", share if terminal.is_live else 0.0, "writing PNG files")
    )
    kept = "kept" if is_kept else "removed at the end; --directory keeps them"
    terminal.line(f"  data   {count:,} real handwritten digits as PNG files in class folders")
    terminal.line(terminal.colour(f"         {folder} ({kept})", "dim"))
    return folder


def _run_both(setting: Setting, script: _Script, directory: Path, terminal: Terminal) -> Evidence:
    num_steps = setting.epochs * script.steps_per_epoch
    other_workers = setting.num_workers - 1 if setting.num_workers > 1 else setting.num_workers + 1
    kill_step = choose_kill_step(num_steps, script.steps_per_epoch, script.save_every, secrets.randbelow)

    def command(name: str, num_workers: int, workers: Kind) -> Command:
        return Command(script.path, script.folder, setting.epochs, num_workers, workers, directory / f"{name}.npz")

    for name in ("run-a", "run-b"):
        (directory / f"{name}.npz").unlink(missing_ok=True)
    straight = _follow("run A", command("run-a", setting.num_workers, "threads"), num_steps, terminal)
    terminal.line(f"  run A  without interruption, {straight.describe_workers()}: {_summary(straight)}")
    kind: Kind = "processes" if hasattr(os, "memfd_create") else "threads"
    run_b = command("run-b", setting.num_workers, kind)
    killed = _follow("run B", run_b, num_steps, terminal, kill_step=kill_step)
    lost = f"; {killed.killed_workers} of them killed and replaced" if killed.killed_workers else ""
    terminal.line(f"  run B  {killed.describe_workers()}{lost}")
    terminal.line(f"         run B itself killed by SIGKILL after step {killed.steps[-1].step}")
    state_bytes = _state_bytes(directory / "run-b.npz")
    resumed = _follow("run B", command("run-b", other_workers, kind), num_steps, terminal)
    terminal.line(
        f"         resumed at step {resumed.resumed_at} in a new process, {resumed.describe_workers()}: "
        f"{_summary(resumed)}"
    )
    steps = sorted({0, killed.steps[-1].step, num_steps - 1})
    return Evidence(
        straight=straight,
        killed=killed,
        resumed=resumed,
        steps_per_epoch=script.steps_per_epoch,
        epochs=setting.epochs,
        state_bytes=state_bytes,
        recomputed={step: script.digest(step) for step in steps},
    )


def _follow(label: str, command: Command, num_steps: int, terminal: Terminal, *, kill_step: int | None = None) -> Run:
    last_kill = -math.inf
    with start(command) as process:
        for run in process.follow():
            if run.steps:
                step = run.steps[-1].step
                if command.workers == "processes" and run.steps[-1].seconds - last_kill >= _WORKER_SECONDS:
                    last_kill = run.steps[-1].seconds
                    process.kill_worker()
                terminal.progress(label, (step + 1) / num_steps, f"step {step:,}/{num_steps:,} · {_pace(run.steps)}")
                if kill_step is not None and step >= kill_step:
                    process.kill()
        return process.run


def _pace(steps: tuple[Step, ...]) -> str:
    """Return records/s and the share of time spent waiting for data in the last second, and the last loss."""
    last = steps[-1]
    recent = [step for step in steps if step.seconds >= last.seconds - _WINDOW_SECONDS]
    seconds = last.seconds - recent[0].seconds or _WINDOW_SECONDS
    rows = sum(step.rows for step in recent[1:])
    wait = (last.wait_seconds - recent[0].wait_seconds) / seconds
    loss = float.fromhex(last.loss)
    return f"{rows / seconds:6,.0f} records/s · {wait:4.0%} waiting for data · loss {loss:.3f}"


def _summary(run: Run) -> str:
    rows = sum(step.rows for step in run.steps)
    seconds = run.steps[-1].seconds - run.started
    return f"{rows:,} records in {seconds:.1f} s, {run.steps[-1].wait_seconds / seconds:.0%} of it waiting for data"


def _state_bytes(checkpoint: Path) -> int:
    with np.load(checkpoint) as saved:
        return len(str(saved["loader"]).encode())


def load_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the digits as levels from 0 to 16, uint8 of shape (1797, 8, 8), and their labels, int64 from 0 to 9.

    Raises:
        MissingDependencyError: scikit-learn is not installed.
    """
    datasets: Any = need("sklearn.datasets", "scikit-learn", extra="demo")
    bunch = datasets.load_digits()
    return bunch.images.astype(np.uint8), bunch.target.astype(np.int64)


def write_digits(folder: Path, progress: Callable[[float], None]) -> int:
    """Write each digit to `folder/LABEL/NUMBER.png`, unless the file exists.

    Args:
        folder: the target; it is made if it does not exist. A file takes its name only when it is complete.
        progress: called with the share that is done, between 0 and 1.

    Returns:
        The number of digits.
    """
    if len(list(folder.glob("?/????.png"))) == NUM_DIGITS:
        return NUM_DIGITS
    images, labels = load_digits()
    for label in range(10):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
    for number, (levels, label) in enumerate(zip(images, labels, strict=True)):
        path = folder / str(label) / f"{number:04}.png"
        if not path.exists():
            unfinished = path.with_suffix(".unfinished")
            unfinished.write_bytes(encode_png(levels * np.uint8(BRIGHTNESS)))
            unfinished.replace(path)
        progress((number + 1) / len(images))
    return len(images)


def find_script() -> Path:
    """Return the path of `digits.py`, the short script that the demo runs.

    A wheel carries a copy beside this file; in a checkout it is the one in `examples/`.

    Raises:
        InternalError: the script is in neither place.
    """
    installed = Path(__file__).parent / "examples" / "digits.py"
    checkout = Path(__file__).parents[4] / "examples" / "digits.py"
    for path in (installed, checkout):
        if path.is_file():
            return path
    raise InternalError(f"examples/digits.py must come with Penstock; it is neither at {installed} nor at {checkout}")


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


def _was_killed(evidence: Evidence) -> Claim:
    killed, resumed = evidence.killed, evidence.resumed
    num_made = killed.steps[-1].step + 1 if killed.steps else 0
    at = resumed.resumed_at or 0
    inside = at % evidence.steps_per_epoch  # a kill may take effect late, between two epochs; the checkpoint is before
    detail = (
        f"SIGKILL after step {num_made - 1}, with {killed.describe_workers()}; resumed at step {at}, {inside} of "
        f"{evidence.steps_per_epoch} batches into its epoch, in a new process with {resumed.describe_workers()}"
    )
    holds = killed.model is None and resumed.num_workers != killed.num_workers and inside != 0 and at <= num_made
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


def _resumes_at_once(evidence: Evidence) -> Claim:
    seconds = evidence.resumed.resume_seconds
    if seconds is None or not evidence.resumed.steps:
        return Claim("resume", holds=False, detail="the run was not resumed")
    return judge_resume(seconds, evidence.resumed.steps[0].wait_seconds)


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
