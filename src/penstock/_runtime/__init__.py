"""The runtime opens plans: the scheduler, workers, memory and streams of batches. No other package knows all."""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock._runtime._autotune import Workers as Workers
    from penstock._runtime._autotune import chosen as chosen
    from penstock._runtime._batches import StepRange as StepRange
    from penstock._runtime._batches import Unit as Unit
    from penstock._runtime._batches import Where as Where
    from penstock._runtime._chunk_sizes import block_rows as block_rows
    from penstock._runtime._chunk_sizes import job_size as job_size
    from penstock._runtime._failing_work import describe_step as describe_step
    from penstock._runtime._io_prefetch import BlockPrefetch as BlockPrefetch
    from penstock._runtime._io_prefetch import IOPrefetch as IOPrefetch
    from penstock._runtime._isolated import IsolatedRuntime as IsolatedRuntime
    from penstock._runtime._jobs import Job as Job
    from penstock._runtime._jobs import Learned as Learned
    from penstock._runtime._jobs import NotedError as NotedError
    from penstock._runtime._jobs import Shape as Shape
    from penstock._runtime._jobs import Work as Work
    from penstock._runtime._policy import COPIED_BYTES as COPIED_BYTES
    from penstock._runtime._policy import HELD_SECONDS as HELD_SECONDS
    from penstock._runtime._policy import MAX_JOB_BATCHES as MAX_JOB_BATCHES
    from penstock._runtime._policy import NOTHING_SECONDS as NOTHING_SECONDS
    from penstock._runtime._pool import RemoteWorkers as RemoteWorkers
    from penstock._runtime._pool import WorkerPool as WorkerPool
    from penstock._runtime._pool import pool_of as pool_of
    from penstock._runtime._process_scheduler import ProcessScheduler as ProcessScheduler
    from penstock._runtime._processors import usable_processors as usable_processors
    from penstock._runtime._queue import JobQueue as JobQueue
    from penstock._runtime._queue import ReadyQueue as ReadyQueue
    from penstock._runtime._recorder import Recorder as Recorder
    from penstock._runtime._recorder import is_logged as is_logged
    from penstock._runtime._runtime import Runtime as Runtime
    from penstock._runtime._scheduler import Client as Client
    from penstock._runtime._scheduler import Scheduler as Scheduler
    from penstock._runtime._streams import EndOfEpoch as EndOfEpoch
    from penstock._runtime._streams import Stream as Stream
else:
    # A worker process imports one module of this package, and few programs need all: multiprocessing and asyncio, for
    # example, are slow to import.
    __getattr__ = _lazy.from_modules(
        __name__,
        COPIED_BYTES="penstock._runtime._policy",
        HELD_SECONDS="penstock._runtime._policy",
        MAX_JOB_BATCHES="penstock._runtime._policy",
        NOTHING_SECONDS="penstock._runtime._policy",
        BlockPrefetch="penstock._runtime._io_prefetch",
        Client="penstock._runtime._scheduler",
        EndOfEpoch="penstock._runtime._streams",
        IOPrefetch="penstock._runtime._io_prefetch",
        IsolatedRuntime="penstock._runtime._isolated",
        Job="penstock._runtime._jobs",
        JobQueue="penstock._runtime._queue",
        Learned="penstock._runtime._jobs",
        ProcessScheduler="penstock._runtime._process_scheduler",
        ReadyQueue="penstock._runtime._queue",
        Recorder="penstock._runtime._recorder",
        RemoteWorkers="penstock._runtime._pool",
        Runtime="penstock._runtime._runtime",
        Scheduler="penstock._runtime._scheduler",
        Shape="penstock._runtime._jobs",
        StepRange="penstock._runtime._batches",
        Stream="penstock._runtime._streams",
        NotedError="penstock._runtime._jobs",
        Unit="penstock._runtime._batches",
        Where="penstock._runtime._batches",
        Work="penstock._runtime._jobs",
        WorkerPool="penstock._runtime._pool",
        pool_of="penstock._runtime._pool",
        Workers="penstock._runtime._autotune",
        block_rows="penstock._runtime._chunk_sizes",
        chosen="penstock._runtime._autotune",
        describe_step="penstock._runtime._failing_work",
        is_logged="penstock._runtime._recorder",
        job_size="penstock._runtime._chunk_sizes",
        usable_processors="penstock._runtime._processors",
    )
