"""The runtime opens plans: the scheduler, workers, memory and streams of batches. No other package knows all."""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock._runtime._isolated import IsolatedRuntime
else:
    # It needs multiprocessing, which is slow to import.
    __getattr__ = _lazy.from_modules(__name__, IsolatedRuntime="penstock._runtime._isolated")

__all__ = ["IsolatedRuntime"]
