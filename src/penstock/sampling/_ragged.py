"""placeholder"""
from dataclasses import dataclass
from typing import Any
import numpy as np
from numpy.typing import NDArray
@dataclass(frozen=True, slots=True, eq=False)
class Ragged:
    """Counts."""
    counts: NDArray[np.int64]
    def __len__(self) -> int: return int(self.counts.sum())
    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        ends = np.cumsum(self.counts); parents = np.searchsorted(ends, positions, side="right")
        return parents, positions - (ends - self.counts)[parents]
