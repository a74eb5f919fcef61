"""`penstock lint`: computes every record of a dataset before a training run does, and lists findings about them."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, get_args

from penstock._caught import Caught
from penstock._cli.arguments import whole_number
from penstock._cli.datasets import METAVAR_OR_PATH, NAME_HELP, named
from penstock._cli.lint.inspection import Lint, loading_of
from penstock._cli.terminal import ENDED, FAILED, INTERRUPTED, Terminal
from penstock._printable import printable
from penstock._runtime import usable_processors
from penstock.errors import UsageError
from penstock.observe._lint import Check, Finding
from penstock.observe._live import seconds_text
from penstock.observe._records import shared

_DESCRIPTION = """\
Computes every record of a dataset, in epoch 0, and lists records that fail, leaves that differ
in structure, dtype or shape, NaN and infinity, leaves that are the same everywhere, batches that
ranks can't share, and batches that take too much of the memory. Of several datasets, such as
train and validation, it lists the records that are in two of them.

NAME is a dataset or a loader in MODULE, or a function without arguments that returns one. A
loader is checked for its own number of ranks, and its memory= for its batches. Ctrl-C ends it,
with the findings so far; --from continues. The exit status is 1 if there are findings.
"""
_CHECKS: Final[tuple[Check, ...]] = get_args(Check)
_LISTED: Final = 10  # records of a finding in the text; the JSON has more


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add this command's parser; `add` makes it."""
    parser = add(
        "lint",
        help="compute every record of a dataset, and list what is wrong",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("names", metavar=METAVAR_OR_PATH, nargs="+", help=NAME_HELP)
    parser.add_argument(
        "--from", dest="start", metavar="STEP", type=whole_number(0), default=0, help="the step to begin with"
    )
    parser.add_argument(
        "--num-workers", metavar="N", type=whole_number(0), help="workers (default: one for each processor)"
    )
    parser.add_argument(
        "--workers", choices=("processes", "threads"), default="processes", help="their kind (default: processes)"
    )
    parser.add_argument(
        "--ranks",
        metavar="N",
        type=whole_number(1),
        help="check that N ranks can share the batches (default: those of a loader, or 1)",
    )
    parser.add_argument(
        "--allow",
        metavar="CHECK",
        action="append",
        choices=_CHECKS,
        default=[],
        help=f"a check whose findings don't count; may be given several times: {', '.join(_CHECKS)}",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON, with all records")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status: `FAILED` if there are findings."""
    count = usable_processors() if arguments.num_workers is None else arguments.num_workers
    compares = len(arguments.names) > 1
    if compares and arguments.start:
        raise UsageError("--from is for one dataset; records of several are compared from the first step on")
    lints = [Lint(name, *loading_of(named(name)), compares=compares) for name in arguments.names]
    output = Output(Terminal(sys.stdout), is_json=arguments.json, allowed=arguments.allow)
    try:
        for lint in lints:
            _inspect(lint, arguments, count, output)
    except KeyboardInterrupt:
        output.end(so_far=True)
        return INTERRUPTED
    for number, one in enumerate(lints):
        for other in lints[number + 1 :]:
            output.add(one.name, list(shared(one.compared, other.compared)))
    return output.end()


def _inspect(lint: Lint, arguments: argparse.Namespace, count: int, output: "Output") -> None:
    """Inspect a dataset, and print what was found, also if Ctrl-C ends it."""
    began = time.perf_counter()
    with Caught() as caught:
        lint.inspect(arguments.start, count, arguments.workers)
    if caught.error is None or isinstance(caught.error, KeyboardInterrupt):
        output.show(lint, list(lint.findings(arguments.ranks)), time.perf_counter() - began)
    if caught.error is not None:
        raise caught.taken()


class Output:
    """Prints the findings: as lines, when they are found, or as JSON at the end."""

    def __init__(self, terminal: Terminal, *, is_json: bool, allowed: Sequence[str]) -> None:
        self._terminal = terminal
        self._is_json = is_json
        self._allowed = allowed
        self._found: list[dict[str, Any]] = []
        self._datasets: list[dict[str, Any]] = []

    def show(self, lint: Lint, found: list[Finding], seconds: float) -> None:
        """Print the findings about one dataset."""
        self._datasets.append(
            {
                "name": lint.name,
                "records": lint.summary.rows,
                "failed": lint.summary.failed,
                "steps": lint.steps,
                "complete": lint.is_complete,
            }
        )
        records = f"{lint.summary.rows:,} record{'' if lint.summary.rows == 1 else 's'}"
        self._line(f"{lint.name}: {records} in {seconds_text(seconds)}")
        self.add(lint.name, found)
        for note in lint.notes:
            self._entry(" ", "note", note)
        if not lint.is_complete and lint.steps is not None:
            self._line(f"stopped before step {lint.steps:,}; continue with --from {lint.steps}")

    def add(self, name: str, found: list[Finding]) -> None:
        """Print findings, except those of allowed checks."""
        for finding in found:
            if finding.check in self._allowed:
                continue
            fields = {field: getattr(finding, field) for field in ("check", "text", "count", "leaf", "records")}
            self._found.append({"dataset": name, **fields})
            self._entry(self._terminal.colour("x", "red"), finding.check, printable(finding.text))
            for record in finding.records[:_LISTED]:
                self._entry(" ", "", printable(record))
            if len(finding.records) > _LISTED:
                listed = "them" if len(finding.records) == finding.count else f"the first {len(finding.records):,}"
                self._entry(" ", "", f"and {finding.count - _LISTED:,} more; --json lists {listed}")

    def end(self, *, so_far: bool = False) -> int:
        """Print the number of findings, and return the exit status."""
        count = len(self._found)
        if self._is_json:
            content = {"findings": self._found, "datasets": self._datasets}
            self._terminal.line(json.dumps(content, indent=1, default=str))
        text = f"{count:,} finding{'' if count == 1 else 's'}" if count else "no findings"
        self._line(f"{text} so far" if so_far else text)
        return FAILED if count else ENDED

    def _line(self, text: str) -> None:
        if not self._is_json:
            self._terminal.line(printable(text))

    def _entry(self, mark: str, name: str, text: str) -> None:
        if not self._is_json:
            self._terminal.entry(mark, name, text)
