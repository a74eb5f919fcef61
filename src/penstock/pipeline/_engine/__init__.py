"""The running pipeline: its background loop, the run on it, and its readers."""

from penstock.pipeline._engine._engine import REPLACED, STOPPED, Engine, State, one_shot
from penstock.pipeline._engine._probes import Probes
from penstock.pipeline._engine._reading import AsyncPassIterator, PassIterator, Reading

__all__ = [
    "REPLACED",
    "STOPPED",
    "AsyncPassIterator",
    "Engine",
    "PassIterator",
    "Probes",
    "Reading",
    "State",
    "one_shot",
]
