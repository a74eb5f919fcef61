"""Work for the hosts of a Ray cluster: the batches of loaders, and the files of a dataset.

import penstock.ray

with penstock.ray.Pool(32) as pool, ps.Loader(dataset, workers=pool) as loader:
    ...
penstock.ray.write(dataset, "/shared/train", "parquet")
"""

from penstock._optional import need

need("ray", "Ray", extra="ray")

from penstock.ray._pool import Pool
from penstock.ray._write import write

__all__ = ["Pool", "write"]
