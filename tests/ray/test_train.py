"""`examples/elastic.py` under Ray Train: hosts are killed and come, and the model sees each batch once."""

import contextlib
import faulthandler
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.elastic import EPOCHS, PATIENCE_SECONDS, SCRIPT, Record, assert_elastic, loaded
from tests.ray.losses import Hosts

pytest.importorskip("torch")
pytest.importorskip("ray")
pytest.importorskip("pydantic")  # of `ray[train]`

TRAINER = """
import sys
from tests.ray.test_train import fit
fit(*sys.argv[1:])
"""
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
WORKER = "ray::RayTrainWorker"


def train(folder: str) -> None:
    """Train as one worker of Ray Train."""
    paths = [Path(folder) / name for name in ("run.pt", "record")]
    loaded().train(paths[0], EPOCHS, 10, record=paths[1])


def fit(address: str, folder: str) -> None:
    """Train on one to four hosts that have the resource."""
    ray: Any = importlib.import_module("ray")
    api: Any = importlib.import_module("ray.train")
    door: Any = importlib.import_module("ray.train.torch")
    ray.init(address)
    trainer = door.TorchTrainer(
        lambda: train(folder),
        torch_config=door.TorchConfig(backend="gloo"),
        scaling_config=api.ScalingConfig(
            num_workers=(1, 4),
            resources_per_worker={"CPU": 1, Hosts.resource: 1},
            elastic_resize_monitor_interval_s=1.0,
        ),
        run_config=api.RunConfig(storage_path=folder, failure_config=api.FailureConfig(max_failures=100)),
    )
    trainer.fit()


@contextlib.contextmanager
def program(folder: Path, *command: str) -> Generator[tuple[Record, "subprocess.Popen[bytes]"]]:
    """Start a program that trains in a folder; yield what it records, and the program."""
    folder.mkdir()
    log = folder / "log"
    record = Record(folder / "record", lambda: log.read_text(errors="replace")[-8000:])
    environment = {**os.environ, **ALONE, "OMP_NUM_THREADS": "1"}
    with log.open("wb") as output:
        started = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        yield record, started
    finally:
        started.kill()
        started.wait()
        record.close()


def workers(hosts: Hosts) -> list[psutil.Process]:
    """Return the processes that train."""
    return [process for process in hosts.running() if process.cmdline()[:1] and WORKER in process.cmdline()[0]]


@pytest.mark.slow
def test_every_row_comes_once_while_hosts_come_and_go(cluster: Any, tmp_path: Path) -> None:
    """Of four hosts two are killed, and one comes: each step's rows and loss are those of one process."""
    faulthandler.cancel_dump_traceback_later()  # Ray Train looks for hosts every 20 seconds
    script = [sys.executable, str(SCRIPT), "--epochs", str(EPOCHS)]
    files = ["--checkpoint", str(tmp_path / "steady" / "run.pt"), "--record", str(tmp_path / "steady" / "record")]
    with program(tmp_path / "steady", *script, *files) as (steady, alone):
        steady.read(ranks=1)
        assert alone.wait(PATIENCE_SECONDS) == 0
    with contextlib.closing(Hosts(cluster, 4)) as hosts:
        command = [sys.executable, "-c", TRAINER, cluster.address, str(tmp_path / "elastic")]
        with program(tmp_path / "elastic", *command) as (record, trainer):
            record.read(ranks=4, count=15)
            hosts.lose(signal.SIGKILL)
            hosts.lose(signal.SIGKILL)
            record.read(ranks=2, count=15)
            restarted = workers(hosts)
            assert len(restarted) == 2
            hosts.add()  # the training waits meanwhile, since nothing reads its lines
            assert not psutil.wait_procs(restarted, PATIENCE_SECONDS)[1]
            record.read(ranks=3)
            assert trainer.wait(PATIENCE_SECONDS) == 0
    assert_elastic(record.lines, steady.lines)
