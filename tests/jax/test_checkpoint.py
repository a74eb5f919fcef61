"""A loader's state in Orbax's checkpoints, beside the model's, for any number of processes."""

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import StateError, UsageError

jax = pytest.importorskip("jax")
ocp = pytest.importorskip("orbax.checkpoint")
door = pytest.importorskip("penstock.jax")
checkpoint = pytest.importorskip("penstock.jax.checkpoint")


def odd(number: int) -> bool:
    """Leave out half of the numbers."""
    return number % 2 == 1


def indexable() -> Any:
    """Return batches with positions."""
    return ps.range(48, seed=2).shuffle().batch(4)


def in_order() -> Any:
    """Return batches that can only be read in order."""
    return ps.range(48, seed=2).shuffle().filter(odd).repeat().batch(4)


def listed(batches: Any, count: int | None = None) -> list[Any]:
    """Return some batches as lists."""
    return [batch.tolist() for batch in itertools.islice(batches, count)]


@pytest.mark.parametrize("make", [indexable, in_order])
@pytest.mark.parametrize("of", ["loader", "iterator"])
def test_saved_in_one_call_with_the_model(tmp_path: Path, make: Any, of: str) -> None:
    """The state at the call of `save` is restored, also if batches were read while Orbax was writing."""
    loader = door.Loader(make())
    iterator = iter(loader)
    listed(iterator, 3)
    params = {"w": jax.numpy.arange(4.0)}
    with ocp.CheckpointManager(tmp_path) as manager:
        item = loader if of == "loader" else iterator
        manager.save(3, args=ocp.args.Composite(model=ocp.args.StandardSave(params), data=checkpoint.Save(item)))
        rest = listed(iterator, 5)
        manager.wait_until_finished()

        resumed = door.Loader(make())
        into = resumed if of == "loader" else iter(resumed)
        restored = manager.restore(
            3, args=ocp.args.Composite(model=ocp.args.StandardRestore(params), data=checkpoint.Restore(into))
        )
    assert restored.data is into
    assert np.asarray(restored.model["w"]).tolist() == [0, 1, 2, 3]
    assert listed(into, 5) == rest


def saved(monkeypatch: pytest.MonkeyPatch, folder: Path, loaders: list[Any]) -> list[str]:
    """Save loaders as if each ran in a process of its own, and return the names of the files."""
    for process, loader in enumerate(loaders):
        monkeypatch.setattr(jax, "process_index", lambda number=process: number)
        monkeypatch.setattr(jax, "process_count", lambda: len(loaders))
        checkpoint.Handler().save(folder, checkpoint.Save(loader))
    return sorted(path.name for path in folder.iterdir())


def test_equal_states_are_written_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ranks of an indexable dataset have one state, which one process writes, and any number reads."""
    loaders = [ps.Loader(indexable(), shard=ps.Shard(rank, 2)) for rank in range(2)]
    for loader in loaders:
        listed(loader, 3)
    assert saved(monkeypatch, tmp_path, loaders) == ["process-0-of-2.json"]
    for rank in range(4):
        resumed = ps.Loader(indexable(), shard=ps.Shard(rank, 4))
        checkpoint.Handler().restore(tmp_path, checkpoint.Restore(resumed))
        whole = ps.Loader(indexable())
        whole.seek(3)
        assert listed(resumed) == [batch[rank : rank + 1] for batch in listed(whole)]


@pytest.mark.parametrize("ranks", [1, 4])
def test_differing_states_are_written_by_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ranks: int) -> None:
    """If ranks differ, each process writes its own state, and no rank's is lost; replicas of a rank count once."""
    dataset = ps.range(48, seed=2).shuffle().filter(odd).batch(4)
    loaders = [ps.Loader(dataset, shard=ps.Shard(rank, 2, uneven=True)) for rank in (0, 0, 1, 1)]
    seen = [listed(loader, 2) for loader in loaders]
    assert seen[0] == seen[1]
    assert len(saved(monkeypatch, tmp_path, loaders)) == 4
    found = [number for batches in (seen[0], seen[2]) for batch in batches for number in batch]
    for rank in range(ranks):
        resumed = ps.Loader(dataset, shard=ps.Shard(rank, ranks, uneven=True))
        checkpoint.Handler().restore(tmp_path, checkpoint.Restore(resumed))
        found += [number for batch in listed(resumed) for number in batch]
    assert sorted(found) == list(range(1, 48, 2))


def test_wrong_use(tmp_path: Path) -> None:
    """An object that is no loader, a directory without a state, and another dataset's state are errors."""
    with pytest.raises(UsageError, match=r"checkpoint\.Save takes a loader"):
        checkpoint.Save({"w": 1})
    loader = ps.Loader(indexable())
    with pytest.raises(StateError, match="no state of a loader in"):
        checkpoint.Handler().restore(tmp_path, checkpoint.Restore(loader))
    checkpoint.Handler().save(tmp_path, checkpoint.Save(ps.Loader(ps.range(4).batch(2))))
    assert json.loads((tmp_path / "process-0-of-1.json").read_text())["step"] == 0
    with pytest.raises(StateError, match="another source"):
        checkpoint.Handler().restore(tmp_path, checkpoint.Restore(loader))
