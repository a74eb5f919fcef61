"""`import penstock` loads NumPy and the standard library, starts nothing and takes next to no time."""

import json
import subprocess
import sys

import pytest

MEASURED = """
import json, sys, threading, time
import numpy
before = set(sys.modules)
began = time.perf_counter()
import penstock
seconds = time.perf_counter() - began
print(json.dumps([sorted(set(sys.modules) - before), seconds, threading.active_count()]))
"""


@pytest.fixture(scope="module")
def imported() -> tuple[list[str], float, int]:
    """The modules that Penstock loads beyond NumPy's, the seconds it takes, and the threads running afterwards."""
    run = subprocess.run([sys.executable, "-c", MEASURED], check=True, capture_output=True, text=True)
    modules, seconds, threads = json.loads(run.stdout)
    return modules, seconds, threads


def test_no_framework_is_loaded(imported: tuple[list[str], float, int]) -> None:
    """Beyond NumPy's modules there are only Penstock's own and the standard library's."""
    tops = {module.partition(".")[0] for module in imported[0]}
    # NumPy's random generators are compiled by Cython, whose runtime is registered beside them.
    strangers = {top for top in tops - sys.stdlib_module_names if not top.startswith(("_cython", "cython_runtime"))}
    assert not strangers - {"penstock", "numpy"}


def test_import_is_quick(imported: tuple[list[str], float, int]) -> None:
    """The budget is ten times the goal that the benchmark measures, so that a busy machine passes."""
    assert imported[1] < 0.5


def test_import_starts_nothing(imported: tuple[list[str], float, int]) -> None:
    """After the import the main thread is alone."""
    assert imported[2] == 1


def test_a_program_ends_in_silence() -> None:
    """Nothing is printed when Python ends: no cache of ours keeps a native object beyond its module."""
    program = "import penstock as ps; print([len(batch) for batch in ps.range(10).shuffle().batch(4)])"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[4, 4, 2]\n", "")
