"""Fixtures that start, before any test, the helpers that Python starts once and keeps, so that no test leaks them."""

import multiprocessing.forkserver
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def settled_fork_server() -> None:
    """Start the fork server, which Python keeps to its end."""
    multiprocessing.forkserver.ensure_running()


@pytest.fixture(autouse=True, scope="session")
def settled_shared_memory() -> Iterator[None]:
    """Allocate the memory of shared values, which Python keeps to its end."""
    kept = [multiprocessing.RawValue("i"), multiprocessing.RawArray("i", 2)]
    yield
    kept.clear()
