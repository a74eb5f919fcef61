"""The loader and its iterators."""

from penstock._loader._iterator import LoaderIterator
from penstock._loader._loader import Loader

__all__ = ["Loader", "LoaderIterator"]
