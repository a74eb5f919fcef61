"""`examples/elastic.py`: processes crash, hosts go and come, and the model sees each batch once."""

import contextlib
import faulthandler
import os
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
distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # the first one opens a pipe that stays

# By default the processes use the agents' store. Torch 2.13 then makes a host that joins wait for an address that is
# published once, and processes that restart read the addresses of those before them.
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
# Imports what an optimizer imports, before it forks the processes.
IN_TURNS = """
import sys
import torch._dynamo
from tests.torch.frameworks.test_elastic import train_in_turns
train_in_turns(sys.argv[1])
"""


def train(rank: int, ranks: int, folder: Path) -> None:
    """Train as one process of a job, whose processes meet at a file."""
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
    command = [sys.executable, "-c", IN_TURNS, str(tmp_path)]
    ended = subprocess.run(command, env=ENVIRONMENT, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


AGENT = [
    *("--nnodes", "1:4", "--nproc-per-node", "1", "--max-restarts", "100", "--monitor-interval", "0.1"),
    *("--rdzv-backend", "c10d", "--rdzv-id", "job"),
    *("--rdzv-conf", "is_host=0,last_call_timeout=5,keep_alive_interval=3,keep_alive_max_attempt=4"),
]


class Job:
    """Agents of torchrun, each of which stands for a host, and the lines that their processes write."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.agents: list[subprocess.Popen[bytes]] = []
        self.record = Record(folder / "record", self._logs)
        self._folder = folder
        # The place where agents find each other outlives them all.
        self._store: Any = distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def start(self, count: int) -> None:
        """Start agents."""
        place = ["--rdzv-endpoint", f"localhost:{self._store.port}"]
        paths = ["--checkpoint", str(self._folder / "run.pt"), "--record", str(self._folder / "record")]
        command = ["-m", "torch.distributed.run", *AGENT, *place, str(SCRIPT), "--epochs", str(EPOCHS), *paths]
        for _ in range(count):
            with open(self._folder / f"agent-{len(self.agents)}.log", "wb") as log:
                self.agents.append(
                    subprocess.Popen([sys.executable, *command], env=ENVIRONMENT, stdout=log, stderr=log)
                )

    def processes(self, *agents: int) -> list[psutil.Process]:
        """Return the training processes of some agents."""
        alive = [self.agents[agent] for agent in agents if self.agents[agent].poll() is None]
        children = [child for agent in alive for child in psutil.Process(agent.pid).children()]
        return [child for child in children if str(SCRIPT) in child.cmdline()]

    def kill(self, *agents: int) -> None:
        """Kill agents and their processes by SIGKILL, as when a host is lost."""
        processes = self.processes(*agents)
        for each in (*(self.agents[agent] for agent in agents), *processes):
            each.kill()
        for agent in agents:
            self.agents[agent].wait()

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-4000:] for path in sorted(self._folder.glob("agent-*.log")))

    def close(self) -> None:
        """Kill what still runs."""
        self.kill(*range(len(self.agents)))
        self.record.close()
        self._store = None


@pytest.mark.long
def test_every_row_comes_once_while_hosts_come_and_go(tmp_path: Path) -> None:
    """Under torchrun, of four hosts two are killed, one joins, and a process is killed: steps are as with one host."""
    faulthandler.cancel_dump_traceback_later()  # torchrun waits for lost hosts
    with contextlib.closing(Job(tmp_path / "elastic")) as job:
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
        assert [job.agents[agent].wait(PATIENCE_SECONDS) for agent in (0, 1, 4)] == [0, 0, 0]
    with contextlib.closing(Job(tmp_path / "steady")) as steady:
        steady.start(1)
        steady.record.read(ranks=1)
        assert steady.agents[0].wait(PATIENCE_SECONDS) == 0
    assert_elastic(job.record.lines, steady.record.lines)
