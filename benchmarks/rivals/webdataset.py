"""WebDataset: images from tar files, one for each worker of a DataLoader, with as many workers as cores."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import tarfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import webdataset
from numpy.typing import NDArray

from benchmarks.macro import images
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant

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


CONTESTANTS: dict[str, Contestants] = {"images": _images}
