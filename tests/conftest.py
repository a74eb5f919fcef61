"""The setup of every test: nothing leaks, and properties are tried as the profile says.

`HYPOTHESIS_PROFILE=soak` is the long profile: it tries each property on 2,000 examples instead of the same 30 or fewer
at every run, and the tests that the short one leaves out run as well.
"""

import gc
import signal
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.constants import set_constant as set_constant
from tests.leaks import nothing_leaks as nothing_leaks
from tests.leaks import pytest_runtest_makereport as pytest_runtest_makereport
from tests.leaks import settled_module as settled_module
from tests.leaks import settled_process as settled_process
from tests.leaks import started_zarr as started_zarr
from tests.profiles import IS_LONG, PROFILE
from tests.programs.forked import forked_programs as forked_programs

# The leak check collects after every test; between, a test's own collections would walk through what others keep.
gc.set_threshold(20_000)
# A shell that runs the tests in the background may have left SIGINT ignored, which every child would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "ci",
    max_examples=30,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "soak",
    max_examples=2_000,
    deadline=None,
    print_blob=True,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(PROFILE)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without Python's garbage collector, which would walk through all of them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put files with slow tests first; leave out, in the short profile, the tests of the long one, unless named.

    Two processes take file after file, so that a slow one at the end would leave the other process without work.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
    items.sort(key=lambda item: item.path not in slow)
    if IS_LONG or any("::" in argument for argument in config.args):
        return
    seen: dict[tuple[str, str], set[int]] = {}
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    for item in items:
        (left_out if _is_long(item) or _adds_nothing(item, seen) else kept).append(item)
    if left_out:
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("long") is not None


def _adds_nothing(item: pytest.Item, seen: dict[tuple[str, str], set[int]]) -> bool:
    """Return whether earlier cases had each value of the test's parameters, for tests that need no combinations."""
    call: Any = getattr(item, "callspec", None)
    if call is None or item.get_closest_marker("each_value") is None:
        return False
    function = item.nodeid.partition("[")[0]
    added = False
    for name, value in call.params.items():
        values = seen.setdefault((function, name), set())
        added = added or id(value) not in values
        values.add(id(value))
    return not added
