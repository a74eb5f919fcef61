"""MosaicML Streaming: random records of its shards, which Penstock reads, too."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from contextlib import ExitStack
from functools import partial

import streaming

from benchmarks.macro import formats
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant
from penstock.sources import MDS, read_records


def _formats(work: formats.Texts, scope: ExitStack) -> tuple[Contestant, ...]:
    folder = str(work.folder / "mds")
    with streaming.MDSWriter(out=folder, columns={"text": "str", "label": "int64"}) as writer:
        for label, text in enumerate(work.texts):
            writer.write({"text": text, "label": label})
    dataset = streaming.StreamingDataset(local=folder, batch_size=1)
    source = scope.enter_context(MDS(folder, cache=work.folder))
    return (
        formats.as_rival(formats.one_by_one(work, "Streaming, dataset[key]", dataset.__getitem__)),
        formats.one_by_one(work, "MDS, source[key]", source.__getitem__),
        formats.at_once(work, f"MDS, {formats.KEYS} keys", partial(read_records, source)),
    )


CONTESTANTS: dict[str, Contestants] = {"formats": _formats}
