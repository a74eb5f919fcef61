"""Batches of worker processes equal the definition, whatever happens to the processes."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import penstock as ps
from penstock.errors import UsageError
from tests.equivalence.definition import digest
from tests.places import PLACES
from tests.workers.processes import functions
from tests.workers.processes.killing import kill_a_worker

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")


def processes(dataset: ps.Dataset, num_workers: int = 2, **options: Any) -> ps.Loader:
    """Return a loader with worker processes."""
    return ps.Loader(dataset, num_workers=num_workers, workers="processes", **options)


def test_repeated_kills_lose_no_batch() -> None:
    """However often a process is killed, no batch is lost, repeated or changed; other processes replace it."""
    dataset = ps.range(480, seed=1).shuffle().map(functions.slow).batch(8)
    with ps.Loader(dataset) as inline, processes(dataset) as loader:
        for number, (batch, expected) in enumerate(zip(loader, inline, strict=True)):
            assert digest(batch) == digest(expected)
            assert number % 20 or kill_a_worker()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("processes", r"must be picklable; got .*it holds a connection.*, from step 'Unpicklable'\. .*cloudpickle"),
        ("isolated", r"isolated=True sends .*it holds a connection.*cloudpickle"),
    ],
)
def test_objects_that_can_not_be_sent_are_named(name: str, message: str) -> None:
    """The message has the rule, the cause and the remedies, each time."""
    with ps.Loader(ps.range(8).map(functions.Unpicklable()).batch(4), **PLACES[name]) as loader:
        for _ in range(2):
            with pytest.raises(UsageError, match=message):
                iter(loader)


UNFOUND = """
import functools
from typing import NamedTuple

class Row(NamedTuple):
    number: int

@functools.lru_cache
def hundred():
    return 100

def row(number):
    return Row(number + hundred())

def doubled(row):
    return row._replace(number=2 * row.number)
"""


def unfound(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a module that this process has, and that others don't find along its path."""
    (folder / "unfound").mkdir()
    file = folder / "unfound" / "unfound_rows.py"
    file.write_text(UNFOUND)
    if kind == "it is the text of a string":
        made = ModuleType(file.stem)
        exec(UNFOUND, made.__dict__)
        monkeypatch.setitem(sys.modules, file.stem, made)
        return made
    monkeypatch.delitem(sys.modules, file.stem, raising=False)
    monkeypatch.chdir(folder)
    found_at = "unfound" if kind == "the directory was changed" else str(file.parent)
    monkeypatch.setattr(sys, "path", [found_at, *sys.path])
    module = importlib.import_module(file.stem)
    if kind == "the directory was changed":
        monkeypatch.chdir("/")
        return module
    sys.path.pop(0)
    if kind == "another one has its name":
        (folder / file.name).write_text("")
        sys.path.insert(0, str(folder))
    return module


@pytest.mark.parametrize(
    "kind",
    [
        "it is the text of a string",
        "its directory is no longer on the path",
        "another one has its name",
        "the directory was changed",
    ],
)
def test_modules_that_processes_do_not_find_are_sent(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their functions and classes, and the modules as globals of others, are sent by value."""
    cloudpickle = pytest.importorskip("cloudpickle")
    module = unfound(kind, tmp_path, monkeypatch)
    dataset = ps.range(8).map(module.row).map(lambda row: module.doubled(row)).batch(4)
    with processes(dataset, num_workers=1) as loader:
        batches = list(loader)
    assert [number for batch in batches for number in batch.number.tolist()] == list(range(200, 216, 2))
    assert {type(batch) for batch in batches} == {module.Row}
    assert not cloudpickle.list_registry_pickle_by_value()


def test_a_copy_of_an_installed_package_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes import the copy along their path: what can't be pickled is in it, too."""
    pytest.importorskip("cloudpickle")
    for copy in ("vendored", "usual"):
        folder = tmp_path / copy / "site-packages"
        folder.mkdir(parents=True)
        (folder / "copied_rows.py").write_text("import threading\nlock = threading.Lock()\ndoubled = (2).__mul__\n")
    monkeypatch.delitem(sys.modules, "copied_rows", raising=False)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [str(tmp_path / "vendored" / "site-packages"), *sys.path])
        module: Any = importlib.import_module("copied_rows")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "usual" / "site-packages"), *sys.path])
    with processes(ps.range(8).map(lambda number: module.doubled(number)).batch(8), num_workers=1) as loader:
        assert [batch.tolist() for batch in loader] == [list(range(0, 16, 2))]


def test_modules_that_processes_do_not_find_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without cloudpickle the message has the module and the remedies."""
    module = unfound("its directory is no longer on the path", tmp_path, monkeypatch)
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with processes(ps.range(8).map(module.row)) as loader:
        message = r"the module unfound_rows along .*sys\.path.*cloudpickle"
        with pytest.raises(UsageError, match=message):
            iter(loader)


PIPED = """
import sys
import numpy as np
import penstock as ps

at_start = set()

def note_modules(worker):
    at_start.update(sys.modules)

def doubled(number):
    late = [name for name in sys.modules if name.startswith(("penstock", "numpy")) and name not in at_start]
    return 2 * np.float64(number), len(late)

dataset = ps.range(8).map(doubled).batch(4).map(lambda batch: batch)
limits = ps.Limits(worker_init=note_modules)
with ps.Loader(dataset, num_workers=1, workers="processes", limits=limits) as loader:
    print([(numbers.tolist(), late.tolist()) for numbers, late in loader])
"""


def test_a_program_that_is_no_file() -> None:
    """Functions of a script from a pipe, which no process can import, are pickled like local ones.

    The fork server has imported the modules that a worker needs: each worker would take 10 ms for those of Penstock,
    and 30 ms for NumPy's masked arrays.
    """
    pytest.importorskip("cloudpickle")
    run = subprocess.run([sys.executable, "-"], input=PIPED, capture_output=True, text=True, check=False)
    rows = "[([0.0, 2.0, 4.0, 6.0], [0, 0, 0, 0]), ([8.0, 10.0, 12.0, 14.0], [0, 0, 0, 0])]\n"
    assert (run.stdout, run.stderr) == (rows, "")
