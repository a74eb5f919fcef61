"""Types of elements, as functions that strict type checkers follow."""

from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray


def is_dict(element: object) -> TypeGuard[dict[str, Any]]:
    """Return whether an element is a dict."""
    return isinstance(element, dict)


def is_list_or_tuple(element: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Return whether an element is a list or a tuple."""
    return isinstance(element, list | tuple)


def is_numpy(element: object) -> TypeGuard[NDArray[Any] | np.generic]:
    """Return whether an element is an array or a NumPy scalar."""
    return isinstance(element, np.ndarray | np.generic)


def as_array(element: Any) -> NDArray[Any]:
    """Return an array or a NumPy scalar as an array."""
    return np.asarray(element)
