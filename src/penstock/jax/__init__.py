"""The door to JAX: loaders whose batches are pytrees of its arrays, global ones where a sharding is given."""

from penstock._optional import need

need("jax", "JAX", extra="jax")

from penstock.jax._loader import Loader

__all__ = ["Loader"]
