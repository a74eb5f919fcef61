"""Caches of computed elements, in memory or on disk, with a limit in bytes."""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock._storage._disk_cache import DiskCache as DiskCache
    from penstock._storage._memory_cache import MemoryCache as MemoryCache
else:
    __getattr__ = _lazy.from_modules(
        __name__,
        DiskCache="penstock._storage._disk_cache",
        MemoryCache="penstock._storage._memory_cache",
    )
