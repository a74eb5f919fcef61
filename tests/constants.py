"""The constants of the library that tests change, so that a wait is short, or a limit is soon reached."""

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import pytest

_MODULES: Final = {
    "COLLATE_JOB_SECONDS": "penstock._runtime._collate_supplier",
    "COLLATE_WHOLE_SECONDS": "penstock._runtime._collate_supplier",
    "EMPTY_ELEMENTS": "penstock._streaming._empty_passes",
    "FUNCTION_SECONDS": "penstock._runtime._worker_threads",
    "LONG_WAIT_SECONDS": "penstock._runtime._failing_work",
    "LOOKED_AT_SECONDS": "penstock._loader._hints",
    "MAX_OPEN": "penstock.sources._kept_open",
    "RETRY_WAITS_SECONDS": "penstock.sources._reading",
    "SLOW_SECONDS": "penstock._loader._hints",
    "FOLD_BYTES": "penstock._runtime._fold_thread",
    "FOLD_SECONDS": "penstock._runtime._fold_thread",
    "STALL_SECONDS": "penstock._runtime._failing_work",
    "WASTED_ELEMENTS": "penstock._runtime._recorder",
    "_MAX_BLOCK": "penstock._writing._write",
    "_PART_SECONDS": "penstock._writing._write",
    "_IDLE_SECONDS": "penstock.ray._team",
    "PATIENCE_SECONDS": "penstock.ray._dealer",
    "_LATE_SECONDS": "penstock.ray._dealer",
    "_ROOM_BYTES": "penstock._runtime._process_scheduler",
}
SetConstant: TypeAlias = Callable[[str, Any], None]


@pytest.fixture
def set_constant(monkeypatch: pytest.MonkeyPatch) -> SetConstant:
    """Return a function that gives a constant, by its name, another value until the test ends."""
    return lambda name, value: monkeypatch.setattr(f"{_MODULES[name]}.{name}", value)
