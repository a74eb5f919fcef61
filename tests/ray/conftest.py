"""A Ray cluster on this machine, for all tests of this folder."""

import importlib.util
from collections.abc import Generator
from typing import Any

import psutil
import pytest

from tests.ray.losses import SETTINGS


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Generator[Any]:
    """A cluster of two hosts, to which this process is connected; all of its processes end with the session."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray isn't installed")
    ray: Any = pytest.importorskip("ray")
    utils: Any = pytest.importorskip("ray.cluster_utils")
    before = set(psutil.Process().children(recursive=True))
    arguments = {"num_cpus": 4, "object_store_memory": 100_000_000}
    head = {**arguments, "include_dashboard": False, "_system_config": SETTINGS}
    cluster = utils.Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**arguments)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        left = set(psutil.Process().children(recursive=True)) - before
        staying = ("penstock-forks", "penstock-spare")  # the fork server and its spare, until the program ends
        own = {process for process in left if process.name() in staying}
        _, alive = psutil.wait_procs(left - own, timeout=20)
        assert not alive


@pytest.fixture(autouse=True)
def nothing_leaks() -> None:
    """Replace the check of other tests: Ray starts threads and processes when it wants to, and keeps them."""
