"""A program that injects so many faults, and prints its findings.

    python -m tests.faults --faults 10000 [--seed 0] [--round 17] [--checkpoint counts.json]
    python -m tests.faults --working --seconds 600 [--seed 0] [--round 17] [--checkpoint counts.json]

With `--working` the datasets are random ones whose functions take time. The exit status is 1 where a batch was lost,
changed or repeated, a resource was left behind, or a round hangs. `--round` runs one round of a seed again. With
`--checkpoint` a run that was stopped or killed resumes after its last round, if that and those before it were fine.
"""

import argparse
import faulthandler
import multiprocessing.resource_tracker
import os
import signal
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

from tests.checkpoints import Counted, load, save
from tests.faults.datasets import TRAPPED_KINDS
from tests.faults.family import in_group, processor_seconds
from tests.faults.findings import BATCHES, POISONED, RAISED, WRONG, Findings
from tests.faults.rounds import run_round
from tests.faults.work import WORKING_KINDS

_HANGING_SECONDS: Final = 240.0
_WORKING_SECONDS: Final = 1.0  # of processor in this time: then a round is slow, since other programs use the machine
_MOST_WAITS: Final = 4  # of so long, for a slow round; one that works without end hangs, too
_LINE_SECONDS: Final = 15.0
_REDRAWN_SECONDS: Final = 0.2
_MAX_BAD: Final = 20  # findings; later ones are rarely new
_LOG_LINES: Final = 40


class _Watch:
    """Shows the progress, and ends the program with all stacks when it stops."""

    def __init__(
        self, findings: Findings, seed: int, wanted: int, seconds: float | None, stream: TextIO, before: float
    ) -> None:
        self._stream = stream
        self._seed = seed
        self._findings = findings
        self._wanted = wanted
        self._seconds = seconds
        self._began = time.monotonic() - before
        self._shown = 0.0
        self._num_shown = 0
        self._is_live = stream.isatty()
        self._moved = threading.Event()
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    @property
    def is_done(self) -> bool:
        """Whether enough faults were injected, or findings found."""
        if len(self._findings.bad) >= _MAX_BAD:
            return True
        if self._seconds is None:
            return self._findings.injected >= self._wanted
        return self.seconds >= self._seconds

    @property
    def seconds(self) -> float:
        """The time that the rounds have taken, those of the runs before among them."""
        return time.monotonic() - self._began

    def __call__(self) -> None:
        self._moved.set()
        for finding in self._findings.bad[self._num_shown :]:
            self._stream.write(f"\nfound: {finding}\n")
        self._num_shown = len(self._findings.bad)
        now = time.monotonic()
        if now - self._shown >= (_REDRAWN_SECONDS if self._is_live else _LINE_SECONDS):
            self._shown = now
            before, after = ("\r\x1b[K", "") if self._is_live else ("", "\n")
            self._stream.write(f"{before}{self.text()}{after}")
            self._stream.flush()

    def text(self) -> str:
        """Return the progress in a line."""
        found, seconds = self._findings, self.seconds
        wanted = f" of {self._wanted:,}" if self._seconds is None else ""
        return (
            f"faults {found.injected:,}{wanted} in {found.rounds} rounds, {found.total(BATCHES):,} batches "
            f"compared, {len(found.bad)} findings, {seconds:.0f} s, {found.injected / max(seconds, 1e-3):.1f} a second"
        )

    def _look(self) -> None:
        waits, used = 0, processor_seconds()
        while waits < _MOST_WAITS:
            faulthandler.dump_traceback_later(2 * _HANGING_SECONDS, exit=True, file=self._stream)  # if this can't run
            has_moved, before, used = self._moved.wait(_HANGING_SECONDS), used, processor_seconds()
            if not has_moved and used - before < _WORKING_SECONDS:
                break
            self._moved.clear()
            waits = 0 if has_moved else waits + 1
        self._stream.write(f"\nfound: seed {self._seed}, round {self._findings.rounds} hangs; {self.text()}\n")
        for process in in_group():
            self._stream.write(f"{process}, waits in {_waits_in(process.pid)}\n")
        self._stream.flush()
        faulthandler.dump_traceback(file=self._stream)
        os._exit(1)


def _waits_in(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/wchan").read_text() or "nothing"
    except OSError:
        return "an unknown call"


def main() -> int:
    """Run the rounds, and print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Injects faults, and looks for losses.")
    parser.add_argument("--faults", type=int, default=10_000, help="the least number of faults")
    parser.add_argument("--seconds", type=float, help="the time to run, in place of a number of faults")
    parser.add_argument("--working", action="store_true", help="read random datasets whose functions take time")
    parser.add_argument("--seed", type=int, default=0, help="the seed of every draw")
    parser.add_argument("--round", type=int, help="run only this round")
    parser.add_argument("--checkpoint", type=Path, help="the file of the counts, from which the run resumes")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background programs of a shell ignore it
    with open(os.dup(2), "w", encoding="utf-8") as shown, tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        os.dup2(log.fileno(), 2)  # all processes inherit it, and log their errors there
        before = load(options.checkpoint)
        findings = Findings(before.counts, rounds=before.parts)
        kinds = WORKING_KINDS if options.working else TRAPPED_KINDS
        watch = _Watch(findings, options.seed, options.faults, options.seconds, shown, before.seconds)
        _run(options.seed, options.round, kinds, findings, watch, options.checkpoint)
        if not findings.are_fine:
            log.seek(0)
            shown.writelines(["\nThe last lines of the log:\n", *deque(log, _LOG_LINES)])
    return 0 if findings.are_fine else 1


def _run(
    seed: int, only: int | None, kinds: Sequence[str], findings: Findings, watch: _Watch, checkpoint: Path | None
) -> None:
    multiprocessing.resource_tracker.ensure_running()
    try:
        if only is not None:
            run_round(seed, only, findings, watch, kinds=kinds)
        while only is None and not watch.is_done:
            run_round(seed, findings.rounds, findings, watch, kinds=kinds)
            if findings.are_fine:
                save(checkpoint, Counted(findings.rounds, watch.seconds, findings.counts))
    except KeyboardInterrupt:
        findings.bad.append("interrupted")
    faulthandler.cancel_dump_traceback_later()
    wrong = ", ".join(f"{findings.total(what)} {what}" for what in WRONG)
    lines = [
        "",
        findings.table(),
        *(f"found: {finding}" for finding in findings.bad),
        f"seed {seed}: {watch.text()}",
        f"batches: {wrong}; the loader raised {findings.total(RAISED)} injected errors, and "
        f"{findings.total(POISONED)} for a third crash; {_processor_seconds():.0f} s of processor",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


def _processor_seconds() -> float:
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    sys.exit(main())
