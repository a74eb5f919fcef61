"""Functions of datasets that draw with a key of JAX's, for workers that are processes."""

import importlib
import os
from typing import Any

import numpy as np


def draw(number: int, key: Any) -> Any:
    """Return the element, two numbers drawn with the key, and where JAX computes here."""
    jax: Any = importlib.import_module("jax")
    return {"number": number, "drawn": np.asarray(jax.random.uniform(key, (2,))), "where": jax.default_backend()}


def sees(number: int) -> str:
    """Return what the process lets JAX see."""
    del number
    return os.environ["JAX_PLATFORMS"]
