"""Ranks: the numbers of ranks that a dataset's batches can be cut for, and whether all ranks end on the same step."""

from typing import Literal, TypeAlias

from penstock._frozen import frozen
from penstock._graph import Batch, Bucket, Map, Node, Substitute, chain_text, is_endless, parents_of, refuse
from penstock._plan._plan import Shard
from penstock._plan._program import Batches, Streaming
from penstock.errors import UsageError

Ending: TypeAlias = Literal["positions", "limit", "endless", "uneven"]


@frozen
class Ranks:
    """The facts of a dataset that decide how many ranks can share it, and how they end."""

    sizes: tuple[int, ...]
    """Rows of the global batches, each of which is cut; empty without a batch."""
    ending: Ending
    """Why all ranks end on the same step: by positions alone, by a limit, by having no end; or that they may not."""
    short: int = 0
    """Rows of a last batch that must be cut although it isn't full; 0 for none."""
    uncut: str = ""
    """The name of a step above the batch that can't be cut into ranks, if there is one."""

    def accepts(self, count: int, *, uneven: bool = False) -> bool:
        """Return whether the dataset can be run on `count` ranks."""
        if count == 1:
            return True
        if not self.sizes or self.uncut or any(size % count for size in self.sizes):
            return False
        return not 0 < self.short < count and (uneven or self.ending != "uneven")


def ranks_of(node: Node, program: Batches | Streaming) -> Ranks:
    """Return what ranks share of a dataset."""
    batch = program.batch
    sizes = () if batch is None else _sizes(batch)
    uncut = _replacing(node, batch)
    if program.is_indexed:
        return Ranks(sizes, "positions", _short_rows(program.batches), uncut)
    ending: Ending = "endless" if is_endless(node) else "limit" if program.even_limit is not None else "uneven"
    return Ranks(sizes, ending, uncut=uncut)


def _replacing(node: Node, batch: Batch | Bucket | None) -> str:
    """Return the name of a step above the batch that replaces batches, whole ones; empty if there is none."""
    while batch is not None and node is not batch:
        if isinstance(node, Map) and isinstance(node.on_error, Substitute):
            return node.name
        (node,) = parents_of(node)
    return ""


def _sizes(batch: Batch | Bucket) -> tuple[int, ...]:
    return batch.bucketing.rows if isinstance(batch, Bucket) else (batch.size,)


def _short_rows(program: Batches) -> int:
    batch = program.batch
    if batch is None or batch.remainder != "keep" or is_endless(batch.parent):
        return 0
    return program.rest


def check_ranks(node: Node, program: Batches | Streaming, shard: Shard) -> None:
    """Raise the error that says why a dataset can't be run on so many ranks, if it can't."""
    ranks = ranks_of(node, program)
    if ranks.accepts(shard.count, uneven=shard.uneven):
        return
    if not ranks.sizes:
        refuse(
            node, "shard= cuts global batches, and there is none. Use batch(n), or shard(i, count) for a fixed split."
        )
    batch = program.batch
    if isinstance(batch, Bucket):
        _check_buckets(batch, shard)
    for size in ranks.sizes:
        if size % shard.count:
            raise UsageError(
                f"a global batch must divide by the number of ranks; got batch({size}) on {shard.count} ranks"
            )
    if ranks.ending == "uneven" and not shard.uneven:
        refuse(
            node,
            "how many batches each rank gets is only known after reading, so ranks may end on different steps. Use "
            "limit(n) after the batch, or repeat(); or say Shard(rank, count, uneven=True) if the training loop copes "
            "with that.",
        )
    if batch is not None and 0 < ranks.short < shard.count:
        raise UsageError(
            f"the last batch of {chain_text(batch)} has {ranks.short} rows for {shard.count} ranks, so some "
            'would end a step early. Use remainder="drop" or remainder="pad".'
        )
    refuse(
        node,
        f"on_error=Substitute(…) of step {ranks.uncut!r} stands above batch(), where it can't be cut into ranks. "
        "Use it before batch().",
    )


def _check_buckets(batch: Bucket, shard: Shard) -> None:
    for boundary, rows in zip(batch.bucketing.boundaries, batch.bucketing.rows, strict=True):
        if rows % shard.count:
            raise UsageError(
                "the rows of every bucket must divide by the number of ranks; got "
                f"{rows} rows in the bucket up to {boundary} on {shard.count} ranks. Choose others."
            )
