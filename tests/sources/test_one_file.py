"""One file is enough for many workers on many ranks: all compute, and a late step needs only its own rows."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.sources import Parquet

pa: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

RANKS, WORKERS = 2, 2
PATIENCE_SECONDS = 60


def write_parquet(path: Path, count: int) -> None:
    """Write numbers in groups of 64 rows."""
    parquet.write_table(pa.table({"id": np.arange(count)}), path, row_group_size=64)


def number_of(record: dict[str, Any]) -> int:
    """Return the number of a record."""
    return int(record["id"])


def numbers_of(folder: Path, function: Callable[[dict[str, Any]], int], **shuffle: int) -> ps.Dataset[int]:
    """Return the numbers of the written file in shuffled blocks, each by a call of `function`."""
    return ps.read(Parquet(folder / "file", cache=folder), seed=3).shuffle(**shuffle).map(function)


class Meeting:
    """A function for workers: the first call in each process waits for those in all others.

    Args:
        port: where `Host` listens.
    """

    met: bool = False  # in this process

    def __init__(self, port: int) -> None:
        self.port = port
        self.main = os.getpid()

    def __call__(self, record: dict[str, Any]) -> int:
        """Return the number of a record."""
        if os.getpid() != self.main and not Meeting.met:
            with socket.create_connection(("127.0.0.1", self.port), PATIENCE_SECONDS) as connection:
                assert connection.recv(1) == b"."
            Meeting.met = True
        return number_of(record)


@pytest.fixture
def port() -> Iterator[int]:
    """Let the processes of all ranks go on when all of them have come."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_SECONDS)
        thread = threading.Thread(target=welcome, args=(server,))
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def welcome(server: socket.socket) -> None:
    """Accept a connection of each worker, and then answer all."""
    connections = [server.accept()[0] for _ in range(RANKS * WORKERS)]
    for connection in connections:
        with connection:
            connection.sendall(b".")


def test_all_workers_of_all_ranks_compute_at_once(tmp_path: Path, port: int) -> None:
    """Two ranks with two processes each read one file in shuffled blocks: none starves, and the batches are right."""
    write_parquet(tmp_path / "file", 960)
    dataset = numbers_of(tmp_path, Meeting(port), blocks=48, live=8, rows=32).batch(32)

    def load(rank: int) -> list[Any]:
        shard = ps.Shard(rank, RANKS)
        with ps.Loader(dataset, shard=shard, workers="processes", num_workers=WORKERS) as loader:
            return list(loader)

    with ThreadPoolExecutor(RANKS) as threads:
        parts = list(threads.map(load, range(RANKS)))
    expected = list(dataset)
    assert [len(part) for part in parts] == [len(expected)] * RANKS
    for batch, halves in zip(expected, zip(*parts, strict=True), strict=True):
        assert np.concatenate(halves).tolist() == batch.tolist()


def test_a_late_step_is_resumed_on_other_ranks_from_its_own_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a small state at step 500, one rank and batches of 12 continue as two ranks with batches of 8 would have.

    The resumed loader reads only records of its own job, so the time doesn't grow with the step.
    """
    write_parquet(tmp_path / "file", 5_000)
    numbers = numbers_of(tmp_path, number_of, blocks=64, live=4, rows=8)
    loaders = [ps.Loader(numbers.batch(8), shard=ps.Shard(rank, RANKS)) for rank in range(RANKS)]
    for loader in loaders:
        loader.seek(498)
    ranks = [iter(loader) for loader in loaders]
    before = [np.concatenate([next(rank) for rank in ranks]).tolist() for _ in range(2)]
    assert before == [list(numbers[start : start + 8]) for start in (3_984, 3_992)]
    state = json.dumps(loaders[0].state_dict())
    assert len(state) < 1000

    reads: list[object] = []
    read: Callable[..., Any] = parquet.ParquetFile.read_row_group

    def counted(*args: Any, **options: Any) -> Any:
        reads.append(args)
        return read(*args, **options)

    monkeypatch.setattr(parquet.ParquetFile, "read_row_group", counted)
    with ps.Loader(numbers_of(tmp_path, number_of, blocks=64, live=4, rows=8).batch(12)) as resumed:
        resumed.load_state_dict(json.loads(state))
        first = next(iter(resumed)).tolist()
    assert 0 < len(reads) <= 12
    assert first == list(numbers[4_000:4_012])
