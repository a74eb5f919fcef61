"""Processes that import a guarded script see its globals as the program had set them when their owner started."""

from pathlib import Path

import pytest

from tests.processes.helping import SECONDS, program

pytestmark = pytest.mark.usefixtures("forked_programs")

SCRIPT = """
import argparse
import asyncio
import collections
import dataclasses
import os
import signal
import threading
from typing import NamedTuple

import numpy as np

from penstock.concurrency import WorkerPool
from penstock.pipeline import PipelineBuilder, ProcessExecutor, run_in_subprocess

scale = 1
options = {"more": 2}
kind, found, config, names, slots, missing, folder = np.dtype(float), None, None, {}, None, 0.0, None
lock = threading.Lock()  # as after the import
chosen = frozenset({"a", "b", "c", "d"})  # unchanged, and in another order in processes


class Config(NamedTuple):
    offset: int


@dataclasses.dataclass(slots=True)
class Slots:
    offset: int


class Folder:
    def __init__(self, path):
        self.path = path

    def __del__(self):
        os.rmdir(self.path)


def computed(number, given=chosen):
    with lock:
        made = kind.type(number * scale + options["more"] + args.offset)
    assert (config, slots.offset, names["?"], found, missing) == (Config(7), 8, 0, None, -0.0) and given is chosen
    assert str(missing) == "-0.0" and (folder is None or os.path.exists(folder.path))
    return made.item()


def computed_or_killed(number):
    if number == 1 and not os.path.exists("killed"):
        open("killed", "x").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return computed(number)


class Computing:
    def start(self):
        pass

    def run(self, number):
        return computed(number)

    def stop(self):
        pass


async def in_a_pool():
    async with WorkerPool(Computing, 1, place="process") as pool:
        found = [await (await pool.assign(number)) for number in range(3)]
    assert os.path.exists(folder.path)
    return found


def in_a_stage(op=computed):
    global scale
    builder = PipelineBuilder().add_source(range(3))
    builder.pipe(op, executor=ProcessExecutor(1), repeatable=True, max_items=1)
    with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
        items = iter(pipeline)
        found = [next(items)]
        scale = 99
        return found + list(items)


def in_a_subprocess():
    config = PipelineBuilder().add_source(range(3)).pipe(computed).add_sink().get_config()
    with run_in_subprocess(config, num_threads=1).auto_stop() as pipeline:
        return list(pipeline)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--offset", type=int)
    args = parser.parse_args()
    os.chdir(os.path.dirname(__file__))
    kind, config, names = np.dtype(np.int64), Config(7), collections.defaultdict(int, {"a": 1})
    found = names.get  # it would take the dict with it
    slots, missing = Slots(8), -0.0
    folder = Folder(os.path.abspath("folder"))  # a copy would remove it
    os.mkdir(folder.path)
    for scale, run in (
        (10, lambda: asyncio.run(in_a_pool())),
        (20, in_a_stage),
        (30, lambda: in_a_stage(computed_or_killed)),
        (40, in_a_subprocess),
    ):
        print(*run(), flush=True)
    print(os.path.exists("killed"))
"""


def test_processes_have_the_globals_of_the_program(tmp_path: Path) -> None:
    """A parsed argument, and a number that the program changes later; a process in place of a killed one, too.

    They are the processes of a pool, of a stage, of a stage whose process is killed, and of a pipeline.
    """
    with program(SCRIPT, tmp_path, "--offset", "100") as running:
        output, errors = running.communicate(timeout=SECONDS)
    found = ["102 112 122", "102 122 142", "102 132 162", "102 142 182", "True"]
    assert (output.splitlines(), running.wait()) == (found, 0), errors
