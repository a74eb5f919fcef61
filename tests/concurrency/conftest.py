"""The extension of jobs, built once, whose gate is open and whose jobs are gone after every test; and the loops.

What the event loops open once for the whole process is opened before the first test is watched.
"""

import gc
import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.concurrency.loops import LOOPS, run_on, settle
from tests.concurrency.native_extension import Extension, build, load


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the path of the built extension."""
    return build(tmp_path_factory)


@pytest.fixture
def extension(library: Path) -> Iterator[Extension]:
    """Yield the extension's module, with its gate closed; afterwards open it, and check that no job is left."""
    module = load(library)
    module.close_gate()
    yield module
    module.open_gate()
    gc.collect()
    assert module.living() == 0


@pytest.fixture(autouse=True, scope="session")
def settled_loops() -> None:
    """Run each loop once: libuv keeps a pipe for signals until the process ends."""
    for loop in LOOPS:
        if loop == "asyncio" or importlib.util.find_spec("uvloop") is not None:
            run_on(loop, settle)
