"""What `docs/how-to/use-with-training-frameworks.md` shows of MaxText, without MaxText."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import penstock as ps

jax = pytest.importorskip("jax")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-with-training-frameworks.md"


def test_maxtext_gets_its_batches() -> None:
    """The iterator has the names, shapes and sharding that MaxText expects; a target is the next token."""
    (block,) = re.findall(
        r"^```python no-run: it needs JAX\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    defined: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(block, str(PAGE), "exec"), defined)
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
