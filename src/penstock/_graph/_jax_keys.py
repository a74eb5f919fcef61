"""Keys of `jax.random` from 64-bit seeds, on the host, independent of JAX's configuration.

`jax.random.key(seed)` drops the upper half of the seed unless 64-bit numbers are enabled, so among millions of elements
some would share a key; and it uses the default algorithm, which the user may have changed. So the two 32-bit words are
passed as key data of "threefry2x32".

JAX is imported when the first key is made: describing a dataset doesn't load it.
"""

import functools
import importlib
import importlib.util
import os
import sys
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock.errors import MissingDependencyError, UsageError

_ALGORITHM: Final = "threefry2x32"
_VARIABLE: Final = "JAX_PLATFORMS"


def need_jax() -> None:
    """Raise a MissingDependencyError where JAX isn't installed."""
    if importlib.util.find_spec("jax") is None:
        raise MissingDependencyError("JAX", extra="jax")


def keys_of(seeds: NDArray[np.uint64]) -> list[Any]:
    """Return a key for each seed."""
    jax = importlib.import_module("jax")
    words = np.stack([seeds >> np.uint64(32), seeds & np.uint64(0xFFFFFFFF)], axis=-1).astype(np.uint32)
    return list(jax.random.wrap_key_data(jax.device_put(words, _host()), impl=_ALGORITHM))


def key_of(seed: int) -> object:
    """Return the key of one seed."""
    return keys_of(np.array([seed], np.uint64))[0]


@functools.cache
def _host() -> object:
    """Return the host's device: a key on it keeps the arrays that are computed from it on the host."""
    jax = importlib.import_module("jax")
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise UsageError(
            f'rng="jax" computes on the host, and {_VARIABLE} leaves it out ({error}). Add it, as in "cuda,cpu".'
        ) from error


def leave_accelerators() -> None:
    """Restrict JAX to the host in a worker process: opening an accelerator would take most of its memory."""
    os.environ[_VARIABLE] = "cpu"
    config: Any = getattr(sys.modules.get("jax"), "config", None)  # a loaded JAX has read the variable already
    if config is not None:
        config.update("jax_platforms", "cpu")
