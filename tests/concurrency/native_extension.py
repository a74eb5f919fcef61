"""The extension `native_jobs`, built from the public headers, with jobs that wait at a gate."""

import importlib.util
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Protocol, cast

import pytest

from penstock.transport import include_directory

NAME = "native_jobs"
SOURCE = Path(__file__).parent / "extension" / f"{NAME}.cpp"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror")


class Extension(Protocol):
    """What the extension's module holds; capsules are of jobs."""

    def upper(self, source: object, /) -> object:
        """Return a job that makes Bytes of capitals."""
        ...

    def failing(self) -> object:
        """Return a job that throws `not today`."""
        ...

    def throwing_an_int(self) -> object:
        """Return a job that throws what is no exception."""
        ...

    def nothing(self) -> object:
        """Return a job without a result."""
        ...

    def filling(self, target: object, /) -> object:
        """Return a job that waits for the gate, then fills the target with x."""
        ...

    def open_gate(self) -> None:
        """Let all through, until it is closed."""
        ...

    def close_gate(self) -> None:
        """Let nobody through."""
        ...

    def await_waiting(self, count: int, /) -> None:
        """Wait until so many jobs wait at the gate."""
        ...

    def living(self) -> int:
        """Return how many owners of jobs and bytes the extension made that live."""
        ...


def build(folder: Path) -> Path:
    """Build the extension as C++17 without a warning, into a folder; skip where there is nothing to build it with."""
    compiler = shutil.which("c++")
    python = sysconfig.get_paths()["include"]
    if compiler is None or not (Path(python) / "Python.h").exists():
        pytest.skip("no C++ compiler, or no C headers of Python, to build an extension with")
    built = folder / f"{NAME}.so"
    flags = ["-shared", "-fPIC", "-std=c++17", "-O1", "-pthread", *WARNINGS]
    if sys.platform == "darwin":
        flags += ["-undefined", "dynamic_lookup"]
    folders = ["-isystem", python, "-I", include_directory()]
    subprocess.run([compiler, *flags, *folders, str(SOURCE), "-o", str(built)], check=True)
    return built


def load(library: Path) -> Extension:
    """Return the extension's module."""
    spec = importlib.util.spec_from_file_location(NAME, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return cast("Extension", module)
