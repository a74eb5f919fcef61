"""Losses of hosts while a loader runs: each is killed or stopped, another one comes, and the batches are compared.

A host is a scheduler and an object store of its own on this machine (`ray.cluster_utils`). SIGKILL to all its processes
is the loss of a machine, and SIGSTOP its silence; a stopped one is killed after some batches. The next host is lost
when all processes of the pool are there again, and the new host has started: here it takes the processors of the others
for seconds, which the hosts of a cluster don't do. `python -m tests.ray.losses` prints the figures.
"""

import argparse
import importlib
import itertools
import signal
import statistics
import sys
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
import psutil

import penstock as ps
from penstock.testing import assert_same
from tests.promptness import slowness

HOSTS = 3
STORE_BYTES = 100_000_000
PATIENCE_SECONDS = 120.0  # until all processes are there, on a machine that is not busy
SETTINGS = {
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
    "worker_niceness": 0,
}
"""Settings of Ray. By default it takes a quarter of a minute to notice that a host was lost, and its workers have a low
priority: here, where the hosts share one machine with everything else, they would wait for all other programs."""
_STEPS = 60  # at a time
_QUIET_SHARE = 0.2  # of a processor, that all hosts use when none of them starts or computes
_LOOK_SECONDS = 0.5
_ELEMENT_SECONDS = 0.002


class Pause(NamedTuple):
    """The longest wait for a batch after a loss, and before it, in seconds, and the signal that the host got."""

    seconds: float
    seconds_before: float
    signal: signal.Signals


class Result(NamedTuple):
    """What a run has shown.

    Attributes:
        pauses: of each loss.
        usual_seconds: the median of all waits.
        deaths: the number of processes that the loader found lost.
        left: the processes of lost hosts that are alive.
    """

    pauses: list[Pause]
    usual_seconds: float
    deaths: int
    left: list[psutil.Process]


def _send(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _processes_of(host: Any) -> list[psutil.Process]:
    infos = itertools.chain.from_iterable(host.all_processes.values())
    own = [psutil.Process(info.process.pid) for info in infos]
    return [*own, *itertools.chain.from_iterable(process.children(recursive=True) for process in own)]


def _used(process: psutil.Process) -> float:
    """Return the processor seconds that a process has used; 0 if it has ended."""
    with suppress(psutil.NoSuchProcess):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0


class Hosts:
    """Hosts that are lost, each with room for one process of a pool.

    Args:
        cluster: their cluster.
        count: the number of hosts to start.
    """

    resource = "lossy"

    def __init__(self, cluster: Any, count: int = HOSTS) -> None:
        self._cluster = cluster
        self._hosts: list[Any] = []
        self._stopped: list[Any] = []
        self.processes: list[psutil.Process] = []  # of all hosts that were lost
        for _ in range(count):
            self.add()

    def add(self) -> None:
        """Start a host."""
        arguments = {"num_cpus": 1, "resources": {self.resource: 1}, "object_store_memory": STORE_BYTES}
        self._hosts.append(self._cluster.add_node(**arguments))

    def lose(self, number: signal.Signals) -> None:
        """Send a signal to all processes of the host that has been there longest."""
        host = self._hosts.pop(0)
        self._stopped.append(host)
        found = _processes_of(host)
        self.processes += found
        _send(found, number)

    def running(self) -> list[psutil.Process]:
        """Return all processes of the hosts that were not lost."""
        return [process for host in self._hosts for process in _processes_of(host)]

    def are_quiet(self) -> bool:
        """Return whether they use hardly any processor time, after a look of half a second."""
        before = {process: _used(process) for process in self.running()}
        threading.Event().wait(_LOOK_SECONDS)
        used = sum(_used(process) - before.get(process, 0.0) for process in self.running())
        return used < _QUIET_SHARE * _LOOK_SECONDS

    def go_on(self) -> None:
        """Let the hosts that were stopped continue."""
        _send(self.processes, signal.SIGCONT)

    def end_stopped(self) -> None:
        """Kill the hosts that were stopped."""
        while self._stopped:
            self._cluster.remove_node(self._stopped.pop(), allow_graceful=False)
        _send(self.processes, signal.SIGKILL)  # otherwise the children of those that were stopped stay so

    def close(self) -> None:
        """End all of them."""
        self.end_stopped()
        for host in self._hosts:
            self._cluster.remove_node(host, allow_graceful=False)


@contextmanager
def _hosts(cluster: Any) -> Generator[Hosts]:
    hosts = Hosts(cluster)
    try:
        yield hosts
    finally:
        hosts.close()


def _element(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return an element whose process is at it for some time, without using a processor."""
    threading.Event().wait(_ELEMENT_SECONDS)
    return {"number": number, "noise": rng.random(500)}


class Loop:
    """A training loop that compares each batch with that of the description, and measures its waits."""

    def __init__(self, dataset: ps.Dataset[Any], loader: ps.Loader[Any]) -> None:
        self._expected: Iterator[Any] = iter(ps.Loader(dataset, workers="threads", num_workers=8))
        self._batches = iter(loader)
        self.waits: list[float] = []

    def take(self, steps: int) -> float:
        """Take some batches; return the longest wait for one."""
        for _ in range(steps):
            began = time.perf_counter()
            batch = next(self._batches)
            self.waits.append(time.perf_counter() - began)
            assert_same(batch, next(self._expected))
        return max(self.waits[-steps:])


def run(cluster: Any, losses: int) -> Result:
    """Lose hosts, by turns killed and stopped, and compare all batches with those of the description."""
    door: Any = importlib.import_module("penstock.ray")
    dataset = ps.range(10**9, seed=7).shuffle().random_map(_element).batch(4)
    pauses: list[Pause] = []
    options = {"resources": {Hosts.resource: 1}}
    with (
        _hosts(cluster) as hosts,
        door.Pool(HOSTS, options=options) as pool,
        ps.Loader(dataset, workers=pool) as loader,
    ):
        loop = Loop(dataset, loader)
        for _, number in zip(range(losses), itertools.cycle([signal.SIGKILL, signal.SIGSTOP]), strict=False):
            hosts.add()
            ends = time.monotonic() + PATIENCE_SECONDS * slowness()
            while f"{HOSTS} ready" not in repr(pool):
                loop.take(1)
                assert time.monotonic() < ends
            while not hosts.are_quiet():
                assert time.monotonic() < ends
            loop.take(_STEPS)  # those that were computed meanwhile
            before = loop.take(_STEPS)
            hosts.lose(number)
            pauses.append(Pause(loop.take(_STEPS), before, number))
            hosts.end_stopped()
        deaths = len(loader.deaths())
    _, left = psutil.wait_procs(hosts.processes, timeout=PATIENCE_SECONDS)
    return Result(pauses, statistics.median(loop.waits), deaths, left)


def _summary(seconds: list[float]) -> str:
    ordered = sorted(seconds)
    middle, most = statistics.median(ordered), ordered[len(ordered) * 9 // 10]
    return f"{middle:.2f} s in the median, {most:.2f} s in nine of ten, {ordered[-1]:.2f} s at most"


def report(result: Result) -> Iterator[str]:
    """Yield the lines that describe a result."""
    for kind in (signal.SIGKILL, signal.SIGSTOP):
        lost = [pause for pause in result.pauses if pause.signal == kind]
        if lost:
            yield f"{kind.name} of {len(lost)} hosts: longest wait {_summary([each.seconds for each in lost])}"
    yield f"before each loss: {_summary([pause.seconds_before for pause in result.pauses])}"
    yield (
        f"all batches are equal; {result.deaths} processes found lost, {len(result.left)} left, usual wait "
        f"{result.usual_seconds * 1e3:.1f} ms"
    )


def main() -> None:
    """Print the figures of a run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--losses", type=int, default=100)
    losses = parser.parse_args().losses
    ray: Any = importlib.import_module("ray")
    utils: Any = importlib.import_module("ray.cluster_utils")
    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    cluster: Any = utils.Cluster(initialize_head=True, head_node_args={**head, "_system_config": SETTINGS})
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        result = run(cluster, losses)
    finally:
        ray.shutdown()
        cluster.shutdown()
    sys.stdout.write("\n".join(report(result)) + "\n")


if __name__ == "__main__":
    main()
