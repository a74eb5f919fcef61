"""The places where a loader computes, each as arguments of the loader."""

import os
from typing import Any, Final

import pytest

PLACES: Final[dict[str, dict[str, Any]]] = {
    "inline": {},
    "thread": {"num_workers": 1, "workers": "threads"},
    "threads": {"num_workers": 3, "workers": "threads"},
    "processes": {"num_workers": 2, "workers": "processes"},
    "isolated": {"isolated": True},
    "isolated threads": {"isolated": True, "num_workers": 2, "workers": "threads"},
    "isolated processes": {"isolated": True, "num_workers": 1, "workers": "processes"},
    "thread, out of order": {"num_workers": 1, "workers": "threads", "ordered": False},
    "out of order": {"num_workers": 2, "workers": "threads", "ordered": False},
    "isolated, out of order": {"isolated": True, "num_workers": 2, "workers": "threads", "ordered": False},
}
LINUX = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")


def in_places(*names: str) -> pytest.MarkDecorator:
    """Run a test in each of these places; it takes the arguments of a loader as `place`."""
    return pytest.mark.parametrize("place", [place_of(name) for name in names])


def place_of(name: str, *values: object) -> Any:
    """Return the parameter set of a place, with other values of the case before the place's."""
    needs_linux = "processes" in name or "isolated" in name
    return pytest.param(*values, PLACES[name], id=name, marks=[LINUX] if needs_linux else [])
