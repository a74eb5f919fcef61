"""The worker processes of a DataLoader's iterator, and the sampler's batches on their way through them.

The problem: a sampler is the user's code and an iterator. It must run in the caller's thread alone, each batch must be
drawn once, and an exception must be raised in the place of its batch. A job queue requests the next job whenever it has
room for one, so it must not iterate over the sampler itself.

The solution: drawing batches and taking jobs are separate. `Sampled.draw` iterates over the sampler, in the caller's
thread, and pickles the indices of each batch. `Sampled.next_job`, which the queue calls, takes drawn batches only; if
none is left, the queue starts nothing until more are drawn. A batch stays in `_under_way` until its delivery. So a job
whose memory was too small, or whose rows don't fit the layout, is repeated from the same indices: nothing is drawn
again.

Invariants:
  - Each batch is drawn once, and keeps its number and its seed however often it is computed.
  - An error of the sampler is raised in the batch's place, after the batches before it; then the sampler is called
    again.
"""

import signal
from collections import deque
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from penstock._caught import Caught, raised_by_handler
from penstock._decisions import JOB_BATCHES, KNOWN_LAYOUT, WHOLE_BATCHES, decide
from penstock._graph import Read
from penstock._os import Closer, HeldInterrupts, Waiter, uninterrupted
from penstock._plan import Batches, Limits, Plan, Shard, StartMethod
from penstock._processes import import_ahead
from penstock._runtime import (
    MAX_JOB_BATCHES,
    Client,
    Job,
    JobQueue,
    Learned,
    ProcessScheduler,
    ReadyQueue,
    Recorder,
    Scheduler,
    block_rows,
    job_size,
)
from penstock.errors import WorkerError
from penstock.events import Event, WorkerDied
from penstock.torch._data_loader._job import DrawnBatch, DrawnJob, DrawnTask, DrawnWork, RowLayout, Way
from penstock.torch._data_loader._pickling import Sealed, pickled
from penstock.torch._data_loader._seeding import Seed
from penstock.torch._data_loader._torch_private import own_collating
from penstock.torch._data_loader._worker import Start, UserCode, received_error
from penstock.torch._data_loader._worker_process import WorkerProcess

_NOTHING: Final = object()  # the sampler's end
_SMALL_BATCHES_BYTES: Final = 16_000_000  # while all batches take less, more than `prefetch_factor` are loaded ahead
_SMALL_JOB_SECONDS: Final = 0.004  # work of a job of several batches: making and taking a job takes 0.2 ms


class JobRules:
    """The rules by which a loader's batches become jobs.

    Args:
        learned: the layout and sizes learned of their rows.
        num_workers: the number of worker processes.
        stacks: whether `default_collate` makes the batches.
        is_batched: whether indices come in lists.
        at_once: whether the dataset returns all elements of a batch in one call.
        may_make_whole: whether any worker may collate.

    Attributes:
        most_bytes: the bytes of a job of several batches; 0 for jobs of one.
        singly_until: the number of the first batch that may share a job: those before are computed again, since one
            failed.
    """

    def __init__(
        self,
        learned: Learned[RowLayout],
        num_workers: int,
        *,
        stacks: bool,
        is_batched: bool,
        at_once: bool,
        may_make_whole: bool = False,
    ) -> None:
        self.learned = learned
        self.num_workers = num_workers
        self.is_batched = is_batched
        self.at_once = at_once
        self.most_bytes = 0
        self.singly_until = 0
        self._stacks = stacks
        self._may_make_whole = may_make_whole
        self._made_whole = False

    @property
    def is_learning(self) -> bool:
        """Whether the size of batches is still unknown."""
        return self.learned.layout is None and not self.learned.merged_row_bytes

    @property
    def is_whole(self) -> bool:
        """Whether one worker makes a whole batch, so that each worker needs a batch of its own."""
        return self.at_once or not self.is_batched

    def batches_per_job(self, first: DrawnBatch) -> int:
        """Return how many batches a job has, from a given one on: several small ones share the cost of a job."""
        learned, layout = self.learned, self._layout_of(first)
        if self.is_learning or first.number < self.singly_until:
            return 1
        row_bytes = learned.merged_row_bytes if layout is None else layout.layout.row_bytes
        merge_seconds = learned.merge_seconds or 0.0 if layout is None else 0.0
        seconds = merge_seconds + (0.0 if self._made_whole else self._row_seconds(first))
        if not seconds:
            return 1
        by_time = _SMALL_JOB_SECONDS / seconds
        by_bytes = self.most_bytes / max(row_bytes * first.rows, 1)
        count = job_size(JOB_BATCHES, by_time, min(by_bytes, MAX_JOB_BATCHES))
        return 1 << (count.bit_length() - 1)  # a power of two, so that jobs can use the memory of others

    def _layout_of(self, given: DrawnBatch) -> RowLayout | None:
        learned = self.learned
        is_written = self._stacks and given.is_list and given.rows > 0 and not learned.is_irregular
        return learned.layout if is_written else None

    def _row_seconds(self, batch: DrawnBatch) -> float:
        return (self.learned.row_seconds or 0.0) * batch.rows

    def _makes_whole(self, first: DrawnBatch) -> bool:
        """Return whether one worker reads the rows of a batch and collates them, since both take little time.

        Otherwise workers share the rows, and send them to the one that collates. Its time then has no rows in it.
        """
        if not self._may_make_whole or self.is_learning or first.number < self.singly_until:
            return False
        seconds = max(self._row_seconds(first), self.learned.merge_seconds or 0.0)
        return bool(decide(WHOLE_BATCHES, int(0.0 < seconds < _SMALL_JOB_SECONDS)))

    def job(self, given: tuple[DrawnBatch, ...], epoch: Seed) -> DrawnJob:
        """Return the job of a batch, or of several, in an epoch with a seed."""
        learned, first = self.learned, given[0]
        layout = self._layout_of(first)
        if layout is not None and len(given) == 1 and not decide(KNOWN_LAYOUT, 1):
            layout = None
        way: Way = "rows"
        if layout is None:
            has_rows = first.is_list and first.rows > 0 and not self.at_once
            self._made_whole = has_rows and self._makes_whole(first)
            way = "merge" if has_rows and not self._made_whole else "whole"
        total = max(sum(batch.rows for batch in given), 1)
        rows = block_rows(total, self.num_workers, learned)
        if self.at_once:  # a block has whole batches
            rows = -(-rows // max(first.rows, 1)) * max(first.rows, 1)
        task = DrawnTask(given, epoch, way, rows, None if layout is None else layout.pickled)
        return Job(DrawnWork(task, learned))


class Sampled:
    """The batches of one epoch: drawn, under way, and delivered.

    Args:
        sampler: an iterator over indices, or lists of them.
        rules: the rules by which they become jobs.
        seed: the epoch's seed.
        number: the number of the first batch that is drawn.
        free: the number of the first batch that isn't drawn before it has to be.

    Attributes:
        seed: the epoch's seed, which may be set as long as no job was made.
        error: an exception of the sampler, raised in its batch's place.
    """

    def __init__(self, sampler: Iterator[Any], rules: JobRules, seed: Seed, number: int, free: int = 0) -> None:
        self.seed = seed
        self.error: BaseException | None = None
        self._sampler = sampler
        self._rules = rules
        self._number = number
        self._free = free
        self._newest: DrawnBatch | None = None
        self._has_ended = False
        self._waiting: deque[DrawnBatch] = deque()
        self._under_way: list[DrawnJob] = []

    def draw(self, most: int, drawn: int) -> None:
        """Draw batches until as many are drawn and not delivered.

        Args:
            most: the number where no program can tell when they are drawn; more where jobs have several of them.
            drawn: the number of others, which is torch's.
        """
        ahead = len(self._waiting) + sum(len(job.work.batches) for job in self._under_way)
        newest, is_free = self._newest, self._number < self._free
        each = self._rules.batches_per_job(newest) if newest is not None and is_free else 1
        while not self._has_ended and self.error is None:
            if ahead >= (max(most * each, drawn) if self._number < self._free else drawn):
                return
            ahead += 1
            with Caught(Exception) as caught:
                indices = next(self._sampler, _NOTHING)  # a StopIteration would keep frames, and a batch, for a while
                if indices is _NOTHING:
                    self._has_ended = True
                else:
                    self._newest = self._given(indices)
                    self._waiting.append(self._newest)
            if caught.error is not None:
                self.error = caught.taken()  # raised after the batches before it

    def _given(self, drawn: object) -> DrawnBatch:
        indices: Any = drawn
        is_plain = isinstance(drawn, list)
        is_list, rows = False, 1
        if self._rules.is_batched:
            if not self._rules.at_once and not is_plain and hasattr(indices, "__iter__"):
                indices = list(indices)
            rows = len(indices) if hasattr(indices, "__len__") else 1
            is_list = hasattr(indices, "__len__")
        given = DrawnBatch(self._number, pickled(indices), rows, is_list)
        self._number += 1
        return given

    def next_job(self) -> DrawnJob | None:
        """Return the job of the next batch that is drawn; None if there is none, or at the end."""
        waiting = self._waiting
        if waiting:
            count = min(self._rules.batches_per_job(waiting[0]), len(waiting)) if self._free else 1
            job = self._rules.job(tuple(waiting.popleft() for _ in range(count)), self.seed)
            self._under_way.append(job)
            return job
        if self.error is not None:
            raise self.error
        return None

    @property
    def is_over(self) -> bool:
        """Whether the sampler has ended, and each of its batches has a job."""
        return self._has_ended and not self._waiting

    def delivered(self, job: DrawnJob) -> None:
        """Drop the batches of a job that was delivered, or that failed finally."""
        self._under_way.remove(job)

    def again(self) -> None:
        """Return all undelivered batches to the queue, to be computed again."""
        for job in reversed(self._under_way):
            self._waiting.extendleft(reversed(job.work.batches))
        self._under_way.clear()

    def is_at(self, error: Exception) -> bool:
        """Return whether an error is the sampler's; if so, forget it, so that the sampler is called again."""
        if error is not self.error:
            return False
        self.error = None
        return True


class InOrder(JobQueue[DrawnJob]):
    """The jobs of drawn batches, in order.

    The plan's `memory` bounds the batches first. The other bounds are on their number.

    Args:
        scheduler: computes the jobs.
        client: owns the jobs.
        sampled: the batches.
        rules: the rules by which batches become jobs.
        bounds: the number of batches under way or ready at least, and the most if batches are small.
    """

    _remedy = "or keep clones of their tensors"

    def __init__(
        self, scheduler: Scheduler, client: Client, sampled: Sampled, rules: JobRules, bounds: tuple[int, int]
    ) -> None:
        self._rules = rules
        self._sampled = sampled
        self._least, most = bounds
        self._allowed = self._least + 1  # batches in memory, the one in use included
        super().__init__(scheduler, client, sampled.next_job, lambda: most)

    def _has_no_more(self) -> bool:
        return self._sampled.is_over

    def _window_now(self) -> int:
        # The first batch is in memory twice, as elements and collated, so it is computed alone. The following jobs are
        # made when it has shown the layout of rows.
        begins_first = self._rules.is_learning and not (self._rules.is_whole and self._memory is None)
        return 1 if begins_first else self._jobs_ahead()

    def _fits(self, job: DrawnJob) -> bool:
        """Return whether one more job may be under way; this bounds the memory of large batches."""
        if not super()._fits(job):
            return False
        ahead, in_use = len(self._armed) + 1, self._scheduler.regions_in_use(self._client)
        is_small = not self._rules.is_learning and (in_use + 1) * job.memory_bytes <= _SMALL_BATCHES_BYTES
        return is_small or (ahead <= self._least and self._regions_in_use() < self._allowed)

    def _grow(self) -> dict[int, int]:
        self._allowed = self._scheduler.regions_in_use(self._client) + self._least  # the consumer holds batches
        return super()._grow()


class AsReady(InOrder, ReadyQueue[DrawnJob]):
    """The jobs of drawn batches, in the order of their completion."""


Queue: TypeAlias = InOrder | AsReady
_MAX_ATTEMPTS: Final = 8  # at a batch whose memory was too small, or whose rows have another layout
_START_SECONDS: Final = 60.0  # of workers, at least


class Ahead(NamedTuple):
    """The numbers of batches ahead of the program.

    Attributes:
        least: under way or ready, of any size.
        most: the same if batches are small.
        drawn: drawn, if a program can tell when.
    """

    least: int
    most: int
    drawn: int


class Workers:
    """Owns the worker processes, which end when it is closed or dropped.

    Args:
        loader: the loader whose arguments apply.
        rules: the rules by which batches become jobs.
        start: called in each worker at its start.
        ahead: the numbers of batches ahead of the program.
        memory: the bytes of batches under way, ready, or held by the consumer; None for no bound.
    """

    def __init__(self, loader: object, rules: JobRules, start: Start, ahead: Ahead, memory: int | None) -> None:
        given: Any = loader
        least, most = ahead.least, ahead.most
        self._ahead = ahead
        self._rules = rules
        self._timeout: float = given.timeout
        all_bytes = min(_SMALL_BATCHES_BYTES, memory or _SMALL_BATCHES_BYTES)
        if not self._timeout:  # a batch must not wait for a slower one in its job
            rules.most_bytes = all_bytes // (most + 2)
        self._is_ordered: bool = given.in_order
        self._has_init: bool = given.worker_init_fn is not None
        method = _start_method(given.multiprocessing_context)
        merging = most if rules.is_whole else given.num_batch_workers or most
        limits = Limits(num_batch_workers=merging, worker_init=start, start_method=method)
        node = Read(start.code, 0, 0)
        program = Batches(node, 0, None, (), can_recut=True)
        workers = rules.num_workers
        shard = Shard(0, 1)
        plan = Plan(node, program, "processes", workers, shard, least, memory, copy=False, limits=limits)
        self._client = Client(plan, _NotingRecorder(vars(loader)["_deaths"]))
        self._client.learned = rules.learned
        self._client.has_warned_of_kept = True  # no warning: users of torch's loader may keep batches
        self.attempts = 0  # at the current batch
        self._start()

    @uninterrupted  # an interrupt before the assignments would leave workers without an owner
    def _start(self) -> None:
        self._scheduler = ProcessScheduler(self._client)
        self._closer = Closer(self._scheduler.close)

    def processes(self, first: int = 0) -> list[WorkerProcess]:
        """Return the newest process of each worker, numbered from `first` on; wait until each has started."""
        return [WorkerProcess(child, number) for number, child in enumerate(self._scheduler.processes(), first)]

    @property
    def knows_seed(self) -> bool:
        """Whether `seed` is known; without a `worker_init_fn` it always is."""
        return not self._has_init or 0 in self._scheduler.reports

    @property
    def seed(self) -> int | None:
        """The seed that `worker_init_fn` gave torch's generator in worker 0; None if it gave none."""
        return self._scheduler.reports.get(0)

    def await_seed(self, held: HeldInterrupts) -> None:
        """Wait until `seed` is known. An error means that the workers can't start."""
        scheduler, client = self._scheduler, self._client
        self._wait(lambda: scheduler.is_ready(client, ()) or self.knows_seed, held)
        scheduler.check()

    def draw(self, sampled: Sampled) -> None:
        """Draw the batches that are computed ahead."""
        sampled.draw(self._ahead.most, self._ahead.drawn)

    def open(self, sampled: Sampled) -> Queue:
        """Start computing the batches that are drawn from now on."""
        self.draw(sampled)
        kind = InOrder if self._is_ordered else AsReady
        return kind(self._scheduler, self._client, sampled, self._rules, self._ahead[:2])

    def next_job(self, queue: Queue, sampled: Sampled, held: HeldInterrupts) -> DrawnJob | None:
        """Return the next job, complete or failed; None at the end.

        An error means that the workers can't start, unless the sampler or a signal's handler raised it.

        Args:
            queue: the queue of jobs.
            sampled: the batches of the jobs.
            held: holds signals back; they are allowed while this waits.
        """
        sampled.draw(self._ahead.most + 1, self._ahead.drawn + 1)
        if self._timeout:
            self._wait(queue.is_ready, held)
        return queue.next_job(held)

    def is_ready(self, queue: Queue, sampled: Sampled) -> bool:
        """Return whether `next_job` needs no wait; if it does, the descriptor becomes readable when it may be ready."""
        sampled.draw(self._ahead.most + 1, self._ahead.drawn + 1)
        return queue.is_ready()

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._scheduler.fileno(self._client)

    def has_started(self) -> bool:
        """Return whether a worker has ever been ready for a job."""
        return bool(self._scheduler.reports)

    def _wait(self, is_ready: Callable[[], bool], held: HeldInterrupts) -> None:
        wait_until(is_ready, self.has_started, self.fileno(), self._timeout, held)

    def batches(self, job: DrawnJob) -> list[Callable[[], object]]:
        """Return a function for each batch of a complete job, which returns the batch, or raises."""
        self.attempts = 0
        return job.work.made(job.results, self._client.region_pool.copied_bytes(self._ahead.most))

    def is_to_be_repeated(self, job: DrawnJob) -> bool:
        """Count an attempt, and return whether a failed job only needs another one, in other memory, or by batches."""
        crashed_whole = job.failure.crash is not None and job.work.reads_rows and not self._rules.at_once
        if job.steps > 1 or crashed_whole:  # workers share the rows of the next attempt, which finds the row at fault
            self._rules.singly_until = job.work.batches[-1].number + 1
            return True
        self.attempts += 1
        return job.failure.crash is None and not job.failure.note and self.attempts < _MAX_ATTEMPTS

    def raise_for(self, job: DrawnJob) -> None:
        """Raise the error of a failed job."""
        failure, attempts, self.attempts = job.failure, self.attempts, 0
        if failure.crash is not None:
            _raise_crash(job, failure.crash, self._pid_of(failure.crash))
        sent = received_error(failure.note)
        if sent is None:
            complaint = failure.complaint or f"it was tried {attempts} times"
            raise WorkerError(f"batch {job.work.drawn.number} can't be made: {complaint}")
        sent.raise_again()

    def _pid_of(self, crash: WorkerError) -> int:
        deaths = self._client.recorder.deaths()
        return next((each.pid for each in reversed(deaths) if each.reason == str(crash)), 0)

    def last_death(self) -> str:
        """Return a sentence, in torch's words, about the process that died last; "" if none died."""
        deaths = self._client.recorder.deaths()
        if not deaths:
            return ""
        pid, exit_code = deaths[-1].pid, deaths[-1].exit_code
        return f"DataLoader worker (pid(s) {pid}) exited unexpectedly: {_ended(pid, exit_code)}"

    def close(self) -> None:
        """End the processes."""
        self._closer()


def prepare_workers(context: object) -> None:
    """Let the fork server import torch while the program sets up its model, so that the first batch comes sooner."""
    import_ahead(_start_method(context), Limits().worker_threads, (__name__,))


def _start_method(context: object) -> StartMethod | None:
    given: Any = context
    name = given if given is None or isinstance(given, str) else given.get_start_method()
    return "spawn" if name == "spawn" else None


class _NotingRecorder(Recorder):
    """A recorder of one iterator's workers, which also notes their deaths for the loader."""

    def __init__(self, deaths: deque[WorkerDied]) -> None:
        super().__init__()
        self._noted = deaths

    def observe(self, event: Event) -> None:
        super().observe(event)
        if isinstance(event, WorkerDied):
            self._noted.append(event)


class TimedOutError(RuntimeError):
    """A batch took longer than `timeout`."""


def wait_until(
    is_ready: Callable[[], bool],
    has_started: Callable[[], bool],
    descriptor: int,
    timeout: float,
    held: HeldInterrupts,
) -> None:
    """Wait until something is ready; handlers of signals are allowed.

    Args:
        is_ready: returns whether it is.
        has_started: returns whether a worker was ever ready for a job. The start of the workers, which may import torch
            first, doesn't count, unless it takes longer than `timeout` and a minute.
        descriptor: it becomes readable when one of the two may have changed.
        timeout: in seconds; 0 waits without limit.
        held: holds signals back.

    Raises:
        TimedOutError: it took longer than the timeout.
    """
    if timeout and not has_started():
        _wait_until(lambda: is_ready() or has_started(), descriptor, max(timeout, _START_SECONDS), held)
    _wait_until(is_ready, descriptor, timeout, held)


def _wait_until(is_ready: Callable[[], bool], descriptor: int, timeout: float, held: HeldInterrupts) -> None:
    until = monotonic() + timeout
    while not is_ready():
        left = until - monotonic() if timeout else None
        held.allow()
        is_late = (left or 0) < 0 or not Waiter().wait(descriptor, left)
        held.hold()
        if is_late:
            raise TimedOutError(f"DataLoader timed out after {timeout} seconds")


def user_code_of_loader(loader: object) -> UserCode:
    """Return the dataset and the functions of a loader."""
    given: Any = loader
    is_batched = given.batch_sampler is not None
    return UserCode(given.collate_fn, given.worker_init_fn, is_batched, own_collating(), given.dataset)


def sealed(loader: object) -> Sealed:
    """Return a loader's dataset and functions, pickled; an object that can't be pickled raises its own error."""
    try:
        return Sealed(user_code_of_loader(loader), shares=True)
    except Exception as error:
        if raised_by_handler(error):
            raise
        error.add_note(
            "the dataset, collate_fn and worker_init_fn are sent to worker processes, which aren't forks of this one; "
            "they must be picklable. cloudpickle, which penstock[torch] installs, pickles lambdas and local functions; "
            "open unpicklable objects, such as files, on first use, or in worker_init_fn."
        )
        raise


def _ended(pid: int, exit_code: int | None) -> str:
    """Return how a process ended, in the words by which people recognize it in the logs of torch's loader."""
    if exit_code is not None and exit_code < 0:
        name = signal.strsignal(-exit_code) or f"Unknown signal {-exit_code}"
        return f"DataLoader worker (pid {pid}) is killed by signal: {name}."
    return f"DataLoader worker (pid {pid}) exited unexpectedly with exit code {exit_code}."


def _raise_crash(job: DrawnJob, crash: WorkerError, pid: int) -> NoReturn:
    row = job.failure.row
    cause = "collating it, or reading it as a whole," if row is None else f"row {row}, index {job.work.index(row)},"
    memory = " The system may have run out of memory." if crash.exit_code == -signal.SIGKILL else ""
    raise WorkerError(
        f"DataLoader worker (pid(s) {pid}) exited unexpectedly: in batch {job.work.drawn.number}, {cause} repeatedly "
        f"crashes workers. Leave it out, or fix the dataset or collate_fn.{memory} {_ended(pid, crash.exit_code)}",
        exit_code=crash.exit_code,
    )
