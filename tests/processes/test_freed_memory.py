"""A child process uses freed memory again, unless the user has set other limits."""

import os
import platform

import pytest

from tests.processes import functions
from tests.processes.helping import received, started

pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or "san" in os.environ.get("LD_PRELOAD", ""), reason="this is glibc's malloc"
)
PAGES = functions.ROUNDS * functions.BLOCKS * functions.BLOCK_BYTES // os.sysconf("SC_PAGE_SIZE")


def test_blocks_lie_where_others_were() -> None:
    """Images that come and go cost no fault of a page once a few have been there."""
    with started(functions.count_faults) as child:
        assert received(child) < PAGES / 20


def test_settings_of_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a variable of the C library's nothing is changed: here they are given back, and got again, each time."""
    monkeypatch.setenv("MALLOC_TRIM_THRESHOLD_", "131072")
    with started(functions.count_faults, start_method="spawn") as child:
        assert received(child) > PAGES / 2
