"""The output of the commands: plain lines, a line that is redrawn on a terminal, and errors without a traceback."""

import os
import select
import shutil
import sys
import textwrap
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from typing import Final, Literal, TextIO

from penstock._graph import Colours
from penstock._printable import printable

ENDED: Final = 0
FAILED: Final = 1
WRONG_CALL: Final = 2
INTERRUPTED: Final = 130
UNREAD: Final = 141  # the shell's status of a command that SIGPIPE has ended

_REDRAW_SECONDS: Final = 0.05
_BAR_WIDTH: Final = 24
_COLUMNS: Final = 120
_ROWS: Final = 10_000
_INDENT: Final = 14
_COLOURS: Final = {"green": "32", "red": "31", "dim": "2", "bold": "1", "cyan": "36"}
_PLAIN: Final = str.maketrans("━─…✓✗", "#-~vx")  # for encodings without such characters


class Terminal:
    """Prints to one stream; on a terminal with colours and a live line, elsewhere with a few plain lines.

    Attributes:
        is_live: whether the stream is a terminal, so that `progress` may redraw its line.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.is_live = stream.isatty() and os.environ.get("TERM") != "dumb"
        self._in_colour = self.is_live and not os.environ.get("NO_COLOR")  # an empty value counts as none: no-color.org
        self._drawn_at = 0.0
        self._quarter: int | None = None
        self._redrawn = 0  # lines that `redraw` has drawn last
        self._redrawn_columns: int = 0

    @property
    def rows(self) -> int:
        """The number of lines that the terminal shows; elsewhere there is no limit, and this is large."""
        return shutil.get_terminal_size().lines if self.is_live else _ROWS

    @property
    def columns(self) -> int:
        """The number of characters in a line: that of the terminal, and 120 elsewhere."""
        return shutil.get_terminal_size().columns if self.is_live else _COLUMNS

    @property
    def colours(self) -> Colours | None:
        """The colours that the terminal has for pictures; None for too few."""
        if not self._in_colour:
            return None
        if os.environ.get("COLORTERM") in {"truecolor", "24bit"}:
            return "true"
        return "256" if "256color" in os.environ.get("TERM", "") else None

    def colour(self, text: str, name: str) -> str:
        """Return the text in a colour (green, red, dim, bold or cyan), or unchanged where there are no colours."""
        return f"\x1b[{_COLOURS[name]}m{text}\x1b[0m" if self._in_colour else text

    def line(self, text: str = "") -> None:
        """Print a permanent line; it replaces the live line."""
        self._write(("\r\x1b[K" if self.is_live else "") + text + "\n")
        self._quarter = None
        self._redrawn = 0

    def redraw(self, lines: list[str]) -> None:
        """Print lines; on a terminal they replace those of the last call.

        They don't if other lines were printed since, or the terminal has got another width, which may wrap lines.
        """
        if not self.is_live:
            self._write("".join(f"{line}\n" for line in lines))
            return
        columns = self.columns
        up = f"\x1b[{self._redrawn}A\r" if self._redrawn and columns == self._redrawn_columns else ""
        self._write(up + "".join(f"{line}\x1b[K\n" for line in lines) + "\x1b[J")
        self._redrawn = len(lines)
        self._redrawn_columns = columns

    def _write(self, text: str) -> None:
        """Write text, also where the stream's encoding lacks some of its characters."""
        encoding = self._stream.encoding or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            text = text.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
        self._stream.write(text)
        self._stream.flush()

    def entry(self, mark: str, name: str, text: str) -> None:
        """Print a mark, a name and a text, which is wrapped and indented if it is longer than a line."""
        first, *others = textwrap.wrap(text, max(self.columns - _INDENT, 24))
        self.line(f"  {mark} {name:<{_INDENT - 5}} {first}")
        for other in others:
            self.line(" " * _INDENT + other)

    def wrapped(self, text: str) -> None:
        """Print a text without colours, as several lines if it is longer than one."""
        for line in textwrap.wrap(printable(text), self.columns):
            self.line(line)

    def progress(self, label: str, share: float, text: str) -> None:
        """Show progress: `share` between 0 and 1, and a text beside it.

        On a terminal the line is redrawn at most 20 times a second; elsewhere a line is printed at each quarter.
        """
        if not self.is_live:
            if self._quarter is not None and int(share * 4) > self._quarter:
                self._write(f"  {label} {share:4.0%}  {text}\n")
            self._quarter = int(share * 4)
            return
        now = time.perf_counter()
        if now - self._drawn_at >= _REDRAW_SECONDS:
            self._drawn_at = now
            room = self.columns - len(label) - 5
            width = max(min(_BAR_WIDTH, room - len(text)), 0)  # a line that wraps could not be redrawn
            done = round(share * width)
            bar = self.colour("━" * done, "cyan") + self.colour("━" * (width - done), "dim")
            self._write(f"\r  {label} {bar} {text[:room]}\x1b[K")


@contextmanager
def opened(name: Literal["stdout", "stderr"]) -> Generator[None]:
    """Have a stream of this name in `sys` that takes any text, also where the program was started with a closed one."""
    stream: TextIO | None = getattr(sys, name)
    if stream is not None:
        with _escaping(stream):
            yield
        return
    with open(os.devnull, "w", encoding="utf-8") as null:
        setattr(sys, name, null)
        try:
            yield
        finally:
            setattr(sys, name, None)


@contextmanager
def _escaping(stream: TextIO) -> Generator[None]:
    """Let a stream write characters that its encoding lacks, such as those of a path, as escapes."""
    if not (isinstance(stream, TextIOWrapper) and stream.errors == "strict"):
        yield
        return
    stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        with suppress(OSError, ValueError):  # of what the stream can't write, or of a closed one
            stream.reconfigure(errors="strict")


def is_unread(stream: TextIO) -> bool:
    """Return whether the reader of a stream has ended; what is still to be written is then dropped."""
    if not hasattr(select, "poll"):  # on Windows
        return False
    poll = select.poll()
    poll.register(stream.fileno(), 0)
    if not poll.poll(0):  # of no event but an error, or the end of the reader
        return False
    with open(os.devnull, "wb") as null:
        os.dup2(null.fileno(), stream.fileno())
    return True


def explain_error(stream: TextIO, error: BaseException) -> None:
    """Print an error's message and its notes, which name the place, without its traceback."""
    lines = [f"penstock: {error}", *(f"  {note}" for note in getattr(error, "__notes__", ()))]
    stream.writelines(f"{printable(line)}\n" for text in lines for line in text.split("\n"))
    stream.flush()
