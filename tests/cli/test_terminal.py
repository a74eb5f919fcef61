"""The output of the commands: a live line on a terminal, few plain lines elsewhere."""

import io

import pytest

from penstock._cli.terminal import Terminal, explain_error
from tests.cli.command import Screen


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no variable of the test's own environment decide."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_file_gets_plain_lines_at_each_quarter() -> None:
    """Without a terminal there are neither colours nor carriage returns, and four lines for a thousand reports.

    Progress that begins at 44 % has passed no quarter; the next line is printed at half.
    """
    stream = io.StringIO()
    terminal = Terminal(stream)
    for number in range(1000):
        terminal.progress("run A", (number + 1) / 1000, f"step {number}")
    terminal.line(terminal.colour("done", "green"))
    for number in range(440, 600):
        terminal.progress("run B", number / 1000, f"step {number}")
    assert stream.getvalue().splitlines() == [
        "  run A  25%  step 249",
        "  run A  50%  step 499",
        "  run A  75%  step 749",
        "  run A 100%  step 999",
        "done",
        "  run B  50%  step 500",
    ]


@pytest.mark.parametrize("columns", [20, 40, 60, 80, 200])
def test_a_terminal_gets_one_line_that_is_redrawn(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress never goes to the next line, and a line that stays takes its place.

    In a narrow terminal first the bar gets shorter, then the text: a wrapped line could not be redrawn.
    """
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Screen()
    terminal = Terminal(screen)
    terminal.progress("run A", 0.5, "step 172/460 · 5,788 records/s · 84% waiting for data")
    shown = screen.getvalue().removeprefix("\r").removesuffix("\x1b[K")
    assert len(shown) < columns
    assert "\n" not in shown
    assert ("━" in shown) == (columns >= 80)
    assert ("for data" in shown) == (columns >= 80)
    terminal.line("done")
    assert screen.getvalue().endswith("\r\x1b[Kdone\n")


def test_progress_is_shown_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar and a text need characters that Latin-1 lacks; the done part of a bar differs also in ASCII."""
    monkeypatch.setenv("COLUMNS", "100")
    for encoding, is_terminal in (("ascii", False), ("latin-1", False), ("latin-1", True)):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        monkeypatch.setattr(stream, "isatty", lambda is_terminal=is_terminal: is_terminal)
        terminal = Terminal(stream)
        for share in 0.1, 0.5:
            terminal.progress("run A", share, "step 1 …")
        terminal.line("━━─ …ä")
        stream.seek(0)
        text = stream.read()
        assert "step 1 ~" in text
        assert text.endswith("##- ~?\n" if encoding == "ascii" else "##- ~ä\n")


def test_a_long_entry_is_wrapped_below_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """All words are printed within the terminal's width, and further lines are indented to the text."""
    monkeypatch.setenv("COLUMNS", "60")
    screen = Screen()
    Terminal(screen).entry("✓", "killed", "word " * 30)
    lines = screen.getvalue().replace("\r\x1b[K", "").splitlines()
    assert lines[0].startswith("  ✓ killed    word")
    assert all(line.startswith(" " * 14 + "word") for line in lines[1:])
    assert all(len(line) <= 60 for line in lines)
    assert " ".join(lines).count("word") == 30


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable NO_COLOR, with any value but an empty one, leaves the live line but takes the colours."""
    assert "\x1b[32m" in Terminal(Screen()).colour("ok", "green")
    monkeypatch.setenv("NO_COLOR", "")
    assert "\x1b[32m" in Terminal(Screen()).colour("ok", "green")
    monkeypatch.setenv("NO_COLOR", "0")
    assert Terminal(Screen()).colour("ok", "green") == "ok"
    assert Terminal(Screen()).is_live


def test_an_error_is_printed_with_its_notes_and_steers_no_terminal() -> None:
    """There is no traceback; a message keeps its lines, and its other control characters are replaced."""
    error = ValueError("the file \x1b]0;title\x07 is\ndamaged\r, at its end")
    error.add_note("in step 3, position 17, file 'cat/9.png'")
    stream = io.StringIO()
    explain_error(stream, error)
    text = "penstock: the file �]0;title� is\ndamaged , at its end\n  in step 3, position 17, file 'cat/9.png'\n"
    assert stream.getvalue() == text
