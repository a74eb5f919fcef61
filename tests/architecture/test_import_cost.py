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

# Modules that take long to load, and Penstock's that run, evaluate or store a dataset; they are imported when used.
NOT_AT_ONCE = {
    *("asyncio", "concurrent.futures", "json", "logging", "multiprocessing", "numpy.random", "pathlib"),
    *("penstock._graph._evaluate", "penstock._streaming._opening", "penstock._loader", "penstock._plan._explain"),
    *("penstock._runtime", "penstock._storage._disk_cache", "penstock.pipeline", "penstock.sources._arrow_rows"),
    *("penstock.sources._files", "random", "tempfile", "traceback"),
}


@pytest.fixture(scope="module")
def imported() -> tuple[list[str], float, int]:
    """Return the modules loaded beyond NumPy's, the processor seconds of the import, and the threads after it."""
    run = subprocess.run([sys.executable, "-c", MEASURED], check=True, capture_output=True, text=True)
    modules, seconds, threads = json.loads(run.stdout)
    return modules, seconds, threads


def test_no_framework_is_loaded(imported: tuple[list[str], float, int]) -> None:
    """Beyond NumPy's modules there are only Penstock's own and the standard library's."""
    tops = {module.partition(".")[0] for module in imported[0]}
    # NumPy's random generators are compiled by Cython, whose runtime is registered beside them.
    strangers = {top for top in tops - sys.stdlib_module_names if not top.startswith(("_cython", "cython_runtime"))}
    assert not strangers - {"penstock", "numpy"}


def test_rarely_used_modules_are_not_loaded(imported: tuple[list[str], float, int]) -> None:
    """Modules that take long, and Penstock's that no description of a dataset needs, are loaded when used."""
    assert not NOT_AT_ONCE & set(imported[0])


def test_lazy_names_are_found() -> None:
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
    """After the import the main thread is the only one."""
    assert imported[2] == 1


def test_a_program_ends_in_silence() -> None:
    """Python prints nothing at its end: no cache keeps a native object beyond its module."""
    program = "import penstock as ps; print([len(batch) for batch in ps.range(10).shuffle().batch(4)])"
    run = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[4, 4, 2]\n", "")
