"""The torch door: a DataLoader that replaces torch's own, and loaders whose batches are tensors.

from penstock.torch import DataLoader

loader = DataLoader(dataset, batch_size=256, shuffle=True, num_workers=8)
"""

from penstock._optional import need

need("torch", "PyTorch", extra="torch")

from penstock.torch._data_loader._data_loader import DataLoader
from penstock.torch._loader import Loader
from penstock.torch._rank_reports import rank_reports

__all__ = ["DataLoader", "Loader", "rank_reports"]
