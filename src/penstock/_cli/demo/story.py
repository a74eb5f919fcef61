"""The demo on digits: one run is uninterrupted, one is killed and resumed, and the two are compared."""

import importlib.util
import math
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

import penstock as ps
from penstock._cli.demo.claims import Evidence, judge, print_claims, status_of
from penstock._cli.demo.digits import find_script, write_digits
from penstock._cli.demo.pictures import require_pillow
from penstock._cli.demo.report.digits_page import Fed, digits_page
from penstock._cli.demo.report.page import check_report
from penstock._cli.demo.training import Command, Kind, Run, Step, start
from penstock._cli.terminal import Terminal
from penstock.errors import InternalError, UsageError

_WINDOW_SECONDS: Final = 1.0
_MARGIN: Final = 4
_WORKER_SECONDS: Final = 1.0  # between the kills of two workers


@dataclass(frozen=True, slots=True)
class Setting:
    """The user's options: paths, the length of the runs, and the number of workers."""

    directory: Path | None
    report: Path
    epochs: int
    num_workers: int


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
    with _working_directory(setting.directory) as directory:
        terminal.line(
            terminal.colour(
                "Penstock: one run without interruption, one with killed workers that is killed and resumed", "bold"
            )
        )
        folder = _write_pictures(directory, terminal, is_kept=setting.directory is not None)
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
    """Return a step after which to kill: after a checkpoint, well inside an epoch, in the middle half of the run.

    Args:
        num_steps: the number of steps of the whole run.
        steps_per_epoch: the length of an epoch; no step close to its end is chosen, as a kill may come a step late.
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
def _working_directory(chosen: Path | None) -> Generator[Path]:
    """Yield the chosen directory, made if it does not exist, or else a temporary one that is removed afterwards."""
    if chosen is not None:
        chosen.mkdir(parents=True, exist_ok=True)
        yield chosen
    else:
        with tempfile.TemporaryDirectory(prefix="penstock-demo-") as directory:
            yield Path(directory)


def _write_pictures(directory: Path, terminal: Terminal, *, is_kept: bool) -> Path:
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
    terminal.line(f"         run B itself killed by SIGKILL after step {killed.steps[-1].step}, inside an epoch")
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
