"""WebDataset: images from tar files, one for each worker of a DataLoader, as many as cores; and its writer."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from numpy.typing import NDArray

from benchmarks.macro import images, write
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant
from penstock.sources import Tar

SHUFFLED = 256  # images held to be shuffled


def _images(work: images.Work, _: ExitStack) -> tuple[Contestant, ...]:
    paths = [str(_write_tar(work, part)) for part in range(images.NUM_WORKERS)]
    dataset = webdataset.WebDataset(paths, shardshuffle=False).shuffle(SHUFFLED)
    mapped = dataset.map(Decode(work)).batched(work.batch_size, collation_fn=np.stack)
    loader = webdataset.WebLoader(mapped, batch_size=None, num_workers=images.NUM_WORKERS, persistent_workers=True)
    return (images.contestant(work, "WebDataset, 2 processes", "rival", lambda: loader),)


class Decode:
    """Makes an image from an entry of a tar file."""

    def __init__(self, work: images.Work) -> None:
        self.work = work

    def __call__(self, sample: dict[str, Any]) -> NDArray[np.uint8]:
        """Return the image."""
        return self.work.decoded(int(sample["__key__"]), sample["jpg"])


def _write_tar(work: images.Work, part: int) -> Path:
    """Write every second image, or as many as there are parts, and return the file."""
    path = work.folder / f"{part}.tar"
    with tarfile.open(path, "w") as tar:
        for key in range(part, work.count, images.NUM_WORKERS):
            tar.add(work.path(key), f"{key}.jpg")
    return path


def _write(works: tuple[write.Work, write.Work], _: ExitStack) -> tuple[Contestant, ...]:
    cheap = works[0]

    def convert() -> None:
        pattern = str(cheap.emptied() / "%05d.tar")
        with webdataset.ShardWriter(pattern, maxcount=-(-cheap.count // write.SHARDS), verbose=0) as writer:
            for number in range(cheap.count):
                element = cheap.make(number)
                writer.write({"__key__": f"{number:09}", "txt": element["text"], "cls": element["label"]})

    def rows(work: write.Work) -> Iterator[dict[str, Any]]:
        with Tar(work.folder / "*.tar", cache=work.folder) as source:
            for record in source.read(range(len(source))):
                yield {"text": record["txt"].decode(), "label": int(record["cls"])}

    return (write.contestant(cheap, "WebDataset, ShardWriter", "rival", convert, rows),)


CONTESTANTS: dict[str, Contestants] = {"images": _images, "write": _write}
