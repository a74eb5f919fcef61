"""Pickles in shared memory: the results of a process for other processes, with the data of arrays beside them."""

from mmap import mmap
from typing import Final, cast

import numpy as np

from penstock._memory import Lease, Region, aligned
from penstock._pickles import Pickled, load

LARGE_BYTES: Final = 65_536
"""Arrays up to this size are copied out, so that keeping a label doesn't keep the memory of its images."""


def joined(parcels: list[Pickled]) -> tuple[Pickled, list[slice]]:
    """Return parcels as one, and where in it each lies."""
    pieces: list[tuple[int, bytes | memoryview]] = []
    places: list[slice] = []
    end = 0
    for parcel in parcels:
        start = aligned(end)
        pieces += ((start + offset, piece) for offset, piece in parcel.pieces)
        end = start + parcel.nbytes
        places.append(slice(start, end))
    return Pickled(end, pieces), places


def write(parcel: Pickled, region: Region, start_bytes: int) -> None:
    """Write a parcel into memory, large pieces without the interpreter's lock."""
    memory = np.frombuffer(cast("memoryview", region), np.uint8)
    for offset, piece in parcel.pieces:
        start = start_bytes + offset
        memory[start : start + len(piece)] = np.frombuffer(piece, np.uint8)


def read(memory: Region | Lease | mmap, place: slice, copied_bytes: int) -> object:
    """Return the value of a parcel; arrays above `copied_bytes` lie in the memory, and keep it."""
    return load(memoryview(cast("memoryview", memory))[place], copied_bytes=copied_bytes)
