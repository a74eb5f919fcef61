"""The public `Dataset` and the functions that make one. Each verb returns a new dataset with one more step."""

from typing import TYPE_CHECKING

from penstock import _lazy
from penstock._dataset._dataset import Dataset, T_co
from penstock._dataset._field_names import LOADER as LOADER_NAMES
from penstock._dataset._field_names import explain_methods as explain_methods
from penstock._dataset._field_names import loader_text as loader_text
from penstock._dataset._field_names import package_text as package_text
from penstock._dataset._mixing import concatenate, interleave, mix, zip_datasets
from penstock._dataset._read import integers, read, stream

if TYPE_CHECKING:
    from penstock._dataset._filter_index import filter_bits as filter_bits
else:
    __getattr__ = _lazy.from_modules(__name__, filter_bits="penstock._dataset._filter_index")

__all__ = [
    "LOADER_NAMES",
    "Dataset",
    "T_co",
    "concatenate",
    "integers",
    "interleave",
    "mix",
    "read",
    "stream",
    "zip_datasets",
]
