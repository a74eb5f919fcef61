"""`examples/digits.py`, the script that users copy: it trains, saves, resumes, and reads the described data."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.examples.pictures import NEEDS_DIGITS, SCRIPT, digits, write_digits
from tests.extensions import load

pytestmark = NEEDS_DIGITS
EVERY = 6  # of the digits: four batches an epoch


class Fixed:
    """Replaces a generator: every draw returns the given numbers."""

    def __init__(self, *numbers: float) -> None:
        self._numbers = numbers

    def uniform(self, low: float, high: float, size: int) -> np.ndarray:
        """Return the numbers."""
        assert (low, high, size) == (-1, 1, len(self._numbers))
        return np.array(self._numbers)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return the script, imported."""
    return load(SCRIPT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of some digits as PNG files."""
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder, every=EVERY)
    return folder


def test_decoding_returns_the_digits_levels(script: ModuleType, folder: Path) -> None:
    """A decoded image has its digit's levels in steps of 15/255; four fifths are for training, the rest for testing."""
    images, labels = digits()
    for number in (0, EVERY, 1794):
        label = int(labels[number])
        data = (folder / str(label) / f"{number:04}.png").read_bytes()
        element = script.decode({"bytes": data, "label": label})
        assert element["image"].dtype == np.float32
        assert element["label"] == label
        assert np.array_equal(element["image"], (images[number] * np.float32(15)) / np.float32(255))
    sizes = [sum(len(batch["label"]) for batch in part) for part in script.describe(folder)]
    assert sum(sizes) == len(range(0, 1797, EVERY))
    assert sizes[0] == pytest.approx(0.8 * sum(sizes), abs=1)
    assert len(script.describe(folder)[0][0]["label"]) == 64


def test_augmentation_rotates_and_shifts(script: ModuleType) -> None:
    """Draws of 0 change nothing; a shift by a pixel gives the neighbours, and black; the extremes stay in range."""
    image = np.arange(64, dtype=np.float32).reshape(8, 8) / 64 + 1

    def augmented(*draws: float) -> Any:
        return script.augment({"image": image, "label": 3}, Fixed(*draws))["image"]

    assert np.array_equal(augmented(0, 0, 0), image)
    rows, columns = augmented(0, 1, 0), augmented(0, 0, -1)
    assert np.array_equal(rows[:-1], image[1:])
    assert not rows[-1].any()
    assert np.array_equal(columns[:, 1:], image[:, :-1])
    assert not columns[:, 0].any()
    for corner in np.ndindex(2, 2, 2):
        turned = augmented(*(2.0 * np.array(corner) - 1))
        assert (turned.shape, turned.dtype) == ((8, 8), np.float32)
        assert 0 <= turned.min() <= turned.max() <= image.max() + 1e-6


def test_a_step_follows_the_gradient(script: ModuleType, folder: Path) -> None:
    """The change of each weight is the rate times the loss's gradient, as computed from differences of the loss."""
    train, _ = script.describe(folder)
    batch = train[0] | {"image": train[0]["image"].astype(np.float64)}
    chance = np.random.default_rng(1)  # noqa: TID251 - a test's own seed
    model = {"first": chance.normal(0, 0.18, (64, 256)), "second": chance.normal(0, 0.1, (256, 10))}

    def loss_with(name: str, place: tuple[int, int], change: float) -> float:
        changed = {key: weights.copy() for key, weights in model.items()}
        changed[name][place] += change
        loss: float = script.train_on(batch, changed, rate=0.0)
        return loss

    stepped = {key: weights.copy() for key, weights in model.items()}
    script.train_on(batch, stepped, rate=0.5)
    for name, place in [("first", (20, 3)), ("first", (43, 200)), ("second", (7, 0)), ("second", (255, 9))]:
        slope = (loss_with(name, place, 1e-5) - loss_with(name, place, -1e-5)) / 2e-5
        assert abs(slope) > 1e-6
        assert (model[name] - stepped[name])[place] == pytest.approx(0.5 * slope, rel=1e-4)


@pytest.mark.slow
def test_the_log_is_the_same_for_any_number_of_workers_and_resumes(
    script: ModuleType,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three epochs without workers equal two on two workers and, in another process, one more on three.

    A finished run is not trained again: it prints its result at once.
    """

    def command(name: str, epochs: int, workers: int) -> list[str]:
        files = ["--checkpoint", str(tmp_path / f"{name}.npz"), "--log", str(tmp_path / f"{name}.jsonl")]
        return [str(SCRIPT), str(folder), *files, "--epochs", str(epochs), "--num-workers", str(workers)]

    def logged(name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]

    for name, epochs, workers in (("straight", 3, 0), ("cut", 2, 2)):
        monkeypatch.setattr(sys, "argv", command(name, epochs, workers))
        script.main()
    resuming = [sys.executable, *command("cut", 3, 3)]
    first = subprocess.run(resuming, capture_output=True, text=True, check=True).stdout
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", command("cut", 3, 0))
    script.main()
    assert capsys.readouterr().out.splitlines() == first.splitlines()[-1:]
    assert "of the held-out digits are classified correctly" in first
    *lines, resumed, end = logged("cut")
    assert [sorted(line) for line in (resumed, end)] == [["resume_seconds", "resumed_at"], ["accuracy", "model"]]
    assert [line["resumed_at"] for line in lines if "resumed_at" in line] == [8]
    found = [
        [(line["step"], line["sha256"]) for line in each if "step" in line] for each in (logged("straight"), lines)
    ]
    assert found[0] == found[1]
    assert [step for step, _ in found[0]] == list(range(12))
    with ps.Loader(script.describe(folder)[0]) as loader:
        assert [script.digest(loader.batch_at(step)) for step in (0, 9)] == [found[0][0][1], found[0][9][1]]
