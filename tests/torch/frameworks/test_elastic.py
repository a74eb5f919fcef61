"""`examples/elastic.py` under torchrun: processes crash, hosts go and come, and the model sees each batch once."""

import contextlib
import faulthandler
import fcntl
import importlib.util
import json
import math
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

distributed = pytest.importorskip("torch.distributed")

SCRIPT = Path(__file__).parents[3] / "examples" / "elastic.py"
EPOCHS, STEPS = 3, 66
PATIENCE_SECONDS = 300.0
AGENT = [
    *("--nnodes", "1:4", "--nproc-per-node", "1", "--max-restarts", "100", "--monitor-interval", "0.1"),
    *("--rdzv-backend", "c10d", "--rdzv-id", "job"),
    *("--rdzv-conf", "is_host=0,last_call_timeout=5,keep_alive_interval=3,keep_alive_max_attempt=4"),
    *("--run-path", "--start-method", "fork"),  # only agents import torch; their processes begin with it
]

# By default the processes use the agents' store. Torch 2.13 then makes a host that joins wait for an address that is
# published once, and processes that restart read the addresses of those before them.
SEPARATE_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # the first one opens a pipe that stays


class Job:
    """Agents of torchrun, each of which stands for a host, and the lines that their processes write."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self._agents: list[subprocess.Popen[bytes]] = []
        folder.mkdir()
        record = folder / "record"
        os.mkfifo(record)
        self._pipe = os.open(record, os.O_RDWR)  # never at its end, though processes come and go
        fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, 4096)  # training is only a few steps ahead of the test
        self._unread = b""
        self._folder = folder
        self._arguments = ["--epochs", str(EPOCHS), "--checkpoint", str(folder / "run.pt"), "--record", str(record)]
        # The place where agents find each other outlives them all.
        self._store: Any = distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def start(self, count: int) -> None:
        """Start agents."""
        for _ in range(count):
            torchrun = [sys.executable, "-m", "torch.distributed.run", *AGENT]
            command = [*torchrun, "--rdzv-endpoint", f"localhost:{self._store.port}", str(SCRIPT), *self._arguments]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **SEPARATE_STORES}
            with (self._folder / f"agent-{len(self._agents)}.log").open("wb") as log:
                self._agents.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))

    def processes(self, *agents: int) -> list[psutil.Process]:
        """Return the training processes of some agents."""
        found = [psutil.Process(self._agents[agent].pid) for agent in agents]
        forks = [(agent.cmdline(), agent.children()) for agent in found]
        return [child for command, children in forks for child in children if child.cmdline() == command]

    def kill(self, *agents: int) -> None:
        """Kill agents and their processes by SIGKILL, as when a host is lost."""
        processes = self.processes(*agents)
        for agent in agents:
            self._agents[agent].kill()
        for process in processes:
            process.kill()

    def read(self, ranks: int, count: int = EPOCHS * STEPS) -> None:
        """Read lines until that number of processes took `count` steps, or the last step was taken."""
        while count and not (self.lines and self.lines[-1]["step"] == EPOCHS * STEPS):
            self.lines.append(json.loads(self._read_line()))
            count -= self.lines[-1]["ranks"] == ranks

    def _read_line(self) -> bytes:
        while b"\n" not in self._unread:
            if not select.select([self._pipe], [], [], PATIENCE_SECONDS)[0]:
                logs = "\n".join(path.read_text()[-4000:] for path in sorted(self._folder.glob("agent-*.log")))
                pytest.fail(f"no step in {PATIENCE_SECONDS} s after {self.lines[-1:]}:\n{logs}")
            self._unread += os.read(self._pipe, 4096)
        line, self._unread = self._unread.split(b"\n", 1)
        return line

    def wait(self, *agents: int) -> list[int]:
        """Wait for the ends of agents; return their exit statuses."""
        return [self._agents[agent].wait(PATIENCE_SECONDS) for agent in agents]

    def close(self) -> None:
        """Kill what still runs."""
        running = [number for number, agent in enumerate(self._agents) if agent.poll() is None]
        self.kill(*running)
        for agent in self._agents:
            agent.wait()
        os.close(self._pipe)
        self._store = None


@pytest.fixture(scope="module")
def rows() -> list[list[int]]:
    """The rows of each step, from the dataset alone."""
    spec = importlib.util.spec_from_file_location("elastic_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return [batch["row"].tolist() for epoch in range(EPOCHS) for batch in module.describe().epoch(epoch)]


@pytest.mark.slow
def test_every_row_comes_once_while_hosts_come_and_go(tmp_path: Path, rows: list[list[int]]) -> None:
    """Of four hosts two are killed, one joins, and a process is killed: each step's rows and loss are one host's."""
    faulthandler.cancel_dump_traceback_later()  # torch is imported many times, and torchrun waits for lost hosts
    with contextlib.closing(Job(tmp_path / "elastic")) as job:
        job.start(4)
        job.read(ranks=4, count=15)
        job.kill(2, 3)
        job.read(ranks=2, count=15)
        restarted = job.processes(0, 1)
        job.start(1)  # the training waits meanwhile, since nothing reads its lines
        assert not psutil.wait_procs(restarted, PATIENCE_SECONDS)[1]
        job.read(ranks=3, count=15)
        job.processes(4)[0].send_signal(signal.SIGKILL)
        job.read(ranks=3)
        assert job.wait(0, 1, 4) == [0, 0, 0]
    with contextlib.closing(Job(tmp_path / "steady")) as steady:
        steady.start(1)
        steady.read(ranks=1)
        assert steady.wait(0) == [0]
    sizes = list(dict.fromkeys(line["ranks"] for line in job.lines))
    assert (sizes[0], sizes[-1], 2 in sizes) == (4, 3, True)
    assert [line["rows"] for line in steady.lines] == rows
    assert {line["step"] for line in job.lines} == set(range(1, EPOCHS * STEPS + 1))
    losses: list[float] = [line["loss"] for line in steady.lines]
    for line in job.lines:  # steps that no checkpoint holds are taken again
        assert line["rows"] == rows[line["step"] - 1]
        assert math.isclose(line["loss"], losses[int(line["step"]) - 1], rel_tol=1e-3, abs_tol=1e-6)
