"""Extensions that are written in C++ as a user would write them, built from the public headers and loaded."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from penstock.transport import include_directory

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")


def build(source: Path, folder: Path) -> Path:
    """Build an extension as C++17 without a warning, into a folder; skip where there is nothing to build it with."""
    compiler = shutil.which("c++")
    python = sysconfig.get_paths()["include"]
    if compiler is None or not (Path(python) / "Python.h").exists():
        pytest.skip("no C++ compiler, or no C headers of Python, to build an extension with")
    built = folder / f"{source.stem}.so"
    flags = ["-shared", "-fPIC", "-std=c++17", "-O1", "-pthread", *WARNINGS]
    if sys.platform == "darwin":
        flags += ["-undefined", "dynamic_lookup"]
    folders = ["-isystem", python, "-I", include_directory()]
    subprocess.run([compiler, *flags, *folders, str(source), "-o", str(built)], check=True)
    return built


def load(library: Path) -> ModuleType:
    """Return the module of an extension that was built, or of a script."""
    spec = importlib.util.spec_from_file_location(library.stem, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
