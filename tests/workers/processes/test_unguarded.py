"""Scripts without `if __name__ == "__main__":` load with worker processes, and run once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps
from tests.programs.forked import script_outcome

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="the fork server is Linux's"),
    pytest.mark.each_value,
    pytest.mark.usefixtures("forked_programs"),
]
SOURCES = str(Path(ps.__file__).parents[1])

DEFINITIONS = """
import collections, os, signal, sys
import numpy as np
import penstock as ps

Point = collections.namedtuple("Point", "x y")

class CorruptError(Exception):
    pass

class Box:
    def __init__(self, value):
        self.value = value

OFFSET = 100

def decode(number):
    if number == 77:
        raise CorruptError("number 77")
    return np.full(3, number + OFFSET)

def dies_once(number):
    if number == 5 and not os.path.exists(sys.argv[1]):
        open(sys.argv[1], "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return number

print("top")
"""
BODIES = {
    "functions and classes": (
        "with ps.Loader(ps.range(8).map(decode).batch(4).map(Box), num_workers=2, workers='processes') as loader:\n"
        "    batches = list(loader)\n"
        "print([type(batch) is Box and batch.value[:, 0].tolist() for batch in batches])",
        "[[100, 101, 102, 103], [104, 105, 106, 107]]",
    ),
    "an exception": (
        "with ps.Loader(ps.range(70, 80).map(decode).batch(5), num_workers=2, workers='processes') as loader:\n"
        "    try:\n"
        "        list(loader)\n"
        "    except CorruptError as error:\n"
        "        print(error)",
        "number 77",
    ),
    "a killed worker": (
        "with ps.Loader(ps.range(8).map(dies_once).batch(4), num_workers=1, workers='processes') as loader:\n"
        "    batches = [batch.tolist() for batch in loader]\n"
        "    print(batches, len(loader.deaths()))",
        "[[0, 1, 2, 3], [4, 5, 6, 7]] 1",
    ),
    "a helper process": (
        "def train():\n"
        "    with ps.Loader(ps.range(8).map(decode).batch(4), isolated=True) as loader:\n"
        "        return [batch[:, 0].tolist() for batch in loader]\n"
        "print(train())",
        "[[100, 101, 102, 103], [104, 105, 106, 107]]",
    ),
    "functions with a cache": (
        "import functools\n"
        "@functools.lru_cache(maxsize=3)\n"
        "def triple(number):\n"
        "    return 3 * number if number < 2 else 3 + triple(number - 1)\n"
        "for kind in [{'num_workers': 1, 'workers': 'processes'}, {'isolated': True}]:\n"
        "    with ps.Loader(ps.range(4).map(triple).batch(4), **kind) as loader:\n"
        "        print([batch.tolist() for batch in loader])",
        "[[0, 3, 6, 9]]\n[[0, 3, 6, 9]]",
    ),
    "values of its own types": (
        "import enum\n"
        "class Color(enum.Enum):\n"
        "    RED = 1\n"
        "class Pixels(np.ndarray):\n"
        "    pass\n"
        "def colored(number):\n"
        "    return {'color': Color.RED, 'pixels': np.full(2, number).view(Pixels)}\n"
        "for kind in [{'num_workers': 1, 'workers': 'processes'}, {'isolated': True}]:\n"
        "    with ps.Loader(ps.range(1).map(colored), **kind) as loader:\n"
        "        print([(each['color'] is Color.RED, type(each['pixels']) is Pixels) for each in loader])",
        "[(True, True)]\n[(True, True)]",
    ),
    "classes for torch": (
        "import torch\n"
        "from penstock.torch import DataLoader\n"
        "class Squares(torch.utils.data.Dataset):\n"
        "    def __len__(self):\n"
        "        return 6\n"
        "    def __getitem__(self, index):\n"
        "        return torch.tensor(index * index)\n"
        "print([batch.tolist() for batch in DataLoader(Squares(), batch_size=3, num_workers=2)])\n"
        "class Points:\n"
        "    def __len__(self):\n"
        "        return 9\n"
        "    def __getitem__(self, index):\n"
        "        return Point(index, [index, -index])\n"
        "print([type(batch) is Point and batch.x.tolist() for batch in DataLoader(Points(), 3, num_workers=2)])",
        "[[0, 1, 4], [9, 16, 25]]\n[[0, 1, 2], [3, 4, 5], [6, 7, 8]]",
    ),
}


def run(script: Path | None, text: str, *arguments: str) -> tuple[int, str, str]:
    """Run a program from a file or through a pipe; return its exit code, output and errors."""
    if script is not None:
        script.write_text(text)
        code, printed, complaint = script_outcome(script, *arguments)
        return code, printed.strip(), complaint.strip()
    ended = subprocess.run(
        [sys.executable, "-", *arguments],
        env={**os.environ, "PYTHONPATH": SOURCES},
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return ended.returncode, ended.stdout.strip(), ended.stderr.strip()


@pytest.mark.parametrize(
    ("name", "by_pipe"),
    [*((name, False) for name in BODIES), ("an exception", True), ("classes for torch", True)],
)
def test_an_unguarded_script_runs_once(tmp_path: Path, name: str, *, by_pipe: bool) -> None:
    """Its functions, classes and exceptions are the same in the program, and no process runs its top level again."""
    body, expected = BODIES[name]
    script = None if by_pipe else tmp_path / "script.py"
    code, printed, complaint = run(script, DEFINITIONS + body, str(tmp_path / "died"))
    assert (code, printed) == (0, f"top\n{expected}")
    assert not [line for line in complaint.splitlines() if "another process replaces" not in line]


@pytest.mark.parametrize(
    "body",
    [
        "sys.modules['cloudpickle'] = None\n"
        "list(ps.Loader(ps.range(8).map(decode).batch(4), num_workers=1, workers='processes'))",
        "limits = ps.Limits(start_method='spawn')\n"
        "list(ps.Loader(ps.range(8).map(decode).batch(4), num_workers=1, workers='processes', limits=limits))",
    ],
    ids=["without cloudpickle", "spawned"],
)
def test_where_the_script_would_run_again_one_error_says_so_first(tmp_path: Path, body: str) -> None:
    """The error is raised before any process is started, and its remedy is a guard."""
    code, printed, complaint = run(tmp_path / "script.py", DEFINITIONS + body)
    assert (code, printed) == (1, "top")
    assert "UsageError: " in complaint.splitlines()[-1]
    assert 'under `if __name__ == "__main__":`' in complaint or "move the code that uses them under it" in complaint
    assert complaint.count("Traceback (most recent call last)") <= 3


def test_a_script_from_a_pipe_spawns_processes() -> None:
    """No process can import it, so none starts others, with a guard or without one."""
    body = (
        "from penstock.pipeline import PipelineBuilder, run_in_subprocess\n"
        "limits = ps.Limits(start_method='spawn')\n"
        "with ps.Loader(ps.range(4).map(decode).batch(4), isolated=True, limits=limits) as loader:\n"
        "    print(list(loader)[0][:, 0].tolist())\n"
        "if __name__ == '__main__':\n"
        "    config = PipelineBuilder().add_source([3]).pipe(range).disaggregate().add_sink().get_config()\n"
        "    with run_in_subprocess(config, num_threads=1).auto_stop() as pipeline:\n"
        "        print(list(pipeline))"
    )
    assert run(None, DEFINITIONS + body) == (0, "top\n[100, 101, 102, 103]\n[0, 1, 2]", "")


def test_a_guarded_script_is_imported_by_its_workers(tmp_path: Path) -> None:
    """So its functions are pickled by name without cloudpickle."""
    body = (
        "sys.modules['cloudpickle'] = None\n"
        "if __name__ == '__main__':\n"
        "    with ps.Loader(ps.range(4).map(decode).batch(4), num_workers=1, workers='processes') as loader:\n"
        "        print(list(loader)[0][:, 0].tolist())"
    )
    code, printed, complaint = run(tmp_path / "script.py", DEFINITIONS + body)
    assert (code, complaint) == (0, "")
    assert printed.splitlines()[-1] == "[100, 101, 102, 103]"


def test_rows_of_a_class_of_a_guarded_script_have_one_class(tmp_path: Path) -> None:
    """Workers get the class with the dataset, by value, and import another one: layouts must have the dataset's."""
    body = (
        "from penstock._processes import pickled_for_processes\n"
        "if __name__ == '__main__':\n"
        "    made = ps.range(64).map(lambda number: Point(decode(number), number)).batch(4)\n"
        "    with ps.Loader(made, num_workers=1, workers='processes') as loader:\n"
        "        batches = list(loader)\n"
        "    print(all(type(batch) is Point for batch in batches), b'cloudpickle' in pickled_for_processes(Point))"
    )
    code, printed, complaint = run(tmp_path / "script.py", DEFINITIONS + body)
    assert (code, complaint) == (0, "")
    assert printed.splitlines()[-1] == "True True"


@pytest.mark.parametrize("kind", ["num_workers=1, workers='processes'", "isolated=True"])
def test_a_module_that_starts_processes_while_it_is_imported_gets_an_error(tmp_path: Path, kind: str) -> None:
    """Its functions are sent by name, so each process would import it, and start others."""
    loader = f"ps.Loader(ps.range(8).map(decode).batch(4), {kind})"
    (tmp_path / "training.py").write_text(f"{DEFINITIONS}with {loader} as loader:\n    list(loader)\n")
    code, printed, complaint = run(tmp_path / "script.py", "import training")
    assert (code, printed) == (1, "top")
    assert "the module training starts processes while it is imported" in complaint.splitlines()[-1]


def test_a_data_loader_of_a_module_that_is_being_imported_loads_with_workers_of_torch(tmp_path: Path) -> None:
    """These are forks of the program, so they import nothing."""
    module = (
        "from penstock.torch import DataLoader\n"
        "class Numbers:\n"
        "    def __len__(self):\n"
        "        return 4\n"
        "    def __getitem__(self, index):\n"
        "        return index\n"
        "print([batch.tolist() for batch in DataLoader(Numbers(), 2, num_workers=1)])"
    )
    (tmp_path / "training.py").write_text(module)
    code, printed, complaint = run(tmp_path / "script.py", "import training")
    assert (code, printed) == (0, "[[0, 1], [2, 3]]")
    assert "the module training starts processes while it is imported" in complaint
