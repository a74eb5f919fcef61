"""Documents whose tokens say where they are from."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

import penstock as ps


def documents(lengths: list[int]) -> list[NDArray[np.int64]]:
    """Return documents whose tokens say which document and position they are from."""
    return [np.arange(length) + 1000 * number + 1 for number, length in enumerate(lengths)]


def bare(lengths: list[int]) -> ps.Dataset:
    """Return documents that are bare arrays."""
    return ps.read(documents(lengths))


def all_tokens(lengths: list[int]) -> Counter[int]:
    """Return every token of the documents."""
    return Counter(token for document in documents(lengths) for token in document.tolist())
