"""Processes can be started in each way without a test being blamed for what Python starts once for all of them."""

import multiprocessing.forkserver
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def settled_fork_server() -> None:
    """Start the server that forks, which Python keeps to its end."""
    multiprocessing.forkserver.ensure_running()


@pytest.fixture(autouse=True, scope="session")
def settled_shared_memory() -> Iterator[None]:
    """Have the memory of shared values, which Python keeps to its end."""
    kept = [multiprocessing.RawValue("i"), multiprocessing.RawArray("i", 2)]
    yield
    kept.clear()
