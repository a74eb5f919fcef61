"""`penstock watch`: a live view of the loaders that run on this machine, also of programs that began long ago."""

import argparse
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock._cli.terminal import ENDED, FAILED, Terminal
from penstock._live_page import Found, command_of, family, memory_bytes, own_pages, pages_of, processes
from penstock.errors import UsageError
from penstock.observe import Report
from penstock.observe._live import Window, cut, summary, view
from penstock.observe._sums import Sums

_DESCRIPTION = """\
Shows what running loaders do: the rate, the progress, the share of the time in which the
training waits and why, how busy the workers are, memory, and workers that died. The programs
need no option for that, and don't notice it. Figures are those of the last seconds.

Without PID it shows all loaders of your programs on this machine; with PID those of this
process and the processes that it started, such as the ranks of torchrun. Ctrl-C ends it.
"""
_REDRAWN_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 60.0
_LONGEST: Final = 1e6
_SEARCHED_SECONDS: Final = 5.0  # a search for further loaders looks at all processes
_NONE: Final = (
    "no loader of yours runs on this machine. One is shown from its first iterator on, and without workers after a "
    "tenth of a second. A container has its own processes: run the command in there"
)


class Shown(NamedTuple):
    """A loader in the view."""

    pid: int
    title: str
    sums: Sums
    report: Report
    memory_bytes: int


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add this command's parser; `add` makes it."""
    parser = add(
        "watch",
        help="show what running loaders do, live",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("pid", metavar="PID", nargs="?", type=_pid, help="the number of a process (default: all)")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_seconds,
        help="time from one view to the next (default: 1 on a terminal; else 60, with a line for each loader)",
    )
    parser.add_argument("--once", action="store_true", help="show one view, of the time since the start, and end")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status: `FAILED` if there is nothing to watch."""
    if not Path("/proc/self/fd").is_dir():
        raise UsageError("penstock watch needs the folder /proc of Linux. Use loader.watch() in the program")
    terminal = Terminal(sys.stdout)
    interval = arguments.interval or (_REDRAWN_SECONDS if terminal.is_live else _LINE_SECONDS)
    watcher = _Watcher(arguments.pid, interval)
    try:
        return _watch(terminal, watcher, interval, once=arguments.once)
    except KeyboardInterrupt:
        return ENDED


def _watch(terminal: Terminal, watcher: "_Watcher", interval: float, *, once: bool) -> int:
    shown = watcher.look()
    if not shown:
        sys.stderr.write(f"penstock: {watcher.why_nothing()}\n")
        return FAILED
    pause = threading.Event()  # never set
    pids: set[int] = set()
    while shown:
        pids = {each.pid for each in shown}
        if terminal.is_live or once:
            terminal.redraw(_views(shown, terminal.columns, terminal.rows))
        else:
            for each in shown:
                terminal.line(f"{time.strftime('%H:%M:%S')} pid {each.pid}: {_summary(each)}")
        if once:
            return ENDED
        pause.wait(interval)
        shown = watcher.look()
    alive = processes()
    for pid in sorted(pids):
        terminal.line(f"process {pid} {'has no loader any more' if pid in alive else 'has ended'}")
    return ENDED


def _views(shown: list[Shown], columns: int, rows: int) -> list[str]:
    """Return the lines of all views; a line for each loader where they would not fit."""
    width = columns - 1  # a full line would be wrapped
    blocks = [view(each.title, each.sums, each.report, each.memory_bytes, width) for each in shown]
    lines = [line for block in blocks for line in ("", *block)][1:]
    if len(lines) >= rows:
        lines = [cut(f"{each.pid}  {_summary(each)}", width) for each in shown]
    return lines[: rows - 1]


def _summary(shown: Shown) -> str:
    return summary(shown.sums, shown.report, shown.memory_bytes)


class _Watcher:
    """Finds loaders, and remembers their figures of the last seconds."""

    def __init__(self, pid: int | None, interval: float) -> None:
        self._pid = pid
        self._window_seconds = max(5 * _REDRAWN_SECONDS, interval)
        self._windows: dict[int, Window] = {}
        self._pids: list[int] = []
        self._searched = 0.0
        self._has_other_version = False

    def look(self) -> list[Shown]:
        """Return the loaders that run now."""
        now = time.perf_counter()
        if not self._pids or now - self._searched >= _SEARCHED_SECONDS:
            self._searched = now
            found = list(self._searched_pages())
            self._has_other_version = any(each.is_other_version for each in found)
        else:
            found = list(_existing(self._pids))
        found = [each for each in found if each.pages]
        self._pids = [each.pid for each in found]
        parents = processes()
        return [shown for each in found for shown in self._shown(each, parents)]

    def _searched_pages(self) -> Iterator[Found]:
        if self._pid is None:
            yield from own_pages()
            return
        try:
            found = pages_of(self._pid)
        except ProcessLookupError:
            if self._pids:
                return
            raise UsageError(f"there is no process {self._pid} on this machine, or in this container") from None
        except PermissionError:
            raise UsageError(
                f"process {self._pid} is another user's, or protected; run the command as the user that started it"
            ) from None
        yield found
        yield from _existing(family(self._pid, processes())[1:])

    def _shown(self, found: Found, parents: dict[int, int]) -> Iterator[Shown]:
        used = memory_bytes(family(found.pid, parents))
        command = command_of(found.pid)
        for seen in found.pages:
            sums = Sums.seen(seen, time.perf_counter())
            window = self._windows.setdefault(seen.identity, Window(self._window_seconds))
            rank = f"  rank {sums.rank} of {sums.ranks}" if sums.ranks > 1 else ""
            yield Shown(found.pid, f"pid {found.pid}{rank}  {command}", sums, window.add(sums), used)

    def why_nothing(self) -> str:
        """Return why there is nothing to show."""
        if self._has_other_version:
            return "the loaders that run belong to another version of Penstock. Use the command of its environment"
        if self._pid is None:
            return _NONE
        command = command_of(self._pid)
        return (
            f"process {self._pid} ({cut(command, 60)}) has no loader that runs, and nor have the processes that it "
            "started. Without PID, penstock watch shows all of your loaders"
        )


def _existing(pids: list[int]) -> Iterator[Found]:
    for pid in pids:
        try:
            yield pages_of(pid)
        except OSError:  # it has ended, or has become another user's
            continue


def _pid(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        message = f"PID is the number of a process; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < _LONGEST:
        message = f"a number of seconds above 0 and below {_LONGEST:,.0f} is needed; got {text!r}"
        raise argparse.ArgumentTypeError(message)
    return seconds
