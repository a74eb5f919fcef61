"""Other loaders, and the standard library, on the same work: one file per rival, all with the same interface.

A rival's module imports its library at the top, and defines `CONTESTANTS`: for a scenario's name a function from the
scenario's work (and what it runs on) to contestants. A rival whose library is missing is named in the report. Each is
written as its own documentation recommends, with the faster of the ways it offers.
"""

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from benchmarks.scenario import Contestant

RIVALS = ("torch", "grain", "spdl", "torchdata", "webdataset", "jax", "standard")
Contestants = Callable[[Any, ExitStack], tuple[Contestant, ...]]


def installed() -> tuple[dict[str, dict[str, Contestants]], tuple[str, ...]]:
    """Return the rivals that can be imported, by name, and the names of those that cannot."""
    found: dict[str, dict[str, Contestants]] = {}
    missing: list[str] = []
    for name in RIVALS:
        try:
            found[name] = importlib.import_module(f"benchmarks.rivals.{name}").CONTESTANTS
        except ImportError:
            missing.append(name)
    return found, tuple(missing)
