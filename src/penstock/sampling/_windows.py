"""placeholder"""
from dataclasses import dataclass
import numpy as np
from numpy.typing import NDArray
@dataclass(frozen=True, slots=True, eq=False)
class WindowTable:
    """Windows."""
    lengths: NDArray[np.int64]
    length: int
    stride: int
    partial: str
    def __len__(self) -> int: raise NotImplementedError
    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]: raise NotImplementedError
