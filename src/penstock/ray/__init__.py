"""Work for the hosts of a Ray cluster: files of a dataset, written by tasks on all hosts.

import penstock.ray

penstock.ray.write(dataset, "/shared/train", "parquet")
"""

from penstock._optional import need

need("ray", "Ray", extra="ray")

from penstock.ray._write import write

__all__ = ["write"]
