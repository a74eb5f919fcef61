"""The `penstock` command: its help, its version, and clear errors with an exit status."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from tests.cli.command import main

Output = pytest.CaptureFixture[str]
HERE = __name__
rows = ps.range(4)
numbers = rows.batch(2)


def test_help_and_version(capsys: Output) -> None:
    """Help names the commands, what each status means, and every option; the version names the packages."""
    demo = ("--images", "--directory", "--report", "--num-workers", "--epochs", "penstock[demo]", "SIGKILL")
    for arguments, parts in (
        ("--help", ("demo", "--version", "exit status:", "130  stopped by Ctrl-C")),
        ("demo --help", demo),
        ("--version", ("penstock ", "Python 3.", "NumPy ")),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(arguments.split())
        text = capsys.readouterr().out
        assert [part for part in parts if part not in text] == []
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: penstock")
    run = subprocess.run([sys.executable, "-m", "penstock"], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("usage: penstock")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("dmeo", "invalid choice: 'dmeo'"),
        ("demo --worker 3", "unrecognized arguments: --worker 3"),
        ("demo --num-workers -1", "a whole number of at least 0 is needed; got '-1'"),
        ("demo --num-workers two", "a whole number of at least 0 is needed; got 'two'"),
        ("demo --epochs 2", "a whole number of at least 3 is needed; got '2'"),
        ("lint data:rows --ranks 0", "a whole number of at least 1 is needed; got '0'"),
        ("bench data:rows --num-workers 0", "a whole number of at least 1 is needed; got '0'"),
        ("bench data:rows --seconds 0", "a time above 0"),
        ("look data:rows --rank 2/2", "rank K of N, with K from 0 and below N, is needed; got '2/2'"),
        ("watch --interval 1e10", "a number of seconds above 0 and below 1,000,000 is needed; got '1e10'"),
        ("write data:rows x --part 1", "part K of N, with K from 0 and below N, is needed; got '1'"),
    ],
)
def test_wrong_arguments_end_with_status_2(arguments: str, message: str, capsys: Output) -> None:
    """The message is on stderr; nothing is run."""
    with pytest.raises(SystemExit, match="2"):
        main(arguments.split())
    assert message in capsys.readouterr().err


def with_argument(count: int) -> ps.Dataset[int]:
    """Return a dataset of a size."""
    return ps.range(count)


def test_a_wrong_name_ends_with_status_2(capsys: Output) -> None:
    """The message says how to name a dataset."""
    for arguments, message in (
        ("look none.jsonl", "MODULE:NAME is needed, such as data:train, or a path; got 'none.jsonl'"),
        ("look ./data.py:train", "not a path; got './data.py'. In the folder of the file, name it data:train"),
        ("look data.py:train", "name it data:train"),
        (f"look {HERE}.none:train", f"there is no module '{HERE}.none'"),
        (f"look {HERE}:with_argument", "missing a required argument: 'count'. Name a function without arguments"),
        (f"bench {HERE}:HERE", "must be a dataset"),
        (f"bench {HERE}:numbers --beside {HERE}:none", "has no 'none'"),
    ):
        assert main(arguments.split()) == 2
        assert message in " ".join(capsys.readouterr().err.split())


def test_a_command_without_streams_has_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon's standard streams may be closed, and Python then has None for them."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["look", f"{HERE}:numbers"]) == 0
    assert main(["look", f"{HERE}:none"]) == 2
    assert (sys.stdout, sys.stderr) == (None, None)


def test_a_path_that_the_output_has_no_characters_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is printed with escapes, also if the encoding is UTF-8, which not all names are; the stream is as before."""
    for encoding, name, shown in (("ascii", "größe", b"gr\\xf6\\xdfe"), ("utf-8", "a\udcff", b"a\\udcff")):
        content = io.BytesIO()
        with io.TextIOWrapper(content, encoding) as output:
            monkeypatch.setattr(sys, "stdout", output)
            command = ["write", f"{HERE}:rows", str(tmp_path / name), "--format", "jsonl", "--num-workers", "0"]
            assert main(command) == 0
            monkeypatch.undo()
            assert output.errors == "strict"
            assert shown + b": 4 elements in 1 shard" in content.getvalue()


def test_a_reader_that_ends_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    """The command ends without a message, with the shell's status of SIGPIPE, as others do in front of `head`."""
    unread, written = os.pipe()
    os.close(unread)
    with open(written, "w") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(["look", f"{HERE}:numbers"]) == 141
        monkeypatch.undo()
    assert capsys.readouterr() == ("", "")


def test_what_the_demo_lacks_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    """A package that is missing, with its remedy, or a report that can't be written: no training, and no traceback."""
    forbidden = Path("/proc/self")  # in which even root may not write
    for path in (tmp_path, tmp_path / "none" / "report.html", forbidden / "report.html"):
        assert main(["demo", "--report", str(path)]) == 2
        assert "--report must be a file that can be written, in a folder that exists; got" in capsys.readouterr().err
    for module, name in (("sklearn", "scikit-learn"), ("PIL", "Pillow")):
        monkeypatch.setitem(sys.modules, module, None)
        assert main(["demo", "--report", str(tmp_path / "report.html")]) == 2
        expected = f"penstock: {name} is needed here and is not installed. Run: pip install 'penstock[demo]'\n"
        assert capsys.readouterr().err == expected
