"""`import penstock` loads NumPy and the standard library, starts nothing and takes next to no time."""

import json
import subprocess
import sys

import pytest

MEASURED = """
import json, sys, threading, time
import numpy
before = set(sys.modules)
began = time.process_time()
import penstock
seconds = time.process_time() - began
print(json.dumps([sorted(set(sys.modules) - before), seconds, threading.active_count()]))
"""

# What takes long to load, and who needs it imports it when it is needed: what runs, evaluates or stores a dataset.
NOT_AT_ONCE = {
    "asyncio",
    "concurrent.futures",
    "json",
    "logging",
    "multiprocessing",
    "numpy.random",
    "pathlib",
    "penstock._graph._evaluate",
    "penstock._streaming._opening",
    "penstock._loader",
    "penstock._plan._explain",
    "penstock._runtime",
    "penstock._storage._disk_cache",
    "penstock.pipeline",
    "penstock.sources._files",
    "random",
    "tempfile",
    "traceback",
}


@pytest.fixture(scope="module")
def imported() -> tuple[list[str], float, int]:
    """The modules loaded beyond NumPy's, the processor's seconds that took, and the threads running afterwards."""
    run = subprocess.run([sys.executable, "-c", MEASURED], check=True, capture_output=True, text=True)
    modules, seconds, threads = json.loads(run.stdout)
    return modules, seconds, threads


def test_no_framework_is_loaded(imported: tuple[list[str], float, int]) -> None:
    """Beyond NumPy's modules there are only Penstock's own and the standard library's."""
    tops = {module.partition(".")[0] for module in imported[0]}
    # NumPy's random generators are compiled by Cython, whose runtime is registered beside them.
    strangers = {top for top in tops - sys.stdlib_module_names if not top.startswith(("_cython", "cython_runtime"))}
    assert not strangers - {"penstock", "numpy"}


def test_what_few_programs_need_is_not_loaded(imported: tuple[list[str], float, int]) -> None:
    """Modules that take long, and ours that no description of a dataset needs, are loaded when they are used."""
    assert not NOT_AT_ONCE & set(imported[0])


def test_names_are_there_when_asked_for() -> None:
    """Every public name of the package and of its sources is found, though not all are loaded with it."""
    program = """
import penstock as ps
for module in ps, ps.sources:
    assert [getattr(module, name) for name in module.__all__]
assert ps.Loader is vars(ps)["Loader"]
try:
    ps.loader
except AttributeError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert run.stdout == "module 'penstock' has no attribute 'loader'\n"


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
