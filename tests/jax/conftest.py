"""JAX on the CPU with four devices, started once before the tests whose leaks are checked."""

import importlib.util
import os
from typing import Any

import pytest

FLAG = "--xla_force_host_platform_device_count"

if FLAG not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}=4".strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture(scope="session", autouse=True)
def settled_jax(settled_process: None) -> None:
    """Start JAX's backend, which runs until the process ends."""
    del settled_process
    if importlib.util.find_spec("jax") is not None:
        jax: Any = pytest.importorskip("jax")
        jax.block_until_ready(jax.jit(jax.numpy.negative)(jax.numpy.zeros(4)))
        jax.random.uniform(jax.random.key(0))


@pytest.fixture
def devices() -> Any:
    """Four devices of the host."""
    jax: Any = pytest.importorskip("jax")
    found = jax.devices("cpu")
    if len(found) < 4:
        pytest.skip("JAX was started with fewer devices")
    return found[:4]
