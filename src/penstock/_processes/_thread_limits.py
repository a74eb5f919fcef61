"""Limits of the threads of BLAS, OpenCV and torch in child processes, unless the user has set limits.

These libraries start a thread for each core in every process, so processes that compute side by side slow each other
down. Most libraries read an environment variable when they are loaded; in OpenCV and torch, a function sets the limit
later, too.
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
    """Return the environment variables that limit a process to so many threads, except those that the user has set."""
    if threads is None:
        return {}
    return {name: str(threads) for name in _VARIABLES if name not in os.environ}


def limit_threads(variables: Mapping[str, str]) -> None:
    """Apply variables to this process: to libraries that it loads from now on, and to OpenCV and torch."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    for name, module, setter in (
        ("OPENCV_FOR_THREADS_NUM", "cv2", "setNumThreads"),
        ("OMP_NUM_THREADS", "torch", "set_num_threads"),
    ):
        limit: Any = getattr(sys.modules.get(module), setter, None)  # missing while it is being imported
        if limit is not None and name in variables:
            limit(int(variables[name]))
