"""The extension of jobs, built once, whose gate is open and whose jobs are gone after every test; and the loops."""

import asyncio
import contextlib
import gc
import importlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.concurrency.native_extension import Extension, build, load

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built extension."""
    return build(tmp_path_factory.mktemp("native_jobs"))


@pytest.fixture
def extension(library: Path) -> Iterator[Extension]:
    """Return the extension's module, with its gate closed; afterwards it is opened, and no job may be left."""
    module = load(library)
    module.close_gate()
    yield module
    module.open_gate()
    gc.collect()
    assert module.living() == 0


@pytest.fixture(scope="session")
def settled_uvloop() -> None:
    """Open what uvloop opens once and keeps to the end, where it is installed."""
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("uvloop").new_event_loop().close()


@pytest.fixture(params=["asyncio", "uvloop"])
def new_loop(request: pytest.FixtureRequest, settled_uvloop: None) -> NewLoop:  # noqa: ARG001 - opened before the test
    """Return what makes a new loop of one kind."""
    if request.param == "uvloop":
        found: NewLoop = pytest.importorskip("uvloop").new_event_loop
        return found
    return asyncio.new_event_loop
