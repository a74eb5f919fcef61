"""The door to torch: loaders whose batches are tensors."""

from penstock.torch._loader import Loader

__all__ = ["Loader"]
