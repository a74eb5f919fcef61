"""Accelerate: what `skip_first_batches` continues with, on another number of processes."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false

from contextlib import ExitStack
from typing import Any

from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader

from benchmarks.macro import elastic
from benchmarks.rivals import Contestants
from benchmarks.scenario import Contestant


def _runs(work: elastic.Work, batch_size: int, *, split: bool) -> elastic.Run:
    """Return a run whose loaders have batches of this many rows: of all processes if it is to be split, else of each.

    Its state is the number of steps.
    """

    def run(ranks: int, steps: int | None, state: object) -> tuple[list[int], object]:
        rows: list[int] = []
        before = state if isinstance(state, int) else 0
        numbers: Any = range(work.rows)
        for rank in range(ranks):
            prepared = prepare_data_loader(
                DataLoader(numbers, batch_size=batch_size, shuffle=True),
                num_processes=ranks,
                process_index=rank,
                split_batches=split,
                use_seedable_sampler=True,
                data_seed=7,
            )
            rest = skip_first_batches(prepared, before) if before else prepared
            rows += (row for batch in elastic.taken(rest, steps) for row in batch.tolist())
        return rows, before + (steps or 0)

    return run


def _elastic(work: elastic.Work, _: ExitStack) -> tuple[Contestant, ...]:
    first_ranks = work.runs[0][0]
    split, own = _runs(work, work.batch_size, split=True), _runs(work, work.batch_size // first_ranks, split=False)
    return (
        *elastic.contestants("Accelerate, the global batch split", "rival", split, work),
        *elastic.contestants("Accelerate, batches of each process", "rival", own, work),
    )


CONTESTANTS: dict[str, Contestants] = {"elastic": _elastic}
