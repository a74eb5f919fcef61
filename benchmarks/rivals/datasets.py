"""Hugging Face datasets: Parquet files as a shuffled stream, and elements written by `save_to_disk`."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import datasets

from benchmarks.macro import parquet_lanes, write
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant

BUFFER = 10_000  # records


def _parquet_lanes(work: parquet_lanes.Work, _: ExitStack) -> tuple[Contestant, ...]:
    files = [str(path) for path in work.paths]
    stream = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    shuffled = stream.shuffle(seed=7, buffer_size=BUFFER)

    def batches() -> Iterator[parquet_lanes.Columns]:
        for batch in shuffled.iter(batch_size=parquet_lanes.ROWS):
            yield batch["text"], batch["label"]

    return (parquet_lanes.contestant(work, f"datasets, stream, buffer of {BUFFER:,}", "rival", batches),)


def _write(works: tuple[write.Work, write.Work], _: ExitStack) -> tuple[Contestant, ...]:
    cheap = works[0]
    datasets.disable_progress_bars()

    def save() -> None:
        folder = cheap.emptied()
        made = datasets.Dataset.from_generator(
            lambda: map(cheap.make, range(cheap.count)), cache_dir=str(folder / "cache")
        )
        made.save_to_disk(str(folder / "saved"), num_shards=write.SHARDS)

    def rows(work: write.Work) -> Iterator[dict[str, Any]]:
        saved: Any = datasets.load_from_disk(str(work.folder / "saved"))
        return iter(saved)

    return (write.contestant(cheap, "datasets, save_to_disk", "rival", save, rows),)


CONTESTANTS: dict[str, Contestants] = {"parquet-lanes": _parquet_lanes, "write": _write}
