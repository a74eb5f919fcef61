"""Penstock feeds training jobs: what the model sees at step N is a pure function of the dataset's description and N.

import penstock as ps

dataset = ps.read(ps.sources.ImageFolder("train/"), seed=7).shuffle().map(decode).batch(256)
for batch in ps.Loader(dataset, num_workers=8):
    ...
"""

from typing import TYPE_CHECKING

from penstock import _lazy, errors, sampling, sources
from penstock._dataset import Dataset, concatenate, interleave, mix, read, stream
from penstock._dataset import integers as range  # noqa: A004 - `ps.range` is to datasets what `range` is to lists
from penstock._dataset import zip_datasets as zip  # noqa: A004 - `ps.zip` is to datasets what `zip` is to lists
from penstock._graph import Combiner, Origin, Substitute
from penstock._plan import Limits, Shard

if TYPE_CHECKING:
    from penstock._graph import PerWorker
    from penstock._loader import Loader, LoaderIterator
    from penstock._plan import Explanation
else:
    # The names that run a dataset are imported on first access: describing one doesn't need them.
    __getattr__ = _lazy.from_modules(
        __name__,
        Explanation="penstock._plan._explain",
        Loader="penstock._loader",
        LoaderIterator="penstock._loader",
        PerWorker="penstock._graph",
    )

__version__ = "0.1.0"

__all__ = [
    "Combiner",
    "Dataset",
    "Explanation",
    "Limits",
    "Loader",
    "LoaderIterator",
    "Origin",
    "PerWorker",
    "Shard",
    "Substitute",
    "__version__",
    "concatenate",
    "errors",
    "interleave",
    "mix",
    "range",
    "read",
    "sampling",
    "sources",
    "stream",
    "zip",
]
