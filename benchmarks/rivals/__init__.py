"""Other loaders, and the standard library, on the same work: one file per rival, all with the same interface.

A rival's module imports its library at the top, and defines `CONTESTANTS`, which maps a scenario's name to a function
from the scenario's work (and the scope that closes it) to contestants. The report names a rival whose library is
missing. Each rival is written as its own documentation recommends, in the faster of the ways that it offers.
"""

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.scenario import Contestant

RIVALS = (
    "torch", "grain", "spdl", "torchdata", "webdataset", "streaming", "litdata", "lance", "datasets", "jax", "standard",
    "accelerate",
)  # fmt: skip
Contestants = Callable[[Any, ExitStack], tuple[Contestant, ...]]


def installed() -> tuple[dict[str, dict[str, Contestants]], tuple[str, ...]]:
    """Return the rivals that can be imported, by name, and the names of the others."""
    found: dict[str, dict[str, Contestants]] = {}
    missing: list[str] = []
    for name in RIVALS:
        try:
            found[name] = importlib.import_module(f"benchmarks.rivals.{name}").CONTESTANTS
        except ImportError:
            missing.append(name)
    return found, tuple(missing)
