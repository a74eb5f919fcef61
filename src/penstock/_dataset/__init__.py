"""The chainable facade: every verb returns a new dataset with one more step; nothing is read until it is asked for."""

from penstock._dataset._dataset import Dataset
from penstock._dataset._mixing import concatenate, interleave, mix, zip_datasets
from penstock._dataset._read import integers, read, stream

__all__ = ["Dataset", "concatenate", "integers", "interleave", "mix", "read", "stream", "zip_datasets"]
