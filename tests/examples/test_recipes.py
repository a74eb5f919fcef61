"""The recipes of `docs/how-to/use-with-training-frameworks.md` for torchtitan and Levanter.

Where they aren't installed, stand-ins with the same abstract methods take their places.
"""

import asyncio
import importlib.util
import json
import re
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.testing import assert_same

torch = pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "use-with-training-frameworks.md"


@pytest.fixture
def checkpoint() -> Any:
    """Return the distributed checkpoints, whose import takes too long for processes that only collect this file."""
    return importlib.import_module("torch.distributed.checkpoint")


class BaseDataLoader(ABC):
    """The protocol of torchtitan's loaders, which are built from a configuration."""

    @dataclass(kw_only=True, slots=True)
    class Config:
        """The configuration."""

        dataset: str = ""
        dataset_path: str | None = None

    @abstractmethod
    def __iter__(self) -> Any: ...


def _missing(*_: object) -> None: ...


vars(_missing)["__isabstractmethod__"] = True
_METHODS = ("async_len", "final_length_is_known", "is_finite", "current_len", "get_batch")
AsyncDataset = type("AsyncDataset", (ABC,), dict.fromkeys(_METHODS, _missing))
"""The protocol of Levanter's datasets."""


def namespace(package: str, name: str, stand_in: type, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Run the block of the page that needs a package, and return what it defines."""
    if importlib.util.find_spec(package.split(".")[0]) is None:
        parents = package.split(".")
        for index in range(len(parents)):
            monkeypatch.setitem(sys.modules, ".".join(parents[: index + 1]), ModuleType(parents[index]))
        setattr(sys.modules[package], stand_in.__name__, stand_in)
    (block,) = re.findall(
        rf"^```python no-run: it needs {name}\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    defined: dict[str, Any] = {"__name__": "recipe"}
    exec(compile(block, str(PAGE), "exec"), defined)
    return defined


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torchtitan_continues_on_other_ranks(checkpoint: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distributed checkpoint of two ranks continues on three: each window once, as in a run on one rank."""
    defined = namespace("torchtitan.components.dataloader", "torchtitan", BaseDataLoader, monkeypatch)
    made = defined["PenstockDataLoader"]
    np.arange(4 * 40 + 1, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    config = made.Config(dataset_path=str(tmp_path / "tokens.bin"), num_workers=0)

    def ranks(count: int) -> list[Any]:
        sizes = {"dp_world_size": count, "local_batch_size": 12 // count, "seq_len": 4}
        return [made(config, dp_rank=rank, tokenizer=None, **sizes) for rank in range(count)]

    def taken(loader: Any, steps: int) -> list[Any]:
        pairs = [pair for _, pair in zip(range(steps), iter(loader), strict=False)]
        for inputs, labels in pairs:
            assert inputs["input"].dtype == labels.dtype == torch.int64
            assert_same(inputs["input"][:, 1:].numpy(), labels[:, :-1].numpy())
        return [inputs["input"] for inputs, _ in pairs]

    (alone,) = ranks(1)
    expected = taken(alone, 9)  # three epochs
    first = ranks(2)
    parts = [taken(rank, 4) for rank in first]
    checkpoint.save({"dataloader": first[0]}, checkpoint_id=tmp_path / "step-4")
    second = ranks(3)
    for rank in second:
        checkpoint.load({"dataloader": rank}, checkpoint_id=tmp_path / "step-4")
    rests = [taken(rank, 5) for rank in second]
    found = [torch.cat(list(batch)) for batch in [*zip(*parts, strict=True), *zip(*rests, strict=True)]]
    assert_same([batch.numpy() for batch in found], [batch.numpy() for batch in expected])
    assert json.loads(second[0].state_dict()["loader"]) == json.loads(second[2].state_dict()["loader"])


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_loses_no_part_of_a_state(checkpoint: Any, tmp_path: Path) -> None:
    """States in order are saved as text, a key for each rank; a loader that is saved itself is an error, not a loss."""
    dataset = ps.range(40).filter(bool).batch(4)
    ranks = [ps.Loader(dataset, shard=ps.Shard(rank, 2, uneven=True)) for rank in range(2)]
    seen = [next(iter(rank)) for rank in ranks]
    texts = {f"loader {rank}": json.dumps(loader.state_dict()) for rank, loader in enumerate(ranks)}
    checkpoint.save(texts, checkpoint_id=tmp_path / "texts")
    found = dict.fromkeys(texts, "")
    checkpoint.load(found, checkpoint_id=tmp_path / "texts")
    alone = ps.Loader(dataset)
    alone.load_state_dict([*found.values()])
    checkpoint.save({"loader": alone}, checkpoint_id=tmp_path / "loader")
    with pytest.raises(ps.errors.StateError, match=r"saved with the key 'ahead' or 'legs', and now has neither"):
        checkpoint.load({"loader": ps.Loader(dataset)}, checkpoint_id=tmp_path / "loader")
    whole = {"loader": {**ps.Loader(dataset).state_dict(), "legs": None}}
    checkpoint.load(whole, checkpoint_id=tmp_path / "loader")
    assert whole["loader"] == alone.state_dict()
    assert sorted(np.concatenate([*seen, *alone]).tolist()) == list(range(1, 40))


def test_levanter_gets_the_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Levanter's requests for positions return the dataset's elements, and its length."""
    defined = namespace("levanter.data", "Levanter", AsyncDataset, monkeypatch)
    dataset = ps.range(20, seed=7).map(lambda number: {"tokens": np.arange(number)})

    async def ask() -> None:
        made = defined["PenstockDataset"](dataset)
        assert_same(await made.get_batch([3, 0, 19]), [dataset[3], dataset[0], dataset[19]])
        assert await made.async_len() == await made.current_len() == 20
        assert made.is_finite()
        assert await made.final_length_is_known()

    asyncio.run(ask())
