"""Penstock feeds training jobs: what the model sees at step N is a pure function of the dataset's description and N.

import penstock as ps

dataset = ps.read(ps.sources.ImageFolder("train/"), seed=7).shuffle().map(decode).batch(256)
for batch in ps.Loader(dataset, num_workers=8):
    ...
"""

from typing import TYPE_CHECKING

from penstock import _lazy, errors, sampling, sources
from penstock._dataset import Dataset, concatenate, interleave, mix, package_text, read, stream
from penstock._dataset import integers as range  # noqa: A004 - `ps.range` is to datasets what `range` is to lists
from penstock._dataset import zip_datasets as zip  # noqa: A004 - `ps.zip` is to datasets what `zip` is to lists
from penstock._graph import Combiner, Origin, Substitute
from penstock._plan import Limits, Shard

if TYPE_CHECKING:
    from penstock import batching as batching
    from penstock import concurrency as concurrency
    from penstock import events as events
    from penstock import images as images
    from penstock import jax as jax
    from penstock import observe as observe
    from penstock import pipeline as pipeline
    from penstock import ray as ray
    from penstock import testing as testing
    from penstock import torch as torch
    from penstock import transport as transport
    from penstock._graph import PerWorker, Preview
    from penstock._loader import Loader, LoaderIterator
    from penstock._plan import Explanation
    from penstock._writing import Written, write
else:
    _SUBMODULES = (
        "batching",
        "concurrency",
        "events",
        "images",
        "jax",
        "observe",
        "pipeline",
        "ray",
        "testing",
        "torch",
        "transport",
    )
    # The names that run a dataset, and modules of their own subject, are imported on first access: describing a dataset
    # doesn't need them.
    __getattr__ = _lazy.from_modules(
        __name__,
        submodules=_SUBMODULES,
        refusal=package_text,
        Explanation="penstock._plan._explain",
        Loader="penstock._loader",
        LoaderIterator="penstock._loader",
        PerWorker="penstock._graph",
        Preview="penstock._graph",
        Written="penstock._writing",
        write="penstock._writing",
    )
    __dir__ = _lazy.listing(__name__, *_SUBMODULES)

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
    "Preview",
    "Shard",
    "Substitute",
    "Written",
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
    "write",
    "zip",
]
