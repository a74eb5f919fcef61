"""The chainable facade: every verb returns a new dataset with one more step; nothing is read until it is asked for."""

from penstock._dataset._dataset import Dataset
from penstock._dataset._read import integers, read

__all__ = ["Dataset", "integers", "read"]
