"""MosaicML Streaming: random records of its shards, which Penstock reads, too; its shuffles; and its writer.

Streaming imports torchvision and transformers for datasets of images and texts, which the scenarios don't use. Each
wants another version of a package that all contestants share, so stand-ins take their places.
"""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import importlib.util
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import numpy as np

from benchmarks.macro import formats, parquet_lanes, shuffle_blocks, write
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant
from benchmarks.streams import grouped
from penstock.sources import MDS, read_records


class StandIn(ModuleType):
    """A module that has a class of any name."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class StandIns(MetaPathFinder, Loader):
    """Finds stand-ins for the modules of two packages."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Return the place of a stand-in."""
        if fullname.partition(".")[0] not in {"torchvision", "transformers"}:
            return None
        return importlib.util.spec_from_loader(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the stand-in as it is."""


sys.meta_path.insert(0, _finder := StandIns())
try:
    import streaming
    from streaming.base.shuffle import get_shuffle
finally:
    sys.meta_path.remove(_finder)

COLUMNS = {"text": "str", "label": "int64"}
BLOCK = 1 << 15  # records over which it spreads those of a shard


def _formats(work: formats.Texts, scope: ExitStack) -> tuple[Contestant, ...]:
    folder = str(work.folder / "mds")
    _write_shards(folder, ({"text": text, "label": label} for label, text in enumerate(work.texts)))
    dataset = streaming.StreamingDataset(local=folder, batch_size=1)
    source = scope.enter_context(MDS(folder, cache=work.folder))
    return (
        formats.as_rival(formats.one_by_one(work, "Streaming, dataset[key]", dataset.__getitem__)),
        formats.one_by_one(work, "MDS, source[key]", source.__getitem__),
        formats.at_once(work, f"MDS, {formats.KEYS} keys", partial(read_records, source)),
    )


def _write_shards(folder: str, elements: Iterable[formats.Record], **options: object) -> None:
    with streaming.MDSWriter(out=folder, columns=COLUMNS, **options) as writer:
        for element in elements:
            writer.write(element)


def _shuffle_blocks(work: shuffle_blocks.Work, _: ExitStack) -> tuple[Contestant, ...]:
    sizes = np.full(work.blocks, shuffle_blocks.RECORDS)

    def contestant(algorithm: str) -> Contestant:
        keys = partial(get_shuffle, algorithm, sizes, 1, 7, 0, BLOCK)
        return shuffle_blocks.by_epoch(work, f"Streaming's {algorithm}, blocks of {BLOCK:,}", "rival", keys)

    return tuple(map(contestant, ("py1e", "py1br")))


def _write(works: tuple[write.Work, write.Work], _: ExitStack) -> tuple[Contestant, ...]:
    work = works[0]

    def convert() -> None:
        folder, elements = work.emptied() / "mds", map(work.make, range(work.count))
        _write_shards(str(folder), elements, size_limit=work.shard_bytes, hashes=["xxh3_64"])

    def rows(work: write.Work) -> Iterable[formats.Record]:
        with MDS(work.folder / "mds", cache=work.folder) as source:
            yield from source.read(range(len(source)))

    return (write.contestant(work, "Streaming, MDSWriter", "rival", convert, rows),)


def _parquet_lanes(work: parquet_lanes.Work, _: ExitStack) -> tuple[Contestant, ...]:
    folder = str(work.folder / "mds")
    elements = ({"text": text, "label": label} for label, text in enumerate(work.texts))
    _write_shards(folder, elements, size_limit=parquet_lanes.GROUP * parquet_lanes.MEAN_BYTES)
    rows = parquet_lanes.ROWS
    dataset = streaming.StreamingDataset(
        local=folder, shuffle=True, shuffle_block_size=parquet_lanes.LIVE * parquet_lanes.GROUP, batch_size=rows
    )

    def batches() -> Iterator[parquet_lanes.Columns]:
        for batch in grouped(dataset, rows):
            yield [record["text"] for record in batch], [record["label"] for record in batch]

    return (parquet_lanes.contestant(work, "Streaming, its shards, py1e", "rival", batches),)


CONTESTANTS: dict[str, Contestants] = {
    "formats": _formats,
    "parquet-lanes": _parquet_lanes,
    "shuffle-blocks": _shuffle_blocks,
    "write": _write,
}
