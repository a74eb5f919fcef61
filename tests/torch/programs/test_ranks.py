"""Ranks read from torch.distributed's groups and meshes, and their reports; a loader without `shard=` warns."""

import importlib
import sys
import threading
import warnings
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock as ps
from penstock.errors import UsageError

pytest.importorskip("torch")
door = pytest.importorskip("penstock.torch")
distributed = pytest.importorskip("torch.distributed")
pytestmark = pytest.mark.skipif(not distributed.is_available(), reason="this torch has no torch.distributed")


@pytest.fixture
def eight() -> Iterator[None]:
    """This process as rank 5 of 8, in a job where nothing is sent."""
    importlib.import_module("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", store=distributed.HashStore(), rank=5, world_size=8)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("eight")
def test_groups() -> None:
    """A group gives this process's rank in it; without one, all processes are the group."""
    assert ps.Shard.from_torch() == ps.Shard(5, 8)
    assert ps.Shard.from_torch(distributed.group.WORLD, uneven=True) == ps.Shard(5, 8, uneven=True)
    assert ps.Shard.from_torch(distributed.new_group([1, 5, 7])) == ps.Shard(1, 3)
    with pytest.raises(UsageError, match="member"):
        ps.Shard.from_torch(distributed.new_group([1, 2]))


@pytest.mark.usefixtures("eight")
def test_meshes() -> None:
    """The dimension over which data differs gives the part; ranks that share a replica get the same part."""
    mesh = distributed.init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    assert ps.Shard.from_torch(mesh["dp"]) == ps.Shard(2, 4)
    assert ps.Shard.from_torch(mesh["tp"]) == ps.Shard(1, 2)
    with pytest.raises(UsageError, match=r"one dimension.*got 2.*mesh\['dp'\]"):
        ps.Shard.from_torch(mesh)


@pytest.mark.parametrize("given", [None, "dp", 3])
def test_arguments_without_a_rank_are_refused(given: Any) -> None:
    """Without a job, and for an object that is no group, the error gives a remedy."""
    with pytest.raises(UsageError, match=r"Shard\(rank, count\)"):
        ps.Shard.from_torch(given)


def test_workers_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker of Ray Train gets its part; elsewhere, and without Ray, the error gives a remedy."""

    def refuse() -> Any:
        raise RuntimeError("`get_context` cannot be used outside of a Ray Train training function")

    monkeypatch.delitem(sys.modules, "ray.train", raising=False)
    with pytest.raises(UsageError, match=r"Shard\(rank, count\)"):
        ps.Shard.from_ray()
    context = SimpleNamespace(get_world_rank=lambda: 2, get_world_size=lambda: 3)
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=lambda: context))
    assert ps.Shard.from_ray(uneven=True) == ps.Shard(2, 3, uneven=True)
    monkeypatch.setitem(sys.modules, "ray.train", SimpleNamespace(get_context=refuse))
    with pytest.raises(UsageError, match="isn't one of its workers"):
        ps.Shard.from_ray()


def test_a_loader_without_shard_warns(request: pytest.FixtureRequest) -> None:
    """In a job of several processes, a loader without `shard=` warns; one with it, or without a job, doesn't."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        door.Loader(ps.range(4).batch(2))
    request.getfixturevalue("eight")
    dataset = ps.range(16).batch(8)
    with pytest.warns(UserWarning, match=r"8 processes.*shard=") as caught:
        loader = door.Loader(dataset)
    assert caught[0].filename == __file__
    assert [len(batch) for batch in loader] == [8, 8]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [batch.tolist() for batch in door.Loader(dataset, shard=ps.Shard.from_torch())] == [[5], [13]]
        door.Loader(dataset, shard=ps.Shard(0, 1))


class Ranks:
    """The rank and the number of ranks, as a worker finds them."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> tuple[int, int, int]:
        with pytest.raises(RuntimeError):
            distributed.barrier()
        return distributed.get_rank(), distributed.get_rank(distributed.group.WORLD), distributed.get_world_size()


@pytest.mark.usefixtures("eight")
def test_workers_know_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dataset that asks for its rank in a worker gets the program's; the worker waits for no other rank."""
    monkeypatch.setenv("TORCH_DIST_INIT_BARRIER", "1")
    (found,) = door.DataLoader(Ranks(), batch_size=None, num_workers=1)
    assert found == [5, 5, 8]


def train(rank: int, file: str, texts: Any) -> None:
    """Train as one rank; rank 1 has a slow decoder."""
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    try:
        dataset = ps.range(64).map(slow if rank else abs, name="decode").batch(8)
        with door.Loader(dataset, shard=ps.Shard(rank, 2)) as loader:
            for _ in loader:
                pass
            ranks = door.rank_reports(loader)
        texts.put((rank, ranks.slowest, str(ranks), ranks.numbers()["data/slowest_rank"]))
    finally:
        distributed.destroy_process_group()


def slow(number: int) -> int:
    """Return the number after a while."""
    threading.Event().wait(0.003)
    return number


def test_each_rank_knows_which_one_waits_most(tmp_path: Path) -> None:
    """All ranks get the same answer, with the report of the slowest one."""
    context = get_context("fork")  # of a process that has imported torch
    texts = context.Queue()
    ranks = [context.Process(target=train, args=(rank, str(tmp_path / "store"), texts)) for rank in range(2)]
    for process in ranks:
        process.start()
    found = [texts.get(timeout=120) for _ in ranks]
    for process in ranks:
        process.join(60)
        assert process.exitcode == 0
    assert {each[0] for each in found} == {0, 1}
    for _, slowest, text, number in found:
        assert (slowest, number) == (1, 1.0)
        assert text.startswith("of 2 ranks, rank 1 waits most: ")
        assert "bottleneck: decode" in text
        assert "; the others " in text.splitlines()[0]


def test_reports_of_no_ranks_are_refused() -> None:
    """Without a job, and without reports, the error says what to call."""
    with pytest.raises(UsageError, match="init_process_group"):
        door.rank_reports(ps.Loader(ps.range(4).batch(2)))
    with pytest.raises(UsageError, match="got none"):
        ps.observe.RankReports([])
