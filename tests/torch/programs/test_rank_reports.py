"""The reports of all ranks are gathered to each of them, and the one that waits most is named."""

import threading
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

import penstock as ps
import penstock.torch as door
from penstock.errors import UsageError

RANKS = 2


def train(rank: int, file: str, texts: Any) -> None:
    """Train as one rank; rank 1 has a slow decoder."""
    distributed: Any = torch.distributed
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=RANKS)
    try:
        dataset = ps.range(64).map(slow if rank else abs, name="decode").batch(8)
        with door.Loader(dataset, shard=ps.Shard(rank, RANKS)) as loader:
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
    ranks = [context.Process(target=train, args=(rank, str(tmp_path / "store"), texts)) for rank in range(RANKS)]
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
