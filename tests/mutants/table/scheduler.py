"""Mutants of the scheduler, its queues and threads."""

from typing import Final

from tests.mutants.planting import Faults
from tests.mutants.table.golden import GOLDEN_THREADS

SCHEDULER: Final[Faults] = {
    "_runtime/_scheduler.py": {
        "scheduler: a slot is lost when its job is complete": (
            *("self._free.append(slot)", "pass"),
            "runtime/test_memory.py::test_more_batches_than_the_ring_has_slots",
        ),
        "scheduler: a cancelled slot isn't freed": (
            *("self._draining.add(slot)", "pass"),
            *("runtime/test_scheduler.py", "loader/test_lifecycle.py"),
        ),
        "scheduler: memory isn't returned": (
            *("self._discard([*region_pool.take_back(number), *region_pool.spare()])", "pass"),
            *("runtime/test_memory.py", "runtime/test_scheduler.py"),
        ),
        "scheduler: an error in a job is lost": (
            *("job.fail(job.blocks if claim.merge else claim.block, caught.taken())", "pass"),
            "loader/test_user_errors.py",
        ),
        "scheduler: a postponed action waits for the next owner": (
            *("held.hold()\n self._run_postponed()", "held.hold()"),
            *("runtime/test_scheduler.py", "loader/test_two_threads.py"),
        ),
        "scheduler: a wait looks only before it clears its bell": (
            *("listener.clear()\n if is_over():\n return", "listener.clear()"),
            "runtime/test_scheduler.py",
        ),
        "scheduler: an error of worker_init is lost": (
            *("self._worker_error = caught.taken()", "pass"),
            "workers/test_threads.py",
        ),
        "memory: a region that is too small is reused": (
            *("least_bytes <= len(self._idle[index]) <= most_bytes", "len(self._idle[index]) <= most_bytes"),
            *("runtime/test_memory.py", GOLDEN_THREADS),
        ),
        "memory: idle regions are kept for ever": (
            *("max(len(self._idle) - self.most_idle, 0)", "0"),
            "workers/processes/test_merging.py::test_memory_of_batches_that_were_kept_is_given_back",
        ),
    },
    "_runtime/_region_pool.py": {
        "memory: each of many kept batches keeps a descriptor": (
            *("self._copies or (not self._is_bounded and self.kept(newest) > MAX_KEPT)", "self._copies"),
            "runtime/test_memory.py::test_few_of_many_kept_batches_take_a_descriptor",
        ),
        "region pool: memory that a fork has is used again": (
            *("if self._forks.pop(number) != forks():", "if self._forks.pop(number) > forks():"),
            "loader/test_programs.py::test_a_fork_keeps_the_batches_that_it_has",
        ),
    },
    "_runtime/_streams.py": {
        "stream: an error that `is_ready` met keeps its frames": (
            'self._error = without_frames(error, "While it was asked whether a batch is ready, in")',
            "self._error = error",
            "loader/test_descriptors.py",
        ),
        "stream: a function's SystemExit leaves `is_ready`": (
            "with CaughtFailure() as caught:  # a function's SystemExit is for `next` to raise, too",
            "with Caught(Exception) as caught:",
            "loader/test_user_errors.py::test_an_error_that_ends_programs_is_raised_by_next",
        ),
        "threads: a restart repeats the current job": (
            *("self._remaining = without(self._remaining, job.work.step_range)", "pass"),
            *("runtime/test_shapes.py", "workers/processes/trouble/test_deadly.py"),
        ),
        "threads: a restart repeats the batches before the failing one": (
            *("job.work.step_range.part(index, job.steps)", "job.work.step_range.part(0, job.steps)"),
            *("runtime/test_shapes.py", "workers/processes/trouble/test_deadly.py", "equivalence/test_processes.py"),
        ),
        "threads: out of order each batch of a job has the first one's step": (
            "None if self._plan.ordered else job.work.step_range.first.step + index",
            "None if self._plan.ordered else job.work.step_range.first.step",
            "loader/test_unordered.py",
        ),
        "threads: a stream is ready while workers compute its batch again": (
            *("if self._is_repeated(job):\n return True", "if self._is_repeated(job):\n                return False"),
            "loader/test_async.py::test_next_waits_for_no_worker_where_may_wait_is_none",
        ),
        "collate jobs: a batch that the consumer computes is ready, though it is left out": (
            "ready = self._ready = [self._supplier.computed(job, self._index)]\n if ready[-1]",
            "return False\n        if ready[-1]",
            "loader/test_async.py::test_other_tasks_run_while_the_consumer_computes_a_batch_that_workers_failed_at",
        ),
    },
    "_runtime/_fold_thread.py": {
        "fold: it counts filters by a method, in a cycle": (
            *("filtered=_counter(self._filtered))", "filtered=lambda *counts: self._filtered.append(counts))"),
            "loader/test_descriptors.py",
        ),
        "fold: a restart begins where the epoch began": (
            *("self._remaining.remove_delivered(token)", "pass"),
            *("loader/test_folds_ahead.py", "failures/test_resuming.py", "equivalence/test_folds_above_batches.py"),
        ),
        "fold: dropped elements are counted with each batch again": (
            *("self._filtered.clear()", "pass"),
            "loader/test_folds_ahead.py",
        ),
        "fold: its thread isn't ended with the stream": (
            *("self._stopped = True\n self._bell.ring()", "self._bell.ring()"),
            "loader/test_folds_ahead.py",
        ),
        "fold: its thread isn't woken when there is room": (
            *("return None\n self._room.ring()", "return None"),
            "loader/test_folds_ahead.py",
        ),
        "fold: one chunk more than promised waits": (
            *("if len(self._chunks) < self._max_chunks:", "if len(self._chunks) <= self._max_chunks:"),
            "loader/test_folds_ahead.py",
        ),
    },
    "_runtime/_queue.py": {
        "queue: a sampler's SystemExit ends the worker that makes jobs ahead": (
            "with CaughtFailure():\n            self._arm_all()",
            "try:\n            self._arm_all()\n        except Exception:\n            pass",
            "loader/test_ending_errors.py::test_a_sampler_above_batch_raises_at_its_own_step",
        ),
        "threads: with bounded memory, as many jobs of large batches are ahead as without": (
            *("if plan.memory is None or not batch_bytes:", "if True:"),
            "runtime/test_memory.py::test_threads_bound_the_results_of_functions",
        ),
        "threads: without memory=, large results of functions share a job": (
            *("min(usual, bounded) / self._jobs", "bounded / self._jobs"),
            "runtime/test_memory.py::test_threads_have_a_usual_bound_for_the_results_of_functions",
        ),
        "threads: functions above rows with whole parents have no bound": (
            *("if whole and memory is None and program.batch is None and not program.above:", "if whole:"),
            "runtime/test_memory.py::test_functions_above_rows_with_whole_parents_have_a_bound",
        ),
        "queue: one job more than promised has memory": (
            "self._regions_in_use() < self._most_regions",
            "self._regions_in_use() <= self._most_regions",
            "runtime/test_memory.py",
        ),
        "queue: closing leaves the armed jobs to the workers": (
            *("self._scheduler.cancel(self._armed.popleft()[0])", "self._armed.popleft()"),
            *("runtime/test_scheduler.py", "loader/test_lifecycle.py"),
        ),
        "queue: the consumer isn't woken when another thread closes": (
            *("self._client.listener.ring()", "pass"),
            "runtime/test_scheduler.py",
        ),
        "queue: memory= is exceeded by one job": (
            "self._client.region_pool.used_bytes + job.memory_bytes > self._memory:\n return False",
            "self._client.region_pool.used_bytes > self._memory:\n            return False",
            "runtime/test_memory.py",
        ),
    },
    "_runtime/_recovery.py": {
        "threads: a crashing substitute is tried without end": (
            *("at is None or at in client.crashing_rows or not handles", "at is None or not handles"),
            "workers/processes/trouble/test_deadly.py",
        ),
    },
    "_runtime/_failing_work.py": {
        "stalls: a slow consumer counts as a stall": (
            "self._began if stall is None else max(self._began, stall.since)",
            "self._began if stall is None else stall.since",
            "runtime/test_patience.py",
        ),
        "stalls: the same wait is logged twice": (
            *("self._has_warned = True", "self._has_warned = False"),
            "runtime/test_patience.py",
        ),
    },
    "_runtime/_collate_supplier.py": {
        "fold: without memory=, large results of threads above it share a job": (
            *("by_bytes = MADE_BYTES / jobs / max(learned.made_row_bytes, 1)", "by_bytes = 1e9"),
            "runtime/test_memory.py::test_threads_have_a_usual_bound_for_the_results_of_functions",
        ),
        "collate jobs: a restart begins where the stream was opened": (
            *("self._step_range.after(self._steps, self._token)", "self._step_range"),
            "workers/test_rows_above_folds.py",
            "equivalence/test_folds_above_batches.py",
            "equivalence/test_loader.py",
        ),
        "collate jobs: a crash in a batch that one process makes is the batch's": (
            *("if job.work.shape.ends_at_crash and failure.is_suspect:", "if False:"),
            "workers/test_rows_above_folds.py::test_a_crashing_row_above_a_fold_is_named",
        ),
        "collate jobs: with bounded memory, jobs of batches are as large as without": (
            *("if memory is not None:", "if False:"),
            "runtime/test_memory.py::test_batches_of_all_sizes_keep_the_bound",
        ),
    },
    "_runtime/_collate_work.py": {
        "collate jobs: the rows of a batch begin one row late": (
            "block, first = divmod(start, self._task.block_rows)",
            "block, first = divmod(start + 1, self._task.block_rows)",
            *("workers/test_rows_above_folds.py", "workers/processes/test_collate_jobs.py"),
        ),
    },
    "_runtime/_recorder.py": {
        "recorder: an event that is reported twice counts twice": (
            *("if identity in self._events:", "if False:"),
            "loader/test_replaced_warnings.py::test_an_element_that_is_computed_again_counts_once",
        ),
        "recorder: an element's own substitution counts against its budget": (
            *("self._counts.get((Substituted, event.step), 0) - own", "self._counts.get((Substituted, event.step), 0)"),
            *("graph/test_on_error.py", "loader/test_user_errors.py"),
        ),
    },
}
