"""Owners of memory: leased memory, how many owners of `Bytes` live, and the memory that arrays use again."""

import gc
from collections.abc import Generator
from contextlib import contextmanager

from penstock._memory import Memory as Memory
from penstock._memory import recycled_bytes as recycled_bytes
from penstock._native import living_byte_owners as living_byte_owners


@contextmanager
def every_owner_goes() -> Generator[None]:
    """Check that as many owners live afterwards as before."""
    gc.collect()
    before = living_byte_owners()
    yield
    gc.collect()
    assert living_byte_owners() == before
