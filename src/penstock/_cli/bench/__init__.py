"""`penstock bench`: the rate of a dataset with several kinds of workers, and beside torch's loader.

Each is measured in a process of its own: so none has the memory, the threads or the imports of another. The process
writes its figures, or its error, as JSON to a file, since the user's code may print anything.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from math import nan
from pathlib import Path
from typing import Any, Final

from penstock._caught import Caught
from penstock._cli.arguments import whole_number
from penstock._cli.bench.measuring import WAYS, Measured, Request, Way, measure
from penstock._cli.datasets import METAVAR, named_dataset, named_object
from penstock._cli.lint.inspection import error_text
from penstock._cli.terminal import ENDED, FAILED, Terminal
from penstock._progress import Progress, counted
from penstock._runtime import usable_processors
from penstock.errors import MissingDependencyError, UsageError
from penstock.observe._live import bytes_text, cut
from penstock.observe._report import milliseconds

_DESCRIPTION = """\
Measures how many batches a dataset gives: computed inline, by threads, and by processes; what a
loader gives of data that costs nothing; and what torch's own DataLoader gives of the same
elements, where torch is installed. Each is measured in a process of its own.

NAME is a dataset in MODULE, or a function without arguments that returns one.
"""
_SECONDS: Final = 3.0
_COLUMNS: Final = ("", "batches/s", "ms a batch", "CPU ms", "memory", "waits")
_GAP: Final = 2
_LONGEST: Final = 1e6
_ABOUT_EQUAL: Final = 1.05  # times: the loader with fewer workers is taken for the fastest


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add this command's parser; `add` makes it."""
    parser = add(
        "bench",
        help="compare kinds of workers for a dataset, and torch's loader",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("name", metavar=METAVAR, help="such as data:train; the current folder is searched first")
    parser.add_argument(
        "--num-workers", metavar="N", type=whole_number(1), help="workers (default: one for each processor)"
    )
    parser.add_argument(
        "--seconds", metavar="S", type=_time, default=_SECONDS, help=f"time of each (default: {_SECONDS:.0f})"
    )
    parser.add_argument("--step-ms", metavar="MS", type=_time, default=0.0, help="time of a training step (default: 0)")
    parser.add_argument("--beside", metavar=METAVAR, help="a loader of your own, such as torch's; or its function")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--one", metavar="WAY", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--result", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--kind", choices=("threads", "processes"), default="threads", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status: `FAILED` if nothing could be measured."""
    if not Path("/proc/self/stat").exists():
        raise UsageError("penstock bench reads processor time and memory from the folder /proc of Linux")
    if arguments.one:
        return _measure_one(arguments)
    named_dataset(arguments.name)  # a wrong name is an error of the call, and not of a measurement
    if arguments.beside:
        named_object(arguments.beside)
    count = arguments.num_workers or usable_processors()
    rows: dict[Way, Row] = {way: Row(way, count) for way in _ways(arguments)}
    with Progress("measuring", len(rows), amount=counted) as progress:
        for row in rows.values():
            best = fastest(rows)
            row.measure(arguments, "threads" if best is None else best.kind)
            progress.advance(1)
    if arguments.json:
        sys.stdout.write(json.dumps({way: row.numbers() for way, row in rows.items()}, indent=1) + "\n")
    else:
        _print(rows, arguments.step_ms)
    return ENDED if any(row.found for row in rows.values()) else FAILED


def _ways(arguments: argparse.Namespace) -> list[Way]:
    """Return what is measured, in the order of the table."""
    found: list[Way] = ["inline", "threads", "processes", "free data"]
    if importlib.util.find_spec("torch") is not None:
        found.append("torch")
    return [*found, "beside"] if arguments.beside else found


def _measure_one(arguments: argparse.Namespace) -> int:
    request = Request(arguments.one, arguments.num_workers, arguments.kind, arguments.seconds, arguments.step_ms / 1e3)
    result: dict[str, Any] = {}
    with Caught(Exception) as caught:
        beside: Any = None
        if arguments.one == "beside":
            beside = named_object(arguments.beside)
            beside = beside if hasattr(beside, "__iter__") else beside()
        result = asdict(measure(named_dataset(arguments.name), request, beside))
    if caught.error is not None:
        error = caught.taken()
        is_clear = isinstance(error, UsageError | MissingDependencyError)
        result = {"error": str(error) if is_clear else error_text(error)}
    Path(arguments.result).write_text(json.dumps(result))
    return ENDED


# The advice that the line of a loader refutes, if another one is the fastest.
_REFUTING: Final[dict[Way, tuple[str, ...]]] = {
    "threads": ("compute ahead",),
    "processes": ("compute ahead", 'pass workers="processes"'),
}


class Row:
    """A line of the table.

    Attributes:
        way: how batches are made.
        workers: their number.
        kind: of the workers.
        found: what was measured; None if nothing was.
        error: why it was not, as one line.
    """

    def __init__(self, way: Way, count: int) -> None:
        self.way: Way = way
        self.workers: int = 0 if way == "inline" else count
        self.kind: str = "processes" if way == "processes" else "threads"
        self.found: Measured | None = None
        self.error: str = ""

    @property
    def name(self) -> str:
        """The name in the table."""
        one = self.workers == 1
        return {
            "threads": f"{self.workers} thread{'' if one else 's'}",
            "processes": f"{self.workers} process{'' if one else 'es'}",
            "torch": f"torch, {self.workers} workers" if not one else "torch, 1 worker",
            "beside": "your loader",
        }.get(self.way, self.way)

    def measure(self, arguments: argparse.Namespace, kind: str) -> None:
        """Measure it in a new process; data that costs nothing, with a kind of workers."""
        self.kind = kind if self.way == "free data" else self.kind
        options = {
            "--one": self.way,
            "--kind": self.kind,
            "--num-workers": max(self.workers, 1),
            "--seconds": arguments.seconds,
            **({"--step-ms": arguments.step_ms} if arguments.step_ms else {}),
            **({"--beside": arguments.beside} if arguments.beside else {}),
        }
        listed = [str(each) for option in options.items() for each in option]
        command = [sys.executable, "-m", "penstock", "bench", arguments.name, *listed]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "result.json")
            run = subprocess.run([*command, "--result", path], capture_output=True, check=False)
            result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"error": _end_text(run)}
        self.error = result.get("error", "")
        self.found = None if self.error else Measured(**result)

    @property
    def rate(self) -> float:
        """The batches per second."""
        return self.found.batches / self.found.seconds if self.found else 0.0

    def numbers(self) -> dict[str, object]:
        """Return what was measured, by names."""
        if self.found is None:
            return {"error": self.error}
        return {"workers": self.workers, "batches_per_second": self.rate, **asdict(self.found)}

    def cells(self) -> list[str]:
        """Return the cells of the table, the name first."""
        found = self.found
        if found is None:
            return [self.name, self.error]
        return [
            self.name,
            f"{self.rate:,.1f}",
            milliseconds(found.seconds / found.batches),
            milliseconds(found.cpu_seconds / found.batches),
            bytes_text(found.memory_bytes),
            f"{found.waited_seconds / found.seconds:.0%}",
        ]


def _end_text(run: "subprocess.CompletedProcess[bytes]") -> str:
    """Return how a process has ended that has written no result."""
    last = run.stderr.decode(errors="replace").strip().rpartition("\n")[2]
    return f"it ended with exit code {run.returncode}" + (f": {last}" if last else "")


def fastest(rows: dict[Way, Row]) -> Row | None:
    """Return the loader with the highest rate, the first of those that are about as fast; None if there is none yet."""
    loaders = [row for way, row in rows.items() if way in {"inline", "threads", "processes"} and row.found]
    best = max((row.rate for row in loaders), default=0.0)
    return next((row for row in loaders if row.rate * _ABOUT_EQUAL >= best), None)


def table(rows: Iterable[Row], columns: int, *, waits: bool) -> list[str]:
    """Return the lines of the table; where it is too wide, without its last columns.

    Args:
        rows: the lines.
        columns: the width of the terminal.
        waits: whether the training takes time, so that the share of its waits says something.
    """
    cells = [list(_COLUMNS), *(row.cells() for row in rows)]
    whole = [row for row in cells if len(row) == len(_COLUMNS)]
    widths = [max(len(row[column]) for row in whole) for column in range(len(_COLUMNS))]
    widths[0] = max(len(row[0]) for row in cells)
    shown = len(_COLUMNS) if waits else len(_COLUMNS) - 1
    while shown > 2 and sum(widths[:shown]) + _GAP * (shown - 1) > columns:
        shown -= 1
    gap = " " * _GAP
    lines: list[str] = []
    for name, *others in cells:
        texts = map(str.rjust, others[: shown - 1], widths[1:]) if len(others) == len(_COLUMNS) - 1 else others
        lines.append(cut(gap.join([name.ljust(widths[0]), *texts]).rstrip(), columns))
    return lines


def _print(rows: dict[Way, Row], step_ms: float) -> None:
    terminal = Terminal(sys.stdout)
    for line in table(rows.values(), terminal.columns, waits=bool(step_ms)):
        terminal.line(line)
    best = fastest(rows)
    if best is not None and best.found is not None:
        terminal.wrapped(f"fastest: {best.name}; bottleneck: {best.found.bottleneck or 'not known yet'}")
        terminal.wrapped(f"to change: {advice(best.found.advice, rows)}")


def advice(found: str, rows: dict[Way, Row]) -> str:
    """Return the advice of the fastest loader's report, unless another line refutes it."""
    measured = [row for way, row in rows.items() if way in _REFUTING and row.found]
    refuting = [row.name for row in measured if found.startswith(_REFUTING[row.way])]
    return f"nothing: no gain was measured with {' or '.join(refuting)}" if refuting else found


def _time(text: str) -> float:
    number = nan
    with Caught(ValueError):
        number = float(text)
    if not 0 < number < _LONGEST:
        message = f"a time above 0 and below {_LONGEST:,.0f} is needed; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return number
