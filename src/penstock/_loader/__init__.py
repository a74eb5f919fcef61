"""The loader and its iterators."""

from typing import TYPE_CHECKING

from penstock import _lazy
from penstock._loader._iterator import Clock as Clock
from penstock._loader._iterator import LoaderIterator as LoaderIterator
from penstock._loader._loader import Loader as Loader

if TYPE_CHECKING:
    from penstock._loader._placement import PlacedLoader as PlacedLoader
    from penstock._loader._placement import PlacementThread as PlacementThread
    from penstock._loader._placement import Turn as Turn
else:
    # Only the loaders for frameworks place batches.
    __getattr__ = _lazy.from_modules(
        __name__,
        PlacedLoader="penstock._loader._placement",
        PlacementThread="penstock._loader._placement",
        Turn="penstock._loader._placement",
    )
