"""`examples/language_model.py`, the script of the tutorial: it learns, resumes exactly and finds its records."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.extensions import load

SCRIPT = Path(__file__).parents[2] / "examples" / "language_model.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """Return the script, imported."""
    return load(SCRIPT)


@pytest.fixture(scope="module")
def texts(script: ModuleType) -> dict[str, list[tuple[str, Any]]]:
    """Return the documents of a few modules."""
    found: dict[str, list[tuple[str, Any]]] = script.load_texts(12)
    return found


def test_docstrings_are_found_at_every_depth(script: ModuleType) -> None:
    """The docstrings of the module, its classes and its functions are found; code without any has none."""
    code = '"""One."""\nclass A:\n    """Two."""\n    def f(self):\n        """Three."""\n'
    assert script.docstrings(code) == "One.\n\nTwo.\n\nThree."
    assert script.docstrings("x = 1") == ""


def test_sequences_hold_exactly_the_documents(script: ModuleType, texts: dict[str, Any]) -> None:
    """Every piece of a row is a run of one document's bytes, and the proportions of the parts are exact."""
    dataset = script.describe(texts)
    everything = [tokens.tobytes() for documents in texts.values() for _, tokens in documents]
    with ps.Loader(dataset) as loader:
        for step in range(2):
            batch = loader.batch_at(step)
            assert batch["tokens"].shape == (script.ROWS, script.LENGTH)
            for tokens, segments in zip(batch["tokens"], batch["segment_ids"], strict=True):
                for segment in range(1, segments.max() + 1):
                    piece = tokens[segments == segment].tobytes()
                    assert any(piece in document for document in everything)
        parts = [loader.origin(step, row).component for step in range(3) for row in range(script.ROWS)]
    assert {part: parts.count(part) for part in set(parts)} == {"code": 32, "prose": 16}


def test_contexts_end_at_the_documents_beginning(script: ModuleType) -> None:
    """A byte's context is the bytes before it in its own document, nearest first."""
    tokens = np.array([[11, 12, 13, 21, 22, 0]], np.uint8)
    positions = np.array([[0, 1, 2, 0, 1, 0]], np.int32)
    nothing = script.NOTHING
    nearest = [[nothing, nothing], [11, nothing], [12, 11], [nothing, nothing], [21, nothing], [nothing, nothing]]
    contexts = script.contexts_of(tokens, positions)
    assert contexts[0, :, :2].tolist() == nearest
    assert (contexts[0, :, 2:] == nothing).all()


def test_a_step_follows_the_gradient(script: ModuleType, texts: dict[str, Any]) -> None:
    """The gradient of each weight is that of the loss, computed from its differences: the mean over bytes of data."""
    batch = {name: leaf[:2, :40] for name, leaf in script.describe(texts)[0].items()}
    chance = np.random.default_rng(1)  # noqa: TID251 - a test's own seed
    model = {name: array.astype(np.float64) for name, array in script.new_model().items()}
    model["second"] = chance.normal(0, 0.1, model["second"].shape)
    _, slopes = script.gradients_of(batch, model)

    def loss_with(name: str, place: tuple[int, int], change: float) -> float:
        changed = model | {name: model[name].copy()}
        changed[name][place] += change
        loss: float = script.gradients_of(batch, changed)[0]
        return loss

    for name, slope in slopes.items():
        place = divmod(int(np.abs(slope).argmax()), slope.shape[1])
        measured = (loss_with(name, place, 1e-5) - loss_with(name, place, -1e-5)) / 2e-5
        assert slope[place] == pytest.approx(measured, rel=1e-4)
    losses = script.losses_of(batch, model)
    assert losses[batch["segment_ids"] > 0].mean() == pytest.approx(script.gradients_of(batch, model)[0], rel=1e-5)
    assert not losses[batch["segment_ids"] == 0].any()


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that stops between two saves, and resumes with other workers in a new process, has the same weights."""
    monkeypatch.setattr(script, "SAVE_EVERY", 3)

    def command(name: str, *options: str) -> list[str]:
        return [str(SCRIPT), "--checkpoint", str(tmp_path / name), "--modules", "12", "--steps", "8", *options]

    def printed(command: list[str]) -> list[str]:
        monkeypatch.setattr(sys, "argv", command)
        script.main()
        return capsys.readouterr().out.splitlines()

    straight = printed(command("straight.npz", "--num-workers", "0"))
    first = printed(command("cut.npz", "--stop-after", "5", "--num-workers", "2"))
    resuming = [sys.executable, *command("cut.npz", "--num-workers", "1")]
    second = subprocess.run(resuming, capture_output=True, text=True, check=True).stdout.splitlines()
    assert not first[-1].startswith("the weights")
    assert second[0] == "resuming at step 3"
    assert straight[-1].startswith("the weights' SHA-256 is ")
    assert second[-3:] == straight[-3:]
    with np.load(tmp_path / "straight.npz") as saved:
        losses = saved["losses"]
    assert losses[3:].mean() < losses[:3].mean() < 8
