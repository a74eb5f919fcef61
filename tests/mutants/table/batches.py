"""Mutants of a step and its batch: rows, jobs and how they are cut."""

from typing import Final

from tests.mutants.planting import Faults
from tests.mutants.table.golden import GOLDEN, GOLDEN_THREADS

BATCHES: Final[Faults] = {
    "batching/_leaf.py": {
        "rows: bytes between fields stay as they are": (
            *("content[..., ~_covered(place.dtype)] = 0", "del content"),
            *("batching/test_write.py", "batching/test_stack_arrays.py"),
        ),
        "rows: a fill beyond the dtype becomes infinite": (
            *("if np.isfinite(number) == np.isfinite(value) else None", ""),
            *("batching/test_pad.py", "batching/test_pack.py"),
        ),
    },
    "batching/_pad_at_once.py": {
        "pad: the mask marks a value beyond each row": (
            *("< np.array(lengths[0])", "<= np.array(lengths[0])"),
            "batching/test_pad.py",
        ),
        "pad: the lengths of the first leaf are those of all": (
            *("any(each != lengths[0] for each in lengths)", "False"),
            "batching/test_pad.py",
        ),
    },
    "sources/_kept_blocks.py": {
        "blocks: one that another thread decodes is waited for": (
            *("block in self._opening or ", ""),
            "sources/test_kept_blocks.py",
        ),
        "blocks: one that another process decodes is waited for": (
            *(" or self._shared.is_being_decoded(block)", ""),
            "sources/test_kept_blocks.py",
        ),
    },
    "batching/_stack_arrays.py": {
        "rows: the memory of conjugated tensors counts as their values": (
            *('"f": 2, "b": 6}', '"f": 2, "b": 6, "c": 5}'),
            "batching/test_stack_tensors.py",
        ),
    },
    "_runtime/_batches.py": {
        "ranks: the last rank gets the remainder of an uneven batch": (
            "padded * shard.rank // shard.count, padded * (shard.rank + 1) // shard.count",
            "padded // shard.count * shard.rank, padded // shard.count * (shard.rank + 1)",
            *(GOLDEN, "equivalence/test_ranks.py"),
        ),
        "rows: a job's last short batch counts as full": (
            *("(step_range.steps - 1) * first.batch + last.total", "step_range.steps * first.batch"),
            GOLDEN_THREADS,
        ),
        "rows: data is counted from the batch's first row": (
            *("self.last + 1 - self.first - self.low", "self.last + 1 - self.first"),
            *(GOLDEN, "equivalence/test_ranks.py"),
        ),
        "rows: padding reads beyond the data": (
            *("np.minimum(positions, self.last) if self.data < self.total else positions", "positions"),
            GOLDEN,
        ),
        "rows: ranks that hold only padding share a stream": (
            *("max(rows.first + rows.low - rows.last, 0)", "0"),
            *("equivalence/test_ranks.py", GOLDEN),
        ),
        "remaining: the last step of a removed job stays": (
            *("before + taken.steps", "before + taken.steps - 1"),
            "loader/test_steps.py",
        ),
        "remaining: every batch counts as the first remaining one": (
            *("unit.step == step_ranges[0].first.step", "True"),
            "loader/test_steps.py",
        ),
        "inline: a careful batch is computed at once": (
            *("1 if careful else max(rows.total, 1)", "max(rows.total, 1)"),
            *("runtime/test_inline.py", "workers/processes/trouble/test_deadly.py"),
        ),
    },
    "_runtime/_jobs.py": {
        "job: the last block goes beyond the rows": (
            *("self.rows), total]", "self.rows), total + 1]"),
            *("runtime/test_jobs.py", "loader/test_programs.py"),
        ),
        "job: a batch's first row belongs to the batch before": (
            *("bisect.bisect_right(bounds, row) - 1", "bisect.bisect_left(bounds, row) - 1"),
            *("runtime/test_jobs.py", "workers/processes/trouble/test_deadly.py", "loader/test_stalls.py"),
        ),
    },
    "_runtime/_batch_work.py": {
        "threads: the memory of functions' results isn't measured": (
            *("0 if is_leased else own_bytes(", "0 if True else own_bytes("),
            "runtime/test_memory.py::test_threads_bound_the_results_of_functions",
        ),
        "job: a block takes a whole batch's rows": (
            *("max(start, first) - first, min(stop, end) - first", "max(start, first) - first, end - first"),
            *("runtime/test_jobs.py", "equivalence/test_ranks.py"),
        ),
        "job: rows that don't fit the layout are forgotten": (
            *("self._learned.is_irregular = True", "pass"),
            *("runtime/test_shapes.py", "runtime/test_jobs.py"),
        ),
    },
    "_runtime/_queue.py": {
        "cutter: a job exceeds its step range": (
            "min(self._batches_per_job(step_range, whole=whole), step_range.steps - self._next)",
            "self._batches_per_job(step_range, whole=whole)",
            *(GOLDEN_THREADS, "equivalence/test_loader.py"),
        ),
        "cutter: workers share parents that take most of the time": (
            *("self._is_read_ahead or self._learned.parents_take_most", "self._is_read_ahead"),
            "runtime/test_parents.py",
        ),
        "cutter: records of a parent are requested for each block": (
            *("self._is_read_ahead or self._learned.parents_take_most", "self._learned.parents_take_most"),
            "runtime/test_parents.py",
        ),
        "cutter: the step range after a finished one is skipped": (
            *("self._number, self._next = self._number + 1, 0", "self._number, self._next = self._number + 2, 0"),
            "loader/test_unordered.py",
        ),
    },
    "_runtime/_streaming.py": {
        "read in order: an error leaves the failed iteration open": (
            *("except BaseException:\n _end(chunks)", "except BaseException:\n                self._put_back(chunks)"),
            *("failures/test_resuming.py", "loader/test_user_errors.py"),
        ),
        "read in order: a thread that closes a loader ends a generator that runs": (
            *("chunks, self._chunks = self._chunks, None\n if", "chunks = self._chunks\n            if"),
            "loader/test_lifecycle.py",
        ),
    },
}
