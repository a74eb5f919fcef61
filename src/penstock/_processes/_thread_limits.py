"""Processes that compute side by side do so with few threads each, unless the user has said how many.

NumPy's, OpenCV's and torch's libraries start a thread for each core in every process, which slows all of them down.
Most read a variable when they are loaded; those that are loaded already are told.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any, Final

_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)


def thread_variables(threads: int | None) -> dict[str, str]:
    """Return the environment variables that limit a process to so many threads, without those that the user has set."""
    if threads is None:
        return {}
    return {name: str(threads) for name in _VARIABLES if name not in os.environ}


def limit_threads(variables: Mapping[str, str]) -> None:
    """Apply variables to this process: to what it loads from now on, and to OpenCV and torch."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    for name, module, setter in (
        ("OPENCV_FOR_THREADS_NUM", "cv2", "setNumThreads"),
        ("OMP_NUM_THREADS", "torch", "set_num_threads"),
    ):
        limit: Any = getattr(sys.modules.get(module), setter, None)  # missing while it is being imported
        if limit is not None and name in variables:
            limit(int(variables[name]))
