"""The caches of elements, and the format that they keep an element in."""

from penstock._storage import MISSING as MISSING
from penstock._storage import DiskCache as DiskCache
from penstock._storage import MemoryCache as MemoryCache
from penstock._storage._encode import decode as decode
from penstock._storage._encode import encode as encode
