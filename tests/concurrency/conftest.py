"""What the event loops open once for the whole process is opened before the first test is watched."""

import importlib.util

import pytest

from tests.concurrency.loops import LOOPS, run_on, settle


@pytest.fixture(autouse=True, scope="session")
def settled_loops() -> None:
    """Run each loop once: libuv keeps a pipe for signals until the process ends."""
    for loop in LOOPS:
        if loop == "asyncio" or importlib.util.find_spec("uvloop") is not None:
            run_on(loop, settle)
