"""A Parquet file whose reads are counted in all processes; those that load it import no test."""

import importlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import penstock as ps
from penstock.sources import Parquet
from penstock.testing import assert_same

parquet: Any = importlib.import_module("pyarrow.parquet")


class Counted:
    """A Parquet file whose reads of groups are counted in a file, in worker processes.

    Args:
        path: the Parquet file.
        decoded_bytes: the bound of the decoded groups.
        killed: the number of the read at which the process is killed; 0 for none.
    """

    def __init__(self, path: Path, decoded_bytes: int, killed: int = 0) -> None:
        self.source = Parquet(path, decoded_bytes=decoded_bytes)
        self.log = path.with_suffix(".log")
        self.killed = killed
        self.process = os.getpid()

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: int) -> Any:
        return self.read([key])[0]

    def read(self, keys: Sequence[int]) -> list[Any]:
        """Return rows."""
        if os.getpid() != self.process:
            count_reads(self.log, self.killed)
        return self.source.read(keys)

    def reads(self) -> list[str]:
        """Return the process of each read of a group."""
        return self.log.read_text().split()


def count_reads(log: Path, killed: int) -> None:
    """Make this process write each read of a group to a file."""
    read = parquet.ParquetFile.read_row_group
    if read.__module__ == __name__:
        return

    def counted(*args: Any, **options: Any) -> Any:
        line = f"{os.getpid():>12}\n".encode()
        with log.open("ab", buffering=0) as file:
            file.write(line)
            number = file.tell() // len(line)  # of this read, also where another process has written since
        if number == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        return read(*args, **options)

    parquet.ParquetFile.read_row_group = counted


def loaded(source: Counted, epochs: int = 1) -> None:
    """Load shuffled batches in two worker processes, and compare them with their definition."""
    dataset = ps.read(source, seed=3).shuffle().repeat(epochs).batch(40, merge=list)
    with ps.Loader(dataset, num_workers=2, workers="processes") as loader:
        for batch, expected in zip(loader, dataset, strict=True):
            assert_same(batch, expected)
