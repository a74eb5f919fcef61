"""`examples/elastic.py`: processes crash, hosts go and come, and the model sees each batch once."""

import contextlib
import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.elastic import EPOCHS, PATIENCE_SECONDS, SCRIPT, STEPS, Record, assert_elastic, loaded
from tests.torch.frameworks.ranks import CHECKOUT

distributed = pytest.importorskip("torch.distributed")

# Imports what an optimizer imports, before it forks the processes.
RANKS = """
import sys
import torch._dynamo
from tests.torch.frameworks.test_elastic import train_in_turns
train_in_turns(sys.argv[1])
"""

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
        self._launcher = launcher
        self._agents: list[int] = []
        self._statuses: dict[int, int] = {}
        folder.mkdir()
        path = folder / "record"
        self.record = Record(path, self._logs)
        self._folder = folder
        self._arguments = ["--epochs", str(EPOCHS), "--checkpoint", str(folder / "run.pt"), "--record", str(path)]
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

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-4000:] for path in sorted(self._folder.glob("agent-*.log")))

    def wait(self, *agents: int) -> list[int]:
        """Wait for the ends of agents; return their exit statuses."""
        for agent in agents:
            if agent not in self._statuses:
                self._statuses[agent] = self._launcher.wait(self._agents[agent])
        return [self._statuses[agent] for agent in agents]

    def close(self) -> None:
        """Kill what still runs."""
        self.kill(*(number for number in range(len(self._agents)) if number not in self._statuses))
        self.record.close()
        self._store = None


def train(rank: int, ranks: int, folder: Path) -> None:
    """Train as one process of a job, which is all that meets at a file."""
    distributed.init_process_group("gloo", f"file://{folder}/{ranks} ranks", rank=rank, world_size=ranks)
    loaded().train(folder / "run.pt", EPOCHS, 10, record=folder / "record")
    distributed.destroy_process_group()


def trained(folder: Path, *turns: tuple[int, int]) -> list[dict[str, Any]]:
    """Return the lines of a training, whose processes are killed after some steps, but for the last ones."""
    folder.mkdir()
    record = Record(folder / "record", lambda: "")
    processes: list[Any] = []
    for ranks, steps in turns:
        processes = [get_context("fork").Process(target=train, args=(rank, ranks, folder)) for rank in range(ranks)]
        for process in processes:
            process.start()
        record.read(ranks, steps)
        for process in processes:
            if steps < EPOCHS * STEPS:
                process.kill()
            process.join(PATIENCE_SECONDS)
    assert {process.exitcode for process in processes} == {0}
    record.close()
    return record.lines


def train_in_turns(folder: str) -> None:
    """Check the steps of 4, 2 and 3 processes by those of one."""
    steady = trained(Path(folder, "steady"), (1, EPOCHS * STEPS))
    assert_elastic(trained(Path(folder, "elastic"), (4, 15), (2, 15), (3, EPOCHS * STEPS)), steady)


def test_every_row_comes_once_with_any_number_of_processes(tmp_path: Path) -> None:
    """Processes are killed and followed by others, that are more or fewer: each step's rows and loss are one's."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", RANKS, str(tmp_path)]
    ended = subprocess.run(command, env=environment, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.long
def test_every_row_comes_once_while_hosts_come_and_go(tmp_path: Path) -> None:
    """Under torchrun, of four hosts two are killed, one joins, and a process is killed: steps are as with one host."""
    faulthandler.cancel_dump_traceback_later()  # torchrun waits for lost hosts
    with contextlib.closing(Launcher()) as launcher:
        with contextlib.closing(Job(launcher, tmp_path / "elastic")) as job:
            job.start(4)
            job.record.read(ranks=4, count=15)
            job.kill(2, 3)
            job.record.read(ranks=2, count=15)
            restarted = job.processes(0, 1)
            job.start(1)  # the training waits meanwhile, since nothing reads its lines
            assert not psutil.wait_procs(restarted, PATIENCE_SECONDS)[1]
            job.record.read(ranks=3, count=15)
            job.processes(4)[0].send_signal(signal.SIGKILL)
            job.record.read(ranks=3)
            assert job.wait(0, 1, 4) == [0, 0, 0]
        with contextlib.closing(Job(launcher, tmp_path / "steady")) as steady:
            steady.start(1)
            steady.record.read(ranks=1)
            assert steady.wait(0) == [0]
    assert_elastic(job.record.lines, steady.record.lines)
