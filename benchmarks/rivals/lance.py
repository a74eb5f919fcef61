"""Lance: random records of its datasets, which Penstock reads by the same library."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from contextlib import ExitStack
from functools import partial

import lance
import numpy as np
import pyarrow

from benchmarks.macro import formats
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


CONTESTANTS: dict[str, Contestants] = {"formats": _formats}
