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
    """Return the folder of the digits as PNG files."""
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder)
    return folder


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every sixth of the digits: four batches an epoch."""
    few = tmp_path_factory.mktemp("few")
    write_digits(few, every=6)
    return few


def run(folder: Path, directory: Path, *options: str) -> tuple[list[dict[str, Any]], str]:
    """Run the script with its files in `directory`; return the lines of its log and its output."""
    log = directory / "log.jsonl"
    log.unlink(missing_ok=True)
    files = ["--checkpoint", str(directory / "digits.npz"), "--log", str(log)]
    command = [sys.executable, str(SCRIPT), str(folder), *files, *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()], ended.stdout


def test_decoding_returns_the_digits_levels(script: ModuleType, folder: Path) -> None:
    """A decoded image has its digit's levels in steps of 15/255."""
    images, labels = digits()
    for number in (0, 1, 1796):
        label = int(labels[number])
        data = (folder / str(label) / f"{number:04}.png").read_bytes()
        element = script.decode({"bytes": data, "label": label})
        assert element["image"].dtype == np.float32
        assert element["label"] == label
        assert np.array_equal(element["image"], (images[number] * np.float32(15)) / np.float32(255))


def test_augmentation_without_rotation_or_shift_is_the_identity(script: ModuleType) -> None:
    """With draws of 0, augmentation returns the image unchanged."""
    image = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    assert np.array_equal(script.augment({"image": image, "label": 3}, Fixed(0, 0, 0))["image"], image)


def test_a_shift_by_one_pixel_moves_the_image(script: ModuleType) -> None:
    """An image shifted by one row or one column is its neighbour, and the new pixels are black."""
    image = np.arange(64, dtype=np.float32).reshape(8, 8) / 64 + 1
    rows = script.augment({"image": image, "label": 3}, Fixed(0, 1, 0))["image"]
    assert np.array_equal(rows[:-1], image[1:])
    assert not rows[-1].any()
    columns = script.augment({"image": image, "label": 3}, Fixed(0, 0, -1))["image"]
    assert np.array_equal(columns[:, 1:], image[:, :-1])
    assert not columns[:, 0].any()


def test_extreme_augmentation_stays_in_range(script: ModuleType) -> None:
    """Extreme draws give an image between black and the brightest pixel."""
    image = np.ones((8, 8), np.float32)
    for corner in np.ndindex(2, 2, 2):
        turned = script.augment({"image": image, "label": 3}, Fixed(*(2.0 * np.array(corner) - 1)))["image"]
        assert turned.shape == (8, 8)
        assert turned.dtype == np.float32
        assert turned.min() >= 0
        assert turned.max() <= 1 + 1e-6


def test_training_and_held_out_digits_are_disjoint_and_complete(script: ModuleType, folder: Path) -> None:
    """Four fifths of the digits are for training, the rest for testing."""
    train, test = script.describe(folder)
    assert [len(batch["label"]) for batch in test][:2] == [64, 64]
    assert sum(len(batch["label"]) for batch in test) + sum(len(batch["label"]) for batch in train) == 1797


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
    script: ModuleType, few: Path, tmp_path: Path
) -> None:
    """Six epochs without workers equal four on two workers and, in another process, two more on three."""
    straight, cut = tmp_path / "straight", tmp_path / "cut"
    straight.mkdir()
    cut.mkdir()
    expected, _ = run(few, straight, "--epochs", "6", "--num-workers", "0")
    first, _ = run(few, cut, "--epochs", "4", "--num-workers", "2")
    second, _ = run(few, cut, "--epochs", "6", "--num-workers", "3")
    digests = [(line["step"], line["sha256"]) for line in expected[:-1]]
    assert second[0]["resumed_at"] == 16
    assert digests == [(line["step"], line["sha256"]) for line in (*first[:-1], *second[1:-1])]
    train, _ = script.describe(few)
    with ps.Loader(train) as loader:
        assert [script.digest(loader.batch_at(step)) for step in (0, 17)] == [digests[0][1], digests[17][1]]


@pytest.mark.slow
def test_a_finished_run_is_not_trained_again(few: Path, tmp_path: Path) -> None:
    """A second run of the script prints its result at once."""
    _, printed = run(few, tmp_path, "--epochs", "1")
    lines, again = run(few, tmp_path, "--epochs", "1")
    assert [sorted(line) for line in lines] == [["resume_seconds", "resumed_at"], ["accuracy", "model"]]
    assert again.splitlines()[-1] == printed.splitlines()[-1]
    assert "of the held-out digits are classified correctly" in again
