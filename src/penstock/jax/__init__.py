"""The loader for JAX, whose batches are pytrees of JAX arrays, global ones if a sharding is given."""

from penstock._optional import need

need("jax", "JAX", extra="jax")

from penstock.jax._loader import Loader

__all__ = ["Loader"]
