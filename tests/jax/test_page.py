"""The programs on pages about JAX work where it is installed; elsewhere their blocks aren't run."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps

jax = pytest.importorskip("jax")


def program(name: str, count: int) -> Any:
    """Return the blocks of a page as one program."""
    page = Path(__file__).parents[2] / "docs" / "how-to" / name
    blocks = re.findall(r"^```python no-run: it needs JAX\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == count
    return compile("\n".join(blocks), str(page), "exec")


def test_feeding_jax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is one program."""
    pytest.importorskip("orbax.checkpoint")
    monkeypatch.chdir(tmp_path)
    exec(program("feed-jax.md", 5), {"__name__": "__main__"})


def test_maxtext_gets_its_batches() -> None:
    """The iterator has the names, shapes and sharding that MaxText expects; a target is the next token."""
    defined: dict[str, Any] = {"__name__": "recipe"}
    exec(program("use-with-training-frameworks.md", 1), defined)
    config = SimpleNamespace(global_batch_size_to_load=4, max_target_length=16, data_sharding=[["data"]])
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
    documents = ps.range(60, seed=7).shuffle().map(lambda number: {"tokens": np.arange(1, 2 + number % 15)})
    batches = defined["create_data_iterator"](config, mesh, documents)
    for _ in range(40):  # more than an epoch has
        batch = {name: np.asarray(array) for name, array in next(batches).items()}
        assert {array.shape for array in batch.values()} == {(4, 16)}
        has_loss = batch["targets_segmentation"] > 0
        assert has_loss.any()
        assert (batch["targets"] == batch["inputs"] + 1)[has_loss].all()  # each document counts from 1
        assert (batch["inputs"] == batch["inputs_position"] + 1)[has_loss].all()
    batches.close()
