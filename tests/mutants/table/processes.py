"""Mutants of worker and helper processes."""

from typing import Final

from tests.mutants.planting import Faults

PROCESSES: Final[Faults] = {
    "_runtime/_job_table.py": {
        "job table: a slot keeps the places of its last job": (
            *("data[:start] = self._cleared", "data[: 8 * _HEAD] = self._cleared[: 8 * _HEAD]"),
            "workers/processes/trouble/test_deaths.py",
            "workers/processes/trouble/test_deadly.py",
            "workers/processes/test_merging.py",
        ),
        "job table: a row that isn't known is row -1": (
            *("None if row == _UNKNOWN else row", "row"),
            *("workers/processes/trouble/test_deadly.py", "workers/processes/trouble/test_deaths.py"),
        ),
    },
    "_runtime/_process_scheduler.py": {
        "processes: a job of larger batches than those before takes the memory of the next ones": (
            *("if client.plan.memory is None or job.steps == 1:", "if True:"),
            "runtime/test_memory.py::test_batches_of_all_sizes_keep_the_bound",
        ),
        "processes: a row that crashes workers alone is tried as often as others": (
            *("at.is_trial or crashes >=", "crashes >="),
            "workers/processes/trouble/test_deadly.py",
        ),
        "processes: of two crashing rows the later one is named": (
            "(at.batch_index or 0, at.row or 0) < (known[0].batch_index or 0, known[0].row or 0)",
            "(at.batch_index or 0, at.row or 0) > (known[0].batch_index or 0, known[0].row or 0)",
            "workers/processes/trouble/test_deadly.py::test_of_two_crashing_rows_the_first_is_named",
        ),
        "processes: a crashing block counts as computed": (
            *("self._job_table.set_outcome(at.slot, at.block, CRASHING)", "pass"),
            "workers/processes/trouble/test_deadly.py",
        ),
        "processes: memory that was too small isn't enlarged": (
            *("max(self._room_bytes, 2 * needed_bytes)", "self._room_bytes"),
            "workers/processes/test_merging.py::test_memory_that_was_too_small_is_larger_for_later_batches",
        ),
    },
    "_runtime/_process_work.py": {
        "worker: a function's array and a later element share memory": (
            *("region = self._regions.reopen(memory)", "pass"),
            "workers/processes/test_merging.py::test_large_elements_arrive_as_functions_returned_them",
        ),
        "worker: the rows of a block that crashed a worker are computed together": (
            *("if self._job_table.crashes(slot, block):", "if self._job_table.crashes(slot, block) > 1:"),
            *("workers/processes/trouble/test_deadly.py", "workers/processes/trouble/test_deaths.py"),
        ),
        "worker: a slot's old job is computed again": (
            *("known is not None and known[0].number == number", "known is not None"),
            "workers/processes/test_processes.py",
        ),
        "worker: a batch with a failed row is merged": (
            *("elif self._job_table.outcome(slot) == FINE:", "else:"),
            "workers/processes/trouble/test_exceptions.py::test_a_batch_whose_rows_failed_is_not_merged",
        ),
        "worker: freed memory stays mapped": (
            *("self._regions.keep(living)", "pass"),
            "workers/processes/test_merging.py::test_memory_of_batches_that_were_kept_is_given_back",
        ),
        "worker: a descriptor is left open for each region": (
            *("for descriptor in descriptors:\n os.close(descriptor)", "pass"),
            "workers/processes/test_merging.py::test_memory_of_batches_that_were_kept_is_given_back",
        ),
        "worker: the semaphore of merges isn't released": (
            *("fcntl.lockf(self._descriptor, fcntl.LOCK_UN, 1, self._turn)", "pass"),
            "workers/processes/test_merging.py",
        ),
    },
    "_runtime/_batch_work.py": {
        "worker: a merge writes to the rows that its successor needs": (
            *("(map_leaves(_copy, batch) for batch in batches) if self._in_processes else batches", "batches"),
            "workers/processes/test_collate_jobs.py::test_a_crash_leaves_the_batch_unchanged",
        ),
    },
    "_runtime/_sent_batches.py": {
        "worker: an array that a batch has twice arrives as two": (
            *("return len(set(map(id, leaves))) < len(leaves)", "return False"),
            "workers/processes/test_merging.py::test_batches_arrive_as_functions_returned_them",
        ),
    },
    "_tensors.py": {
        "worker: batches of tensors share a count of writes": (
            *("list(map(torch.from_numpy, arrays))", "[*torch.from_numpy(np.stack([*arrays])).unbind()]"),
            "loader/test_tensors.py",
        ),
        "worker: a tensor that requires a gradient arrives without": (
            *("or tensor.requires_grad or", "or"),
            "loader/test_tensors.py",
        ),
    },
    "torch/_data_loader/_workers.py": {
        "drop-in: a crash in a worker that reads a whole batch is one of the batch": (
            *("if job.steps > 1 or crashed_whole:", "if job.steps > 1:"),
            "torch/test_dying_workers.py",
        ),
        "drop-in: the bytes of batches don't bound a job": (
            *("min(by_bytes, MAX_JOB_BATCHES)", "MAX_JOB_BATCHES"),
            "torch/test_dying_workers.py::test_a_job_has_several_small_batches",
        ),
    },
    "torch/_data_loader/_mapped_memory.py": {
        "drop-in: what the program has written to a private map is lost": (
            *("elif line.startswith(_CHANGED) and int(line.split()[1]):", "elif not line:"),
            "torch/test_mapped_memory.py::test_files_that_lack_the_data",
        ),
        "drop-in: another file that has the name is mapped": (
            *("(found := os.stat(path)).st_ino != known.file[1]:", "not (found := os.stat(path)):"),
            "torch/test_mapped_memory.py::test_files_that_lack_the_data",
        ),
    },
    "torch/_data_loader/_job.py": {
        "drop-in: rows draw other numbers where one worker makes their batch": (
            "return self._elements_of(step, range(len(indices)))",
            "return [code.dataset[index] for index in indices]",
            "torch/test_dying_workers.py",
        ),
        "drop-in: a collate function that drew gets the rows that it has changed": (
            "return seeded_anew(seed, collate, partial(self._whole, step))",
            "return seeded_anew(seed, collate, partial(lambda rows: rows, self._whole(step)))",
            "torch/test_dying_workers.py",
        ),
    },
    "_runtime/_worker_processes.py": {
        "watcher: a dead worker's blocks stay claimed": (
            *("self._ring.release_worker(number)", "pass"),
            "workers/processes/trouble/test_deaths.py",
        ),
        "watcher: a worker that hangs isn't killed": (
            *("if left <= 0:", "if left <= -60:"),
            "workers/processes/trouble/test_timeout.py",
        ),
    },
    "_processes/_supervisor.py": {
        "supervisor: a successor draws the random numbers of its crashed predecessor": (
            *("seeds = self._seeds(number, self._lives[number])", "seeds = self._seeds(number, 0)"),
            "processes/test_supervisor.py",
            "processes/test_global_seeds.py",
            "workers/processes/trouble/test_deaths.py",
        ),
        "supervisor: processes have modules as they were before a reload": (
            *("follow_reloads(starting.method)", "pass"),
            "processes/test_server.py::test_modules_that_the_program_loads_again",
        ),
        "supervisor: processes that never start are started for ever": (
            *("self._points[number] = 0 if started else", "self._points[number] = 0 if not started else"),
            "processes/test_supervisor.py",
            "workers/processes/trouble/test_deaths.py",
            "workers/processes/trouble/test_exceptions.py",
        ),
        "supervisor: processes that crash at once are restarted at once": (
            *("if fruitless <= prompt_restarts:", "if fruitless >= prompt_restarts:"),
            "processes/test_supervisor.py",
        ),
        "supervisor: the first process that crashes at its start has successors": (
            "limit = policy.limit if self._any_started or not policy.first_must_start else 1",
            "limit = policy.limit",
            *("processes/test_supervisor.py", "pipeline/processes/test_executor.py"),
        ),
    },
    "_processes/_reloads.py": {
        "fork server: an edit that the program has not loaded reaches its processes": (
            *("return bool(constants) and _assigns_one_of(self._path, constants)", "return True"),
            "processes/test_server.py::test_modules_whose_code_the_program_replaces",
        ),
    },
    "_torch_settings.py": {
        "torch: workers use other algorithms than the program": (
            *("if settings.determinism:", "if False:"),
            "torch/test_loader.py::test_torch_has_the_settings_of_the_program",
        ),
    },
    "_processes/_seeding.py": {
        "watcher: all workers draw the same random numbers": (
            *("(derive(seed, *path) for seed in", "(derive(seed, *path[1:]) for seed in"),
            "processes/test_global_seeds.py",
        ),
    },
    "_processes/_exceptions.py": {
        "children: an exception that unpickles as another one is sent as itself": (
            *("if type(pickle.loads(tried)) is type(error):", "if pickle.loads(tried):"),
            "processes/test_exceptions.py",
        ),
    },
    "_processes/_begin.py": {
        "children: a worker outlives its parent": (
            *("end_when_readable(descriptors)", "pass"),
            *("processes/test_children.py", "processes/test_program.py", "workers/processes/test_ends.py"),
        ),
    },
    "_processes/_fork_server.py": {
        "fork server: a worker's exit code isn't sent": (
            *("self._report(child.status, str(os.waitstatus_to_exitcode(how)).encode(), [])", "pass"),
            "processes/test_server.py",
        ),
        "fork server: no spare is kept ready after the first worker": (
            "self._spares and self._has_started and self._blank is None",
            "self._spares and not self._has_started and self._blank is None",
            "processes/test_server.py",
        ),
    },
    "_processes/_helper.py": {
        "helpers: one that hangs is never killed": (
            "self.child.wait_for_end(patience_seconds)\n self.child.kill()",
            "self.child.wait_for_end(patience_seconds)",
            "processes/test_helper.py",
        ),
        "helpers: a preparation that failed counts as a start": (
            *("if self._failure is not None:", "if self._failure is None and not self._has_started:"),
            "processes/test_helper.py",
        ),
        "helpers: the reader of one that can't be started stays open": (
            *("except BaseException:\n reader.close()\n raise", "except BaseException:\n            raise"),
            "processes/test_helper.py",
        ),
    },
    "_os/_interrupts.py": {
        "interrupts: an uninterrupted function is interrupted": (
            *("with HeldInterrupts():\n return function(*args, **kwargs)", "return function(*args, **kwargs)"),
            "os/test_interrupts.py",
        ),
        "interrupts: an inner scope replaces the outer one's handlers": (
            *("if scopes and scopes[-1].holds():", "if False:"),
            "os/test_interrupts.py",
        ),
        "interrupts: an inner scope holds nothing where the outer one waits": (
            *("if scopes and scopes[-1].holds():", "if scopes:"),
            "os/test_interrupts.py",
        ),
        "interrupts: a call keeps its object": (
            *("held.undo = None  # no call;", "pass  # no call;"),
            "os/test_interrupts.py",
        ),
    },
    "_runtime/_isolated.py": {
        "isolated: batches of an earlier run are taken": (
            *("if run != self._run:", "if run > self._run:"),
            "loader/isolated/test_isolated.py",
            "loader/test_programs.py::test_a_program_ends_in_silence",
            "loader/test_programs.py::test_ctrl_c_ends_a_program_with_processes",
            "loader/test_programs.py::test_the_processes_of_a_killed_program_end",
            "loader/test_programs.py::test_a_fork_can_not_use_the_processes_of_a_loader",
        ),
        "isolated: crashes far apart add up": (
            *("self._deaths = 0\n return report.token", "pass\n        return report.token"),
            "loader/isolated/test_deaths.py::test_crashes_far_apart_are_not_added_up",
        ),
        "isolated: the last attempt computes ahead": (
            *("self._deaths == MAX_HELPER_DEATHS - 1", "self._deaths == MAX_HELPER_DEATHS"),
            *("workers/processes/trouble/test_deadly.py", "loader/isolated/test_deaths.py"),
        ),
        "isolated: events don't reach the loader": (
            *("if report is not NO_REPORT:", "if report is NO_REPORT:"),
            *("loader/isolated/test_isolated.py", "loader/isolated/test_errors.py"),
        ),
        "isolated: a closed stream is still computed": (
            *("if run == self._runs and not self.is_closed:", "if run != self._runs and not self.is_closed:"),
            "loader/isolated/test_isolated.py::test_a_closed_iterator_stops_the_helper",
        ),
    },
    "_runtime/_isolated_helper.py": {
        "isolated: of several batches one that can't be sent is forgotten": (
            "for batch, each in zip(batches, reports, strict=True):",
            "for batch, each in zip(batches[1:], reports[1:], strict=True):",
            "loader/isolated/test_errors.py",
        ),
        "isolated: with bounded memory, messages are as large as without": (
            *("usual if most is None else min(usual, most // (KEPT_MESSAGES + 1))", "usual"),
            "runtime/test_memory.py::test_batches_of_all_sizes_keep_the_bound",
        ),
        "isolated: memory that the consumer refers to is reused": (
            *("if not self._sender.holds(slot)", "if self._sender.holds(slot)"),
            *("loader/isolated/test_shared_output.py", "loader/isolated/test_large.py"),
        ),
    },
}
