"""Opening a plan: rows, batches, workers and memory, in one scope. The only package that knows them all."""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock._runtime._isolated import IsolatedRuntime
else:
    # It needs multiprocessing, which is slow to import.
    __getattr__ = _lazy.from_modules(__name__, IsolatedRuntime="penstock._runtime._isolated")

__all__ = ["IsolatedRuntime"]
