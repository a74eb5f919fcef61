"""Caches of computed elements, in memory or on disk, with a limit in bytes."""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock._storage._cache import MISSING as MISSING
    from penstock._storage._cache import Cache as Cache
    from penstock._storage._cache import MemoryCache as MemoryCache
    from penstock._storage._cache import Missing as Missing
    from penstock._storage._disk_cache import DiskCache as DiskCache
else:
    # Loaded on demand: most datasets have no cache.
    __getattr__ = _lazy.from_modules(
        __name__,
        MISSING="penstock._storage._cache",
        Cache="penstock._storage._cache",
        MemoryCache="penstock._storage._cache",
        Missing="penstock._storage._cache",
        DiskCache="penstock._storage._disk_cache",
    )
