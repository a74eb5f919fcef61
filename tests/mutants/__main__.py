"""Plants faults in a copy of the tree, one at a time, and lists those that no test catches.

    python -m tests.mutants                     all of them; some minutes
    python -m tests.mutants 'ring*' '*seed*'    those with such names
    python -m tests.mutants --list              their names, places and tests

Each mutant of `tests/mutants/table` is a realistic fault of a few characters, such as a wrong bound or a missing
release, with the tests that must catch it. Only these are run, up to the first failure; a hang counts as caught. Before
that all of these tests run without a fault, since a test that fails anyway catches nothing. The exit status is 1 where
a mutant was missed. After a change that a mutant's text doesn't survive, `tests/mutants/test_table.py` says so.
"""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, NamedTuple

from tests.mutants.planting import Mutant, Planted, UnplantableError, copy_tree, located_tests
from tests.mutants.table import MUTANTS

_LONGEST_SECONDS: Final = 150.0  # of a mutant's tests; pytest ends a test that hangs after the next
_HANG_SECONDS: Final = 60
_PASSED, _FAILED, _NOT_COLLECTED = 0, 1, (2, 3, 4, 5)
_FIRST_FAILURE: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


class Outcome(NamedTuple):
    """The result of a mutant's tests."""

    verdict: str
    """Whether they "pass", "fail", "hang" or are "broken": can't be collected."""
    seconds: float
    detail: str = ""
    """The first test that failed, or the end of the output where tests are broken."""


def run_tests(root: Path, tests: Sequence[str], *, stop_early: bool = True) -> Outcome:
    """Run some tests against the copy of the tree."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", "--tb=line"]
    command += ["-o", f"faulthandler_timeout={_HANG_SECONDS}", *(["-x"] if stop_early else []), *tests]
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    began = time.monotonic()
    with (
        tempfile.TemporaryFile("w+") as output,
        subprocess.Popen(
            command, cwd=root, env=environment, stdout=output, stderr=output, start_new_session=True
        ) as process,
    ):
        try:
            status = process.wait(_LONGEST_SECONDS if stop_early else None)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):  # its children end with it
                os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        text = output.read()
    return _outcome(status, text, time.monotonic() - began)


def _outcome(status: int | None, text: str, seconds: float) -> Outcome:
    failures = _FIRST_FAILURE.findall(text)
    if status == _PASSED:
        return Outcome("pass", seconds)
    if status == _FAILED and failures and "::" not in failures[0]:
        return Outcome("broken", seconds, text[-2000:])
    if status == _FAILED and failures:
        return Outcome("fail", seconds, failures[0].removeprefix("tests/"))
    if status in _NOT_COLLECTED:
        return Outcome("broken", seconds, text[-2000:])
    return Outcome("hang", seconds, "" if status is None else f"exit status {status}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Plant the mutants and print the verdict on each; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="patterns of names; all mutants by default")
    parser.add_argument("--list", action="store_true", help="list the mutants, and run nothing")
    parser.add_argument("--no-baseline", action="store_true", help="don't run the tests without a fault first")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if not options.names or any(fnmatch(each.name, name) for name in options.names)]
    if not chosen:
        parser.error("no mutant has such a name; see --list")
    if options.list:
        _say(*(f"{each.name}: {each.file}: {' '.join(each.tests)}" for each in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as folder:
        copy_tree(Path(folder))
        if not options.no_baseline and not _is_green(Path(folder), chosen):
            return 1
        return _plant_all(Path(folder), chosen)


def _is_green(root: Path, mutants: Sequence[Mutant]) -> bool:
    tests = sorted({test for mutant in mutants for test in located_tests(mutant, root)})
    outcome = run_tests(root, tests, stop_early=False)
    _say(
        f"without a fault {len(tests)} files or tests {outcome.verdict} after {outcome.seconds:.0f} s {outcome.detail}"
    )
    return outcome.verdict == "pass"


def _plant_all(root: Path, mutants: Sequence[Mutant]) -> int:
    bad: list[str] = []
    for mutant in mutants:
        try:
            with Planted(mutant, root):
                outcome = run_tests(root, located_tests(mutant, root))
        except UnplantableError as error:
            outcome = Outcome("broken", 0.0, str(error))
        is_caught = outcome.verdict in ("fail", "hang")
        verdict = "caught" if is_caught else "MISSED" if outcome.verdict == "pass" else "BROKEN"
        _say(f"{verdict}  {outcome.seconds:5.1f} s  {mutant.name:<58} {outcome.verdict} {outcome.detail}".rstrip())
        if not is_caught:
            bad.append(mutant.name)
    _say(f"{len(mutants) - len(bad)} of {len(mutants)} mutants were caught", *(f"not caught: {name}" for name in bad))
    return 1 if bad else 0


def _say(*lines: str) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
