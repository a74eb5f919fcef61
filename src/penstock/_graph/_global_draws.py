"""Random numbers that a function of a `map`, or a source, draws from the global generators: found, and reported once.

The problem: a function that draws from `random`, from NumPy's global generator or from torch's gives other elements in
each run, so that a resumed run differs from an uninterrupted one, and nothing shows it. The same holds for a source
that does, such as one of torch's datasets with random transforms. The solution: the states of
these generators are compared before and after the first blocks of each step, in a thread in which nothing else draws
meanwhile: that of the consumer without workers, the main thread of a worker process, or the thread that measures
elements to choose workers. No function is called for this.

Rejected: to call a function twice for one element, since it may have side effects; to read its code, which shows
neither all that draw nor only those; and to compare in worker threads, since the program draws in its own thread at the
same time.

A step is reported if each of its first two blocks has drawn, since another thread of the program may have drawn during
one. Of cheap elements only one block is measured, which then decides alone.
"""

import random
import sys
import threading
from typing import Any

import numpy as np

from penstock._graph._describe import chain_text
from penstock._graph._nodes import Map, Read
from penstock.events import DrewGlobally, Observer


class GlobalDraws:
    """Compares the global generators' states around the first blocks of each step, in the first thread that asks.

    Args:
        blocks: how many blocks of a step have to draw until it is reported.
    """

    def __init__(self, blocks: int = 2) -> None:
        self._most = blocks
        self._thread: int | None = None
        self._blocks: dict[int, int] = {}  # by the identity of a step: how many of its blocks may still be compared

    def before(self, step: Map | Read) -> dict[str, object] | None:
        """Return the generators' states before a block of a step; None if the block isn't compared."""
        if not self._blocks.get(id(step), self._most):
            return None
        self._thread = self._thread or threading.get_ident()
        return _states() if self._thread == threading.get_ident() else None

    def after(self, step: Map | Read, before: dict[str, object], observe: Observer) -> None:
        """Compare with the states before the block; report the step if all of its compared blocks have drawn."""
        states = _states()
        if states.keys() != before.keys():
            return  # the function has loaded a module: its next block shows more
        draws = any(states[name] != state for name, state in before.items())
        left = self._blocks[id(step)] = self._blocks.get(id(step), self._most) - 1 if draws else 0
        if draws and not left:
            observe(DrewGlobally(chain_text(step) if isinstance(step, Read) else step.name))


def _states() -> dict[str, object]:
    """Return the generators' states by module; a program that hasn't loaded a module doesn't draw from it."""
    states: dict[str, object] = {"random": random.getstate()}
    if "numpy.random" in sys.modules:
        legacy: Any = np.random.get_state()
        states["numpy"] = (legacy[1].tobytes(), *legacy[2:])
    torch: Any = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states
