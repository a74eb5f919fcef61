"""LitData: random records of its chunks, which Penstock reads, too."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from contextlib import ExitStack
from functools import partial

import litdata
from litdata.streaming.writer import BinaryWriter

from benchmarks.macro import formats
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant
from penstock.sources import LitData, read_records


def _formats(work: formats.Texts, scope: ExitStack) -> tuple[Contestant, ...]:
    folder = work.folder / "litdata"
    writer = BinaryWriter(str(folder), chunk_bytes="64MB")
    for label, text in enumerate(work.texts):
        writer[label] = {"text": text, "label": label}
    writer.done()
    writer.merge()
    dataset = litdata.StreamingDataset(str(folder))
    source = scope.enter_context(LitData(folder, cache=work.folder))
    return (
        formats.as_rival(formats.one_by_one(work, "LitData, dataset[key]", dataset.__getitem__)),
        formats.one_by_one(work, "LitData's chunks, source[key]", source.__getitem__),
        formats.at_once(work, f"LitData's chunks, {formats.KEYS} keys", partial(read_records, source)),
    )


CONTESTANTS: dict[str, Contestants] = {"formats": _formats}
