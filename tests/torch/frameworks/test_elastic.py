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
EPOCHS, STEPS = 2, 66
PATIENCE_SECONDS = 300.0
AGENT = [
    *("--nnodes", "1:4", "--nproc-per-node", "1", "--max-restarts", "100", "--monitor-interval", "0.1"),
    *("--rdzv-backend", "c10d", "--rdzv-id", "job"),
    *("--rdzv-conf", "is_host=0,last_call_timeout=5,keep_alive_interval=3,keep_alive_max_attempt=4"),
    *("--run-path", "--start-method", "fork"),  # processes begin with what their agent has imported
]

# Imports once what agents and their processes use: torch, and what the script and an optimizer import, a second of
# processor time in each process. Each line is the arguments of an agent and the path of its log, or the agent to wait
# for; the answer is the agent, or its exit status.
LAUNCHER = """
import json, os, sys
import penstock.torch, torch._dynamo
from torch.distributed.run import main

for line in sys.stdin:
    arguments, place = json.loads(line)
    if arguments is None:
        print(os.waitstatus_to_exitcode(os.waitpid(place, 0)[1]), flush=True)
        continue
    agent = os.fork()
    if agent == 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(place, os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.exit(main(arguments))
    print(agent, flush=True)
"""

# By default the processes use the agents' store. Torch 2.13 then makes a host that joins wait for an address that is
# published once, and processes that restart read the addresses of those before them.
SEPARATE_STORES = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # the first one opens a pipe that stays


class Launcher:
    """The process that starts agents."""

    def __init__(self) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **SEPARATE_STORES}
        command = [sys.executable, "-c", LAUNCHER]
        self._process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def start(self, arguments: list[str], log: Path) -> int:
        """Start an agent; return its pid."""
        return self._answer(arguments, str(log))

    def wait(self, agent: int) -> int:
        """Wait for the end of an agent; return its exit status."""
        return self._answer(None, agent)

    def _answer(self, *request: object) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        assert select.select([self._process.stdout], [], [], PATIENCE_SECONDS)[0]
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


class Job:
    """Agents of torchrun, each of which stands for a host, and the lines that their processes write."""

    def __init__(self, launcher: Launcher, folder: Path) -> None:
        self.lines: list[dict[str, Any]] = []
        self._launcher = launcher
        self._agents: list[int] = []
        self._statuses: dict[int, int] = {}
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
            place = ["--rdzv-endpoint", f"localhost:{self._store.port}"]
            log = self._folder / f"agent-{len(self._agents)}.log"
            self._agents.append(self._launcher.start([*AGENT, *place, str(SCRIPT), *self._arguments], log))

    def processes(self, *agents: int) -> list[psutil.Process]:
        """Return the training processes of some agents."""
        found = [psutil.Process(self._agents[agent]) for agent in agents]
        alive = [agent for agent in found if agent.status() != psutil.STATUS_ZOMBIE]
        forks = [(agent.cmdline(), agent.children()) for agent in alive]
        return [child for command, children in forks for child in children if child.cmdline() == command]

    def kill(self, *agents: int) -> None:
        """Kill agents and their processes by SIGKILL, as when a host is lost."""
        processes = self.processes(*agents)
        for agent in agents:
            os.kill(self._agents[agent], signal.SIGKILL)
        for process in processes:
            process.kill()
        self.wait(*agents)

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
        for agent in agents:
            if agent not in self._statuses:
                self._statuses[agent] = self._launcher.wait(self._agents[agent])
        return [self._statuses[agent] for agent in agents]

    def close(self) -> None:
        """Kill what still runs."""
        self.kill(*(number for number in range(len(self._agents)) if number not in self._statuses))
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
    faulthandler.cancel_dump_traceback_later()  # torchrun waits for lost hosts
    with contextlib.closing(Launcher()) as launcher:
        with contextlib.closing(Job(launcher, tmp_path / "elastic")) as job:
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
        with contextlib.closing(Job(launcher, tmp_path / "steady")) as steady:
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
