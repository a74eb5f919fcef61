"""The global random generators of worker processes differ between processes, and repeat from run to run."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock._processes import draw_seeds, observe_seeds
from tests.processes.helping import program
from tests.programs.forked import outcome

pytestmark = pytest.mark.usefixtures("forked_programs")

SECONDS = 150.0  # of a busy machine; a test may take 180

# Each process writes its first draws to a file of its own, and prints nothing.
PROGRAM = """
import asyncio, json, os, random, signal, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
import numpy as np
import penstock as ps
from penstock.concurrency import WorkerPool
from penstock.pipeline import PipelineBuilder, ProcessExecutor, run_in_subprocess

WHEN, METHOD, PLACES, FOLDER = sys.argv[1], sys.argv[2], sys.argv[3].split(", "), Path(sys.argv[4])
LOADERS = ("loader", "dying", "isolated")
if WHEN == "top":
    import torch


def draw(_=None):
    found = [random.random(), np.random.random()]
    if WHEN == "never":
        assert "torch" not in sys.modules
    else:
        import torch
        assert torch.__spec__.loader is torch.__loader__
        found.append(torch.rand(()).item())
    return found


def note(number=0):
    path = FOLDER / f"draws {number}"
    old = json.loads(path.read_text()) if path.exists() else []
    path.write_text(json.dumps([*old, draw()]))


def noted():
    found = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("draws *"))}
    for path in FOLDER.glob("draws *"):
        path.unlink()
    return found


def dies_once(number):
    if number == 8 and not (FOLDER / "died").exists():
        (FOLDER / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return draw()


class Noting:
    def start(self):
        note("pool")

    def run(self, job):
        return draw()

    def stop(self):
        pass


def loader_draws(num_workers, **options):
    limits = ps.Limits(start_method=METHOD, worker_init=note)
    dataset = ps.range(32, seed=0).map(dies_once).batch(4)
    with ps.Loader(dataset, num_workers=num_workers, workers="processes", limits=limits, **options) as loader:
        elements = [tuple(float(leaf[row]) for leaf in batch) for batch in loader for row in range(len(batch[0]))]
    assert all(len(set(numbers)) == len(elements) for numbers in zip(*elements))
    return noted()


def pipeline_draws():
    builder = PipelineBuilder().add_source(range(4))
    for name in ("first", "second"):
        builder.pipe(draw, executor=ProcessExecutor(1, start_method=METHOD, initializer=note, initargs=(name,)))
    with builder.add_sink().build(num_threads=1).auto_stop() as pipeline:
        list(pipeline)
    return noted()


def subprocess_draws():
    config = PipelineBuilder().add_source(range(3)).pipe(draw).add_sink().get_config()
    with run_in_subprocess(config, num_threads=1, start_method=METHOD).auto_stop() as pipeline:
        return list(pipeline)


async def pool_draws():
    async with WorkerPool(Noting, 1, place="process", start_method=METHOD) as pool:
        first = await (await pool.assign(None))
    return [*noted().values(), first]


def own_pool_draws():
    with ProcessPoolExecutor(1, get_context("fork" if METHOD == "forkserver" else "spawn")) as pool:
        pipeline = PipelineBuilder().add_source(range(3)).pipe(draw, executor=pool).add_sink().build(num_threads=1)
        with pipeline.auto_stop():
            return list(pipeline)


def main():
    random.seed(3)
    np.random.seed(3)
    if WHEN == "top":
        torch.manual_seed(3)
    draws = {
        "loader": lambda: loader_draws(2),
        "dying": lambda: (FOLDER / "died").unlink() or loader_draws(1),
        "isolated": lambda: loader_draws(1, isolated=True),
        "executor": pipeline_draws,
        "subprocess": subprocess_draws,
        "worker pool": lambda: asyncio.run(pool_draws()),
        "own pool": own_pool_draws,
    }
    (FOLDER / "died").touch()
    before = random.getstate(), np.random.get_state()[1].tolist()
    found = {place: draws[place]() for place in PLACES if place in LOADERS}
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before  # a loader leaves them alone
    found |= {place: draws[place]() for place in PLACES if place not in LOADERS}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
"""

# It has what a program and Penstock use of torch's generators, and is imported in no time.
TORCH = """
import random

generator = random.Random(0)
default_generator, Tensor, int64 = generator, type("Tensor", (), {}), int


class Scalar:
    random_ = lambda self: generator.getrandbits(63)
    item = lambda self: generator.random()


class State:
    numpy = lambda self: self
    tobytes = lambda self: repr(generator.getstate()).encode()


empty = lambda shape, dtype: Scalar()
rand = lambda shape: Scalar()
get_default_dtype = lambda: "torch.float32"
get_float32_matmul_precision = lambda: "highest"
get_deterministic_debug_mode = lambda: 0
is_grad_enabled = lambda: True
get_rng_state = State
manual_seed = generator.seed
"""


def flat(found: Any) -> list[tuple[float, ...]]:
    """Return the draws of all processes of a program."""
    inner: list[Any] = [*found.values()] if hasattr(found, "values") else found
    if isinstance(inner[0], float):
        return [tuple(inner)]
    return [draw for each in inner for draw in flat(each)]


def drawn(when: str, method: str, places: str, folder: Path, text: str = PROGRAM) -> list[Any]:
    """Return what the processes of two runs of a program drew, by the place that they worked for."""
    folders = [folder / name for name in ("first", "second")]
    for each in folders:
        each.mkdir(exist_ok=True)
    with ExitStack() as stack:
        runs: list[Any] = [
            stack.enter_context(program(text, each, when, method, places, str(each))) for each in folders
        ]
        printed = [each.communicate(timeout=SECONDS) for each in runs]
    assert [each.returncode for each in runs] == [0, 0], printed
    return [json.loads(output) for output, _ in printed]


@pytest.mark.parametrize(
    ("when", "method", "places"),
    [
        ("never", "forkserver", "loader, dying, isolated, executor, subprocess, worker pool, own pool"),
        ("top", "forkserver", "loader, own pool"),
        ("inside", "forkserver", "dying"),
        ("inside", "spawn", "executor"),
    ],
)
@pytest.mark.slow
def test_processes_draw_differently_and_repeatably(when: str, method: str, places: str, tmp_path: Path) -> None:
    """No two processes draw the same numbers, one that replaces a killed one included; each run draws the same."""
    if when != "never":
        for run in ("first", "second"):
            (tmp_path / run).mkdir()
            (tmp_path / run / "torch.py").write_text(TORCH)
    check_draws(when, method, places, tmp_path)


@pytest.mark.long
def test_torch_itself_draws_differently_and_repeatably(tmp_path: Path) -> None:
    """A process that imports torch draws from it as from a module that has its functions."""
    pytest.importorskip("torch")
    check_draws("inside", "forkserver", "subprocess", tmp_path)


def test_seeds_follow_from_the_generator_of_torch_itself() -> None:
    """The seeds of torch are drawn from the generator of a program that has imported torch, or observe its state."""
    torch = pytest.importorskip("torch")
    with torch.random.fork_rng(devices=[]):
        drawn: list[int] = []
        for seed in (3, 3, 4):
            torch.manual_seed(seed)
            drawn.append(draw_seeds().torch)
            before = torch.get_rng_state()
            observe_seeds()
            assert torch.equal(torch.get_rng_state(), before)
        assert drawn[0] == drawn[1] != drawn[2]


def check_draws(when: str, method: str, places: str, folder: Path) -> None:
    """Check that all processes of a program drew different numbers, and the same in two runs."""
    first, second = drawn(when, method, places, folder)
    assert first == second
    if "dying" in first:
        assert len(first["dying"]["draws 0"]) == 2
    draws = flat(first)
    assert len(draws) > 1
    assert all(len(set(numbers)) == len(draws) for numbers in zip(*draws, strict=True))


def test_a_program_that_seeds_nothing(tmp_path: Path) -> None:
    """Where the program doesn't seed its generators, each run draws other numbers.

    A fork has another state of Python's generator, as from an import, but would continue that of NumPy's.
    """
    text = PROGRAM.replace("    random.seed(3)\n    np.random.seed(3)\n", "    np.random.seed()\n")
    first, second = drawn("never", "forkserver", "loader", tmp_path, text)
    assert not set(flat(first)) & set(flat(second))


REPEATED = """
import random
from penstock.pipeline import PipelineBuilder, run_in_subprocess

def draw(_):
    return random.random()

if __name__ == "__main__":
    config = PipelineBuilder().add_source(range(3)).pipe(draw).add_sink().get_config()
    for seed in (0, 0, 1):
        random.seed(seed)
        with run_in_subprocess(config, num_threads=1).auto_stop() as pipeline:
            print(list(pipeline))
"""


def test_a_program_that_seeds_again(tmp_path: Path) -> None:
    """A pipeline's process draws the same numbers again where the program has seeded its generators again."""
    with program(REPEATED, tmp_path) as running:
        output, errors = running.communicate(timeout=SECONDS)
    first, second, third = output.splitlines()
    assert first == second != third, errors


def test_importing_torch_fails_and_succeeds_later(tmp_path: Path) -> None:
    """A process whose first import of torch fails seeds it at the next one."""
    (tmp_path / "torch.py").write_text(f"import ctypes\n{TORCH}")
    text = """
import sys
sys.path.insert(0, {folder!r})
from penstock._processes._seeding import observe_seeds, seed_process
seeds = observe_seeds()
seed_process(seeds)
sys.modules["ctypes"] = None
try:
    import torch
except ImportError:
    pass
else:
    raise AssertionError
del sys.modules["ctypes"]
import torch
first = torch.get_rng_state().tobytes()
seed_process(seeds)
assert torch.get_rng_state().tobytes() == first
"""
    assert outcome(text.format(folder=str(tmp_path))) == (0, "", "")
