"""Lance: random records of its datasets, which Penstock reads by the same library, and batches of them."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import lance
import numpy as np
import pyarrow

from benchmarks.macro import formats, parquet_lanes
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant
from penstock.sources import Lance, read_records


def _formats(work: formats.Texts, _: ExitStack) -> tuple[Contestant, ...]:
    path = work.folder / "texts.lance"
    table = pyarrow.table({"text": work.texts, "label": np.arange(len(work.texts))})
    dataset = lance.write_dataset(table, str(path))
    return (
        formats.as_rival(
            formats.at_once(work, f"Lance, {formats.KEYS} keys", lambda keys: dataset.take(keys.tolist()).to_pylist())
        ),
        formats.at_once(work, f"Lance by Penstock, {formats.KEYS} keys", partial(read_records, Lance(path))),
    )


def _parquet_lanes(work: parquet_lanes.Work, _: ExitStack) -> tuple[Contestant, ...]:
    table = pyarrow.table({"text": work.texts, "label": np.arange(len(work.texts))})
    dataset = lance.write_dataset(table, str(work.folder / "texts.lance"))
    keys = np.random.default_rng(7).permutation(len(work.texts)).reshape(-1, parquet_lanes.ROWS)

    def batches() -> Iterator[parquet_lanes.Columns]:
        for chosen in keys.tolist():
            batch = dataset.take(chosen)
            yield batch.column("text").to_pylist(), batch.column("label").to_numpy()

    return (parquet_lanes.contestant(work, "Lance, its dataset, take of random keys", "rival", batches),)


CONTESTANTS: dict[str, Contestants] = {"formats": _formats, "parquet-lanes": _parquet_lanes}
