"""Faults of a cluster change no batch: full stores, hosts that lack memory or are silent, trainers that are killed."""

import faulthandler
import importlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager, suppress
from typing import Any

import numpy as np
import psutil
import pytest

import penstock as ps
from penstock.errors import UsageError
from penstock.testing import assert_same
from tests.ray.losses import PATIENCE_SECONDS, Hosts

SILENT_SECONDS = 30.0
ON_HOST = {"num_cpus": 0, "resources": {"own": 1}}
ray: Any = pytest.importorskip("ray")
door: Any = importlib.import_module("penstock.ray")


def pictures(count: int = 100) -> ps.Dataset[Any]:
    """Return batches of 1 MB."""
    return ps.range(4 * count, seed=7).shuffle().map(lambda number: np.full(250_000, number % 251, np.uint8)).batch(4)


def reaches(condition: Callable[[], bool]) -> bool:
    """Return whether a condition holds in time."""
    ends = time.monotonic() + PATIENCE_SECONDS
    while not (holds := condition()) and time.monotonic() < ends:
        threading.Event().wait(0.1)
    return holds


def stored_bytes() -> int:
    """Return the bytes in the stores of all hosts, as soon as the cluster has noticed which of them are lost."""
    internal = importlib.import_module("ray._private.internal_api")
    grpc = importlib.import_module("grpc")
    state = internal.get_state_from_address(ray.get_runtime_context().gcs_address)
    found: list[Any] = []

    def asked() -> bool:
        with suppress(grpc.RpcError):  # of a host that an earlier test has killed, and that is still listed
            found.append(internal.get_memory_info_reply(state))
        return bool(found)

    assert reaches(asked)
    return int(found[0].store_stats.object_store_bytes_used)


@contextmanager
def host(cluster: Any, **options: Any) -> Generator[Any]:
    """Add a host that has a resource."""
    added = cluster.add_node(**{"num_cpus": 2, "resources": {"own": 2}, "object_store_memory": 80_000_000, **options})
    try:
        yield added
    finally:
        cluster.remove_node(added, allow_graceful=False)


class Filler:
    """Fills the store of its host, as long as it lives."""

    def __init__(self, count: int) -> None:
        self._held = [ray.put(np.ones(1_000_000, np.uint8)) for _ in range(count)]

    def held(self) -> int:
        """Return the number of objects."""
        return len(self._held)


def test_full_stores_cost_only_time(cluster: Any) -> None:
    """While the store of the trainer and that of the pool's host are full of others' objects, batches are the same."""
    held = [ray.put(np.ones(1_000_000, np.uint8)) for _ in range(95)]
    with host(cluster), door.Pool(1, options=ON_HOST) as pool:
        filler = ray.remote(**ON_HOST)(Filler).remote(75)
        assert ray.get(filler.held.remote()) == 75
        with ps.Loader(pictures(), workers=pool) as loader:
            assert_same(list(loader), list(pictures()))
            assert not loader.deaths()
        ray.kill(filler)
    assert len(held) == 95


def test_a_function_that_cannot_be_pickled_is_named(cluster: Any) -> None:
    """The error comes before any batch, at each call, and names the step; the pool serves other loaders afterwards."""
    del cluster
    lock = threading.Lock()
    dataset = ps.range(8).map(lambda number: (lock, number)[1], name="locked").batch(2)
    with door.Pool(1) as pool:
        with ps.Loader(dataset, workers=pool) as loader:
            for _ in range(3):  # more than the spans that a process may have
                with pytest.raises(UsageError, match="locked"):
                    next(iter(loader))
        assert_same(list(ps.Loader(pictures(3), workers=pool)), list(pictures(3)))


TRAINER = """
import sys, ray, penstock as ps, penstock.ray
from tests.ray.test_faults import ON_HOST, pids, pictures
ray.init(sys.argv[1], log_to_driver=False)
with penstock.ray.Pool(2, name="outlives", options=ON_HOST) as pool:
    found = {int(pid) for batch in ps.Loader(pids(), workers=pool) for pid in batch}
    batches = iter(ps.Loader(pictures(), workers=pool))
    held = [next(batches) for _ in range(10)]
    print("pids", *found, flush=True), sys.stdin.read()
"""


def pids() -> ps.Dataset[Any]:
    """Return batches of the processes that compute them."""
    return ps.range(400).map(lambda number: os.getpid() + 0 * sum(range(20_000 + number))).batch(4)


def test_a_killed_trainer_leaves_only_the_pool(cluster: Any, set_constant: Callable[[str, object], None]) -> None:
    """SIGKILL ends a trainer in the middle of an epoch: its objects leave the stores, and the next one has its pool."""
    set_constant("_IDLE_SECONDS", 30.0)
    with host(cluster):
        before = stored_bytes()
        command = [sys.executable, "-c", TRAINER, cluster.address]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as trainer:
            assert trainer.stdout is not None
            lines = (line.split() for line in trainer.stdout)  # Ray prints lines about hosts that others have lost
            found = next({int(pid) for pid in line[1:]} for line in lines if line[:1] == ["pids"])
            assert found
            assert stored_bytes() > before + 1_000_000
            trainer.kill()
        assert reaches(lambda: stored_bytes() <= before)
        with door.Pool(2, name="outlives", options=ON_HOST) as pool:
            with ps.Loader(pids(), workers=pool) as loader:
                assert found & {int(pid) for batch in loader for pid in batch}
            with ps.Loader(pictures(), workers=pool) as loader:
                assert_same(list(loader), list(pictures()))
                assert not loader.deaths()


@pytest.mark.slow
def test_a_host_comes_back_too_late(cluster: Any) -> None:
    """The cluster gives up a host that is silent for 30 seconds; the batches are the same, and nothing of it stays."""
    faulthandler.cancel_dump_traceback_later()  # the silence is part of the test
    options = {"num_cpus": 0, "resources": {Hosts.resource: 1}}
    with (
        closing(Hosts(cluster, 2)) as hosts,
        door.Pool(2, options=options) as pool,
        ps.Loader(slow(), workers=pool) as loader,
        ps.Loader(slow(), workers="threads", num_workers=8) as alone,
    ):
        pairs = zip(loader, alone, strict=True)
        for _ in range(20):
            assert_same(*next(pairs))
        hosts.lose(signal.SIGSTOP)
        ends = time.monotonic() + SILENT_SECONDS
        while time.monotonic() < ends:
            assert_same(*next(pairs))
        hosts.go_on()
        assert psutil.wait_procs(hosts.processes, timeout=PATIENCE_SECONDS)[1] == []
        for _ in range(20):
            assert_same(*next(pairs))
        assert loader.deaths()


def slow() -> ps.Dataset[Any]:
    """Return batches that take some time, without using a processor."""
    return ps.range(10**6, seed=7).shuffle().map(waited).batch(4)


def waited(number: int) -> int:
    """Return the number after some time."""
    threading.Event().wait(0.005)
    return number


def test_a_host_without_memory_costs_only_time(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ray kills the processes of a host that lacks memory; others compute the batches, and the log has the reason."""
    with (
        caplog.at_level(logging.WARNING, "penstock"),
        host(cluster, resources={"own": 1}),
        door.Pool(2, options=ON_HOST) as pool,
        ps.Loader(slow(), workers=pool) as loader,
    ):
        pairs = zip(loader, slow(), strict=False)
        while "1 ready" not in repr(pool):
            assert_same(*next(pairs))
        monkeypatch.setattr("penstock.ray._team._STARTS", 1)
        monkeypatch.setenv("RAY_memory_usage_threshold", "0.01")  # of the host that starts now
        monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "50")
        with host(cluster, resources={"own": 1}):
            ends = time.monotonic() + PATIENCE_SECONDS
            while "don't start, so the others compute" not in caplog.text and time.monotonic() < ends:
                assert_same(*next(pairs))
            for _ in range(20):
                assert_same(*next(pairs))
            assert "1 ready" in repr(pool)
    assert "don't start, so the others compute; the next try is in 10 seconds: " in caplog.text
    assert "low on memory" in caplog.text
