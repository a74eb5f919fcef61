"""Processes compute with as many threads as their limit says, unless the user has set another."""

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from penstock._processes._begin import limit_threads, thread_variables
from tests.processes import functions
from tests.processes.helping import StartMethod, received, started


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what the tests themselves run under."""
    for name in thread_variables(1):
        monkeypatch.delenv(name, raising=False)
    for name in ("OMP_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("start_method", "threads", "found"), [("spawn", 1, "1"), ("forkserver", 3, "3"), ("forkserver", None, None)]
)
def test_processes_are_limited(start_method: StartMethod, threads: int | None, found: str | None) -> None:
    """The variables that libraries read are set in a process, and left alone for None."""
    with started(functions.report, start_method=start_method, threads=threads) as child:
        environment = received(child)["environment"]
    assert (environment["OMP_NUM_THREADS"], environment["OPENCV_FOR_THREADS_NUM"]) == (found, found)
    assert "OMP_NUM_THREADS" not in os.environ


def test_settings_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable of the user's is the processes' too."""
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    with started(functions.report, threads=1) as child:
        environment = received(child)["environment"]
    assert (environment["OMP_NUM_THREADS"], environment["OPENCV_FOR_THREADS_NUM"]) == ("7", "1")


def test_a_script_that_looks_for_cuda_starts_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where scripts are imported before a fork, torch looks for a device without CUDA; a setting of the user stays."""
    name = "PYTORCH_NVML_BASED_CUDA_CHECK"
    for given, found in (None, "1"), ("0", "0"):
        if given is not None:
            monkeypatch.setenv(name, given)
        with started(functions.report) as child:
            assert received(child)["environment"][name] == found
        assert os.environ.get(name) == given


def test_loaded_libraries_get_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenCV and torch are limited where they are loaded already; torch not if the user has set its variable."""
    limits: list[tuple[str, int]] = []
    monkeypatch.setenv("OMP_NUM_THREADS", "7")

    def setter(name: str) -> Callable[[int], None]:
        return lambda count: limits.append((name, count))

    modules: Any = sys.modules
    monkeypatch.setitem(modules, "cv2", SimpleNamespace(setNumThreads=setter("cv2")))
    monkeypatch.setitem(modules, "torch", SimpleNamespace(set_num_threads=setter("torch")))
    before = dict(os.environ)
    try:
        limit_threads(thread_variables(2))
        assert limits == [("cv2", 2)]
        monkeypatch.delenv("OMP_NUM_THREADS")
        limit_threads(thread_variables(3))
        assert limits == [("cv2", 2), ("torch", 3)]
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
