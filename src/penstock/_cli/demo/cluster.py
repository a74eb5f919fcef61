"""The demo on a Ray cluster: three hosts compute the batches, one is killed and one stopped, and nothing changes.

The hosts are those of `ray.cluster_utils`: each is a scheduler and an object store of its own on this machine, and Ray
treats them as different machines. So a signal to all processes of one is the loss of a machine, or its silence.
"""

import importlib
import itertools
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

import penstock as ps
from penstock._cli.demo.digits import Setting, working_directory, write_pictures
from penstock._cli.demo.images import Decode, digest
from penstock._cli.demo.report import (
    Axis,
    Chart,
    Claim,
    Marker,
    Page,
    Section,
    Series,
    Tile,
    check_report,
    describe_machine,
    judge_state,
    print_claims,
    require_pillow,
    status_of,
)
from penstock._cli.demo.training import descendants
from penstock._cli.terminal import Terminal
from penstock._optional import need
from penstock.errors import UsageError

_HOSTS: Final = 3
_SIZE: Final = 32  # pixels, both ways
_BATCH_SIZE: Final = 64
_STORE_BYTES: Final = 100_000_000  # of each host


@dataclass(frozen=True, slots=True)
class Batch:
    """The figures of a batch: its SHA-256, how long the loop waited for it, and when it came, in seconds."""

    sha256: str
    wait_seconds: float
    came_at: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """The results of the run, from which the claims are judged.

    Attributes:
        local: the SHA-256 of the batch of each step, computed without workers from the dataset's description.
        remote: the batches of a loader, which the hosts computed.
        killed_at: the step before which one host was killed.
        stopped_at: the step before which another one was stopped.
        was_killed: whether none of the one host's processes ran at the end.
        was_silent: whether the other host's processes were still stopped at the end.
        state_bytes: the length of the loader's state, as JSON, at `stopped_at`.
        resumed: the SHA-256 of the next batch of a loader without workers that loaded this state.
    """

    local: Sequence[str]
    remote: Sequence[Batch]
    killed_at: int
    stopped_at: int
    was_killed: bool
    was_silent: bool
    state_bytes: int
    resumed: str


def run_on_ray(setting: Setting, terminal: Terminal) -> int:
    """Run the demo, print its results, write its report, and return the exit status.

    Raises:
        UsageError: the report's folder does not exist, or this isn't Linux.
        MissingDependencyError: Ray, Pillow or scikit-learn is not installed.
    """
    check_report(setting.report)
    require_pillow()
    need("ray", "Ray", extra="ray")
    if not Path("/proc/self/stat").exists():
        raise UsageError("demo --ray finds the processes of a host in /proc, which only Linux has")
    with working_directory(setting.directory) as directory:
        terminal.line(
            terminal.colour("Penstock: three hosts of a Ray cluster, of which one is killed and one is stopped", "bold")
        )
        dataset = _described(write_pictures(directory, terminal, is_kept=setting.directory is not None))
        evidence = _run(dataset, setting.epochs, terminal)
    claims = judge(evidence)
    terminal.line()
    print_claims(claims, terminal)
    setting.report.write_text(_page(evidence, claims).html(), encoding="utf-8")
    terminal.line(f"\n  report   {setting.report.resolve()}")
    return status_of(claims)


def _described(folder: Path) -> ps.Dataset[dict[str, Any]]:
    decoded = ps.read(ps.sources.ImageFolder(folder), seed=7).shuffle().map(Decode(_SIZE))
    return decoded.random_map(_brightened).batch(_BATCH_SIZE)


def _brightened(element: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return an image with random brightness."""
    return {**element, "image": (element["image"] * rng.uniform(0.5, 1.0)).astype(np.uint8)}


def _run(dataset: ps.Dataset[dict[str, Any]], epochs: int, terminal: Terminal) -> Evidence:
    local: list[str] = []
    with ps.Loader(dataset) as loader:
        total = epochs * len(loader)
        for step in range(total):
            local.append(digest(loader.batch_at(step)))
            terminal.progress("alone ", (step + 1) / total, f"step {step + 1:,}/{total:,}")
    terminal.line(f"  alone  {total:,} batches of {_BATCH_SIZE} digits, computed without workers to compare with")
    door: Any = importlib.import_module("penstock.ray")
    killed_at, stopped_at = total // 3, 2 * total // 3
    terminal.line(terminal.colour(f"         {_HOSTS} hosts start, which takes some seconds", "dim"))
    state: dict[str, Any] = {}
    remote: list[Batch] = []
    with _started() as hosts, door.Pool(_HOSTS) as pool, ps.Loader(dataset, workers=pool) as loader:

        def act(step: int) -> None:
            if step == killed_at:
                hosts.kill(0)
            elif step == stopped_at:
                state.update(loader.state_dict())
                hosts.stop(1)

        remote += _delivered(loader, epochs, terminal, act)
        was_killed, was_silent = hosts.is_gone(0), hosts.is_silent(1)
    terminal.line(f"  hosts  the same on {_HOSTS} hosts, of which 2 were lost, in {remote[-1].came_at:.1f} s")
    with ps.Loader(dataset) as loader:
        loader.load_state_dict(state)
        resumed = digest(next(iter(loader)))
    return Evidence(local, remote, killed_at, stopped_at, was_killed, was_silent, len(json.dumps(state)), resumed)


def _delivered(
    loader: ps.Loader[dict[str, Any]], epochs: int, terminal: Terminal, act: Callable[[int], None]
) -> Iterator[Batch]:
    """Yield the figures of each batch; before a batch, `act` is called with its step."""
    total = epochs * len(loader)
    began = time.perf_counter()
    batches = itertools.chain.from_iterable(itertools.repeat(loader, epochs))
    for step in range(total):
        act(step)
        requested = time.perf_counter()
        batch = next(batches)
        came = time.perf_counter()
        yield Batch(digest(batch), came - requested, came - began)
        terminal.progress("hosts ", (step + 1) / total, f"step {step + 1:,}/{total:,}")


class _Hosts:
    """Owns a cluster on this machine, whose head has no processors, so that only the hosts compute."""

    def __init__(self) -> None:
        utils: Any = importlib.import_module("ray.cluster_utils")
        head = {"num_cpus": 0, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
        self._cluster: Any = utils.Cluster(initialize_head=True, head_node_args=head)
        self._hosts: list[Any] = []
        self._killed: dict[int, list[int]] = {}  # processes, by the number of the host
        self._stopped: dict[int, list[int]] = {}

    def start(self) -> None:
        """Start the hosts, and connect this program to the cluster."""
        for _ in range(_HOSTS):
            self._hosts.append(self._cluster.add_node(num_cpus=1, object_store_memory=_STORE_BYTES))
        _ray().init(address=self._cluster.address, log_to_driver=False, logging_level=logging.ERROR)

    def kill(self, number: int) -> None:
        """Send SIGKILL to all processes of a host."""
        self._killed[number] = self._send(number, signal.SIGKILL)
        self._cluster.remove_node(self._hosts[number], allow_graceful=False)

    def stop(self, number: int) -> None:
        """Send SIGSTOP to all processes of a host."""
        self._stopped[number] = self._send(number, signal.SIGSTOP)

    def _send(self, number: int, sent: signal.Signals) -> list[int]:
        infos = itertools.chain.from_iterable(self._hosts[number].all_processes.values())
        own = [info.process.pid for info in infos]
        found = [*own, *itertools.chain.from_iterable(map(descendants, own))]
        for pid in found:
            with suppress(ProcessLookupError):  # it has ended meanwhile
                os.kill(pid, sent)
        return found

    def is_gone(self, number: int) -> bool:
        """Return whether no process of a host that was killed is left."""
        return number in self._killed and set(_states(self._killed[number])) <= {"Z"}

    def is_silent(self, number: int) -> bool:
        """Return whether no process of a host that was stopped has run on."""
        left = _states(self._stopped.get(number, ()))
        return bool(left) and {*left} <= {"T", "Z"}

    def close(self) -> None:
        """End all processes of the cluster."""
        for pid in itertools.chain.from_iterable(self._stopped.values()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        _ray().shutdown()
        self._cluster.shutdown()


def _states(pids: Iterable[int]) -> list[str]:
    """Return the states of processes as Linux writes them, of those that exist."""
    states = [Path(f"/proc/{pid}/stat") for pid in pids]
    return [state.read_text("utf-8", "replace").rpartition(")")[2].split()[0] for state in states if state.exists()]


def _ray() -> ModuleType:
    return importlib.import_module("ray")


@contextmanager
def _started() -> Generator[_Hosts]:
    """Yield the hosts of a cluster; when the scope ends, all its processes have ended.

    Ray prints the log of each host that it loses; here that is intended, so it isn't shown.
    """
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        hosts = _Hosts()
        try:
            hosts.start()
            yield hosts
        finally:
            hosts.close()


def judge(evidence: Evidence) -> tuple[Claim, ...]:
    """Return all claims, each with its result."""
    local, remote = evidence.local, evidence.remote
    killed, stopped = evidence.killed_at, evidence.stopped_at
    differing = [step for step, pair in enumerate(zip(local, remote, strict=False)) if pair[0] != pair[1].sha256]
    batches = f"{len(remote):,} of {len(local):,} came, in order, each with the SHA-256 of the one computed alone"
    if differing:
        batches = f"{len(differing):,} differ from those computed alone, the first at step {differing[0]}"
    return (
        Claim(
            "killed",
            evidence.was_killed,
            f"one host killed by SIGKILL before step {killed}, with all of its processes; the loader waited at most "
            f"{_longest(remote[killed:stopped])} for a batch after that",
        ),
        Claim(
            "stopped",
            evidence.was_silent,
            f"another host stopped by SIGSTOP before step {stopped}, until the end; the loader waited at most "
            f"{_longest(remote[stopped:])} for a batch after that",
        ),
        Claim("batches", not differing and len(local) == len(remote), batches),
        judge_state(evidence.state_bytes),
        Claim(
            "elsewhere",
            evidence.resumed == local[stopped],
            f"a loader without workers that loads the state of step {stopped} delivers the batch of that step",
        ),
    )


def _longest(batches: Sequence[Batch]) -> str:
    return f"{max((batch.wait_seconds for batch in batches), default=0.0):.2f} s"


def _page(evidence: Evidence, claims: Sequence[Claim]) -> Page:
    remote = evidence.remote
    points = [(batch.came_at, float(step + 1)) for step, batch in enumerate(remote)]
    chart = Chart(
        label="The number of batches delivered, over time, with the moments at which a host was killed and one stopped",
        horizontal=Axis("seconds since the first request", 0.0, remote[-1].came_at),
        vertical=Axis("batches", 0.0, float(len(remote))),
        series=[Series(f"{_HOSTS} hosts", points, "resumed")],
        markers=[
            Marker(remote[evidence.killed_at].came_at, "one host killed", "red"),
            Marker(remote[evidence.stopped_at].came_at, "another one stopped", "red", is_left=True),
        ],
    )
    return Page(
        title="A host killed, a host stopped, the same batches",
        lead=f"{_HOSTS} hosts of a Ray cluster compute the batches of a loader. One is killed by SIGKILL, another is "
        "stopped by SIGSTOP. The batches are compared with those that were computed without workers.",
        tiles=[
            Tile(f"{len(remote):,}", "batches", "compared by SHA-256"),
            Tile(_longest(remote[evidence.killed_at : evidence.stopped_at]), "", "longest wait after the kill"),
            Tile(_longest(remote[evidence.stopped_at :]), "", "longest wait after the stop"),
        ],
        claims=claims,
        sections=[Section("Batches over time", "A flat part is a wait for a batch.", chart.svg())],
        facts=describe_machine(),
    )
