"""Injects faults until there were so many, and says what was found.

    python -m tests.faults --faults 10000 [--seed 0] [--round 17]

The exit status is 1 where a batch was lost, changed or repeated, or something was left behind, or hangs. `--round`
runs one round of a seed again.
"""

import argparse
import faulthandler
import multiprocessing.resource_tracker
import os
import sys
import tempfile
import time
from collections import deque
from typing import Final, TextIO

from tests.faults.findings import BATCHES, POISONED, RAISED, WRONG, Findings
from tests.faults.rounds import run_round

_HANGING_SECONDS: Final = 300.0
_LINE_SECONDS: Final = 15.0
_REDRAWN_SECONDS: Final = 0.2
_MOST_BAD: Final = 20  # findings, after which nothing new is learned
_LOG_LINES: Final = 40


class _Watch:
    """Shows how far it is, and ends the program with all stacks where it gets no further."""

    def __init__(self, findings: Findings, wanted: int, stream: TextIO) -> None:
        self._stream = stream
        self._findings = findings
        self.wanted = wanted
        self._began = time.monotonic()
        self._shown = 0.0
        self._told = 0
        self._is_live = stream.isatty()

    def __call__(self) -> None:
        faulthandler.dump_traceback_later(_HANGING_SECONDS, exit=True, file=self._stream)
        for finding in self._findings.bad[self._told :]:
            self._stream.write(f"\nfound: {finding}\n")
        self._told = len(self._findings.bad)
        now = time.monotonic()
        if now - self._shown >= (_REDRAWN_SECONDS if self._is_live else _LINE_SECONDS):
            self._shown = now
            before, after = ("\r\x1b[K", "") if self._is_live else ("", "\n")
            self._stream.write(f"{before}{self.text()}{after}")
            self._stream.flush()

    def text(self) -> str:
        """Return how far it is."""
        found, seconds = self._findings, time.monotonic() - self._began
        return (
            f"faults {found.injected:,} of {self.wanted:,} in {found.rounds} rounds, {found.total(BATCHES):,} batches "
            f"compared, {len(found.bad)} findings, {seconds:.0f} s, {found.injected / max(seconds, 1e-3):.1f} a second"
        )


def main() -> int:
    """Run, and print the table; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description="Injects faults, and looks for losses.")
    parser.add_argument("--faults", type=int, default=10_000, help="how many to inject, at least")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn")
    parser.add_argument("--round", type=int, help="run only this round")
    asked = parser.parse_args()
    with open(os.dup(2), "w", encoding="utf-8") as shown, tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        os.dup2(log.fileno(), 2)  # which all processes inherit: they log what becomes of them
        findings = Findings()
        _run(asked.seed, asked.round, findings, _Watch(findings, asked.faults, shown))
        if not findings.are_fine:
            log.seek(0)
            shown.writelines(["\nThe last lines of the log:\n", *deque(log, _LOG_LINES)])
    return 0 if findings.are_fine else 1


def _run(seed: int, only: int | None, findings: Findings, watch: _Watch) -> None:
    multiprocessing.resource_tracker.ensure_running()
    try:
        if only is not None:
            run_round(seed, only, findings, watch)
        while only is None and findings.injected < watch.wanted and len(findings.bad) < _MOST_BAD:
            run_round(seed, findings.rounds, findings, watch)
    except KeyboardInterrupt:
        findings.bad.append("interrupted")
    faulthandler.cancel_dump_traceback_later()
    wrong = ", ".join(f"{findings.total(what)} {what}" for what in WRONG)
    lines = [
        "",
        findings.table(),
        *(f"found: {finding}" for finding in findings.bad),
        f"seed {seed}: {watch.text()}",
        f"batches: {wrong}; {findings.total(RAISED)} times an injected error came out of the loader, "
        f"{findings.total(POISONED)} times one of a third death",
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
