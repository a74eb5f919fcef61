"""Extensions that are written in C++ as a user would write them, built from the public headers and loaded."""

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from penstock.transport import include_directory

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")


def build(source: Path, folders: pytest.TempPathFactory) -> Path:
    """Build an extension as C++17 without a warning; skip where there is nothing to build it with.

    Of the processes that run tests side by side, the first one that needs it builds it for all.
    """
    compiler = shutil.which("c++")
    python = sysconfig.get_paths()["include"]
    if compiler is None or not (Path(python) / "Python.h").exists():
        pytest.skip("no C++ compiler, or no C headers of Python, to build an extension with")
    folder = folders.getbasetemp()
    built = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / f"{source.stem}.so"
    flags = ["-shared", "-fPIC", "-std=c++17", "-O1", "-pthread", *WARNINGS]
    if sys.platform == "darwin":
        flags += ["-undefined", "dynamic_lookup"]
    headers = ["-isystem", python, "-I", include_directory()]
    with built.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            part = built.with_suffix(".part")
            subprocess.run([compiler, *flags, *headers, str(source), "-o", str(part)], check=True)
            part.rename(built)
    return built


def load(library: Path) -> ModuleType:
    """Return the module of an extension that was built, or of a script."""
    spec = importlib.util.spec_from_file_location(library.stem, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
