"""Every example in a docstring runs; `ps` is Penstock and `np` is NumPy without an import."""

import doctest
import importlib
import linecache
import pkgutil
import sys
from pathlib import Path

import numpy as np
import pytest

import penstock

pytestmark = pytest.mark.usefixtures("started_zarr")
ELSEWHERE = {  # they need packages that are large
    "penstock.ray._write": "tests/ray/test_write.py",
    "penstock.sources._lance": "tests/sources/test_lance.py",
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _modules() -> list[str]:
    found = pkgutil.walk_packages(penstock.__path__, "penstock.", onerror=_need_framework)
    return ["penstock", *(module.name for module in found if not module.name.endswith((".__main__", "._native")))]


def _need_framework(name: str) -> None:
    """Pass over the package for a framework that isn't installed; any other that can't be imported is an error."""
    error = sys.exception()
    if not isinstance(error, ModuleNotFoundError) or (error.name or "").startswith("penstock"):
        raise ImportError(f"the package {name} cannot be imported")


@pytest.mark.parametrize("name", _modules())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module's examples print what they say, in an empty folder; names of the module itself may be used too."""
    if name in ELSEWHERE:
        pytest.skip(f"{ELSEWHERE[name]} runs it")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("penstock"):
            raise
        pytest.skip(f"{error.name} is not installed")
    monkeypatch.chdir(tmp_path)
    linecache.clearcache()  # doctest's debugger looks at each file that is in it
    given = {**vars(module), "ps": penstock, "np": np}
    printed: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS, verbose=False)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, globs=given):
        runner.run(example, out=printed.append)
    assert runner.failures == 0, "".join(printed)
