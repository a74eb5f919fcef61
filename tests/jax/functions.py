"""Functions of datasets that draw with a JAX key, for worker processes."""

import importlib
import os
from typing import Any

import numpy as np


def draw(number: int, key: Any) -> Any:
    """Return the element, two numbers drawn with the key, and the platform on which JAX computes here."""
    jax: Any = importlib.import_module("jax")
    return {"number": number, "drawn": np.asarray(jax.random.uniform(key, (2,))), "where": jax.default_backend()}


def sees(number: int) -> str:
    """Return the platforms that this process lets JAX use."""
    del number
    return os.environ["JAX_PLATFORMS"]
