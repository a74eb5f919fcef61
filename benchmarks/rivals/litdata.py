"""LitData: random records of its chunks, which Penstock reads, too; its shuffle; and its writers."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import litdata
from litdata.streaming.writer import BinaryWriter

from benchmarks.macro import formats, parquet_lanes, write
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant
from penstock.sources import LitData, read_records


def _formats(work: formats.Texts, scope: ExitStack) -> tuple[Contestant, ...]:
    folder = work.folder / "litdata"
    _write_chunks(folder, ({"text": text, "label": label} for label, text in enumerate(work.texts)), "64MB")
    dataset = litdata.StreamingDataset(str(folder))
    source = scope.enter_context(LitData(folder, cache=work.folder))
    return (
        formats.as_rival(formats.one_by_one(work, "LitData, dataset[key]", dataset.__getitem__)),
        formats.one_by_one(work, "LitData's chunks, source[key]", source.__getitem__),
        formats.at_once(work, f"LitData's chunks, {formats.KEYS} keys", partial(read_records, source)),
    )


def _write_chunks(folder: Path, elements: Iterable[formats.Record], chunk_bytes: int | str) -> None:
    writer = BinaryWriter(str(folder), chunk_bytes=chunk_bytes)
    for number, element in enumerate(elements):
        writer[number] = element
    writer.done()
    writer.merge()


def _write(works: tuple[write.Work, write.Work], _: ExitStack) -> tuple[Contestant, ...]:
    cheap, costly = works

    def convert() -> None:
        _write_chunks(cheap.emptied() / "litdata", map(cheap.make, range(cheap.count)), cheap.shard_bytes)

    def optimize() -> None:
        litdata.optimize(
            fn=costly.make,
            inputs=list(range(costly.count)),
            output_dir=str(costly.emptied() / "litdata"),
            chunk_bytes=costly.shard_bytes,
            num_workers=write.PROCESSES,
            verbose=False,
        )

    def rows(work: write.Work) -> Iterable[formats.Record]:
        with LitData(work.folder / "litdata", cache=work.folder) as source:
            yield from source.read(range(len(source)))

    by_processes = write.contestant(
        costly, f"LitData, optimize, {write.PROCESSES} processes", "rival", optimize, rows, ordered=False
    )
    return write.contestant(cheap, "LitData, BinaryWriter", "rival", convert, rows), by_processes


def _parquet_lanes(work: parquet_lanes.Work, _: ExitStack) -> tuple[Contestant, ...]:
    folder = work.folder / "litdata"
    elements = ({"text": text, "label": label} for label, text in enumerate(work.texts))
    _write_chunks(folder, elements, parquet_lanes.GROUP * parquet_lanes.MEAN_BYTES)
    dataset = litdata.StreamingDataset(str(folder), shuffle=True)
    loader = litdata.StreamingDataLoader(dataset, batch_size=parquet_lanes.ROWS, collate_fn=list)

    def batches() -> Iterator[parquet_lanes.Columns]:
        for batch in loader:
            yield [record["text"] for record in batch], [record["label"] for record in batch]

    return (parquet_lanes.contestant(work, "LitData, its chunks, shuffled", "rival", batches),)


CONTESTANTS: dict[str, Contestants] = {"formats": _formats, "parquet-lanes": _parquet_lanes, "write": _write}
