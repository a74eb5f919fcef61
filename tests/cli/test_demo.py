"""`penstock demo` as a whole: real processes, a real SIGKILL, a real Ctrl-C, and real pictures."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock._cli.demo.digits import BRIGHTNESS, NUM_DIGITS, load_digits, write_digits
from tests.cli.command import main

Output = pytest.CaptureFixture[str]
image_module = pytest.importorskip("PIL.Image")

_COMMAND = [sys.executable, "-m", "penstock", "demo"]


def claims_in(output: str) -> dict[str, bool]:
    """Return the claims that were printed, and whether each holds."""
    return {name: mark == "✓" for mark, name in re.findall(r"^  ([✓✗]) (\w+)", output, re.MULTILINE)}


@pytest.mark.slow
@pytest.mark.long  # `scripts/wheel --try`, which CI runs, requires all claims of a longer run
def test_the_demo_makes_its_claims_true(tmp_path: Path) -> None:
    """Killed and resumed, the run equals the other.

    Shortened runs learn less, and a busy machine takes its time, so accuracy and the time to resume are not asked here.
    """
    pytest.importorskip("sklearn")
    report = tmp_path / "report.html"
    options = ["--epochs", "3", "--directory", str(tmp_path / "kept"), "--report", str(report)]
    ended = subprocess.run([*_COMMAND, *options], capture_output=True, text=True, check=False)
    claims = claims_in(ended.stdout)
    accuracy, _ = claims.pop("accuracy"), claims.pop("resume")
    names = ["killed", "workers", "batches", "losses", "model", "replay", "state"]
    assert claims == dict.fromkeys(names if hasattr(os, "memfd_create") else set(names) - {"workers"}, True)
    assert ended.returncode == (0 if accuracy else 1)
    assert ended.stderr == ""
    assert "digits.py" in ended.stdout
    assert str(report) in ended.stdout
    assert report.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert len(list((tmp_path / "kept" / "digits").glob("?/*.png"))) == 1797


def processes_about(path: Path) -> list[str]:
    """Return the command lines of all running processes that name `path`."""
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in listed.stdout.splitlines() if str(path) in line]


@pytest.mark.slow
def test_ctrl_c_stops_everything_quietly(tmp_path: Path) -> None:
    """In the middle of a run, Ctrl-C ends with status 130 and one line; no process and no report is left."""
    pytest.importorskip("sklearn")
    report = tmp_path / "report.html"
    options = ["--epochs", "4", "--directory", str(tmp_path / "kept"), "--report", str(report)]
    with subprocess.Popen(
        [*_COMMAND, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any("run A  25%" in line for line in process.stdout)
        os.kill(process.pid, signal.SIGINT)
        error = process.stderr.read()
        process.stdout.read()
    assert process.returncode == 130
    assert error.strip().splitlines() == ["stopped by Ctrl-C; all processes have ended"]
    assert processes_about(tmp_path / "kept") == []
    assert not report.exists()


def test_every_digit_survives_its_png_file(tmp_path: Path) -> None:
    """Each of the 1,797 files is the digit in its class's folder; only a file that is missing is written again."""
    pytest.importorskip("sklearn")
    shares: list[float] = []
    assert write_digits(tmp_path, shares.append) == NUM_DIGITS
    assert shares == sorted(shares)
    assert shares.pop() == 1.0
    images, labels = load_digits()
    paths = sorted(tmp_path.glob("*/*.png"), key=lambda path: path.name)
    assert len(paths) == len(images) == NUM_DIGITS == 1797
    for path, levels, label in zip(paths, images, labels, strict=True):
        assert path.parent.name == str(label)
        with image_module.open(path) as image:
            assert np.array_equal(np.asarray(image), levels * BRIGHTNESS)
    shares.clear()
    write_digits(tmp_path, shares.append)
    assert shares == []
    expected = paths[0].read_bytes()
    paths[0].unlink()
    paths[1].write_bytes(b"kept")
    write_digits(tmp_path, lambda _: None)
    assert [path.read_bytes() for path in paths[:2]] == [expected, b"kept"]


@pytest.mark.slow
def test_ones_own_images_are_timed_beside_a_bare_loop(tmp_path: Path, capsys: Output) -> None:
    """`demo --images` prints both rates, holds its claims, and shows the first batch; it names a corrupt image."""
    photos, report = tmp_path / "photos", tmp_path / "report.html"
    for number in range(80):
        kind = photos / ("cat" if number % 2 else "dog")
        kind.mkdir(parents=True, exist_ok=True)
        pixels = (np.arange(20 * 30 * 3) * (number + 1) % 251).astype(np.uint8).reshape(20, 30, 3)
        image_module.fromarray(pixels).save(kind / f"{number}.png")
    command = ["demo", "--images", str(photos), "--size", "16", "--report", str(report)]
    assert main(command) == 0
    output = capsys.readouterr().out
    claims = claims_in(output)
    assert claims == {"batches": True, "state": True, "resume": claims["resume"]}  # a time, of whatever machine
    for name in ("loader, 2 workers", "bare loop, 1 thread", "loader / bare loop"):
        assert re.search(rf"{name} +[\d,.]+", output)
    html = report.read_text(encoding="utf-8")
    assert html.count('<img src="data:image/png;base64,') == 32
    assert ">cat<" in html
    for path in (photos / "cat").glob("*.png"):
        path.write_bytes(b"no image")
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "cannot identify image file" in error
    assert "in step 'Decode' at epoch 0, position 0, key 0" in error
    assert "Traceback" not in error


def test_a_folder_without_images_is_an_error(tmp_path: Path, capsys: Output) -> None:
    """An empty folder, one of other files, a file and a missing path give status 2 and a sentence, no traceback."""
    empty, other, file = tmp_path / "empty", tmp_path / "other", tmp_path / "file"
    empty.mkdir()
    (other / "class").mkdir(parents=True)
    (other / "class" / "notes.txt").write_text("no image", encoding="utf-8")
    file.write_text("no folder", encoding="utf-8")
    for folder in (empty, other, file, tmp_path / "none"):
        assert main(["demo", "--images", str(folder), "--report", str(tmp_path / "report.html")]) == 2
        error = capsys.readouterr().err
        assert error.startswith("penstock: ")
        assert str(folder) in error
        assert "Traceback" not in error
