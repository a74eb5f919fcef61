"""Keys of `jax.random` made of seeds: all 64 bits of each, on the host, whatever JAX's configuration.

`jax.random.key(seed)` would drop the upper half unless 64-bit numbers are enabled, and among millions of elements some
would share a key; and it follows the default algorithm, which a user may have changed. So the words are handed over as
they are, to the algorithm that takes two of them.

JAX is imported by name, by whoever makes the first key: what only describes a dataset doesn't load it.
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
    """Return the device of the host: a key that lies there keeps what is computed from it there."""
    jax = importlib.import_module("jax")
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise UsageError(
            f'rng="jax" computes on the host, and {_VARIABLE} leaves that out ({error}). Add it, as in "cuda,cpu".'
        ) from error


def leave_accelerators() -> None:
    """Have JAX see the host alone in this process, a worker: an accelerator that it opened would lose most memory."""
    os.environ[_VARIABLE] = "cpu"
    config: Any = getattr(sys.modules.get("jax"), "config", None)  # it has read the variable already
    if config is not None:
        config.update("jax_platforms", "cpu")
