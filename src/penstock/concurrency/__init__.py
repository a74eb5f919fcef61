"""Pools of workers, native threads and async streams, which move jobs and items between tasks, threads and processes.

`WorkerPool` runs jobs on stateful workers, which run in tasks, threads or processes. `NativeThreadPool` runs jobs of
C++ on threads of C++, awaited like any future. `ExtendableStream` is an async iterable that is fed from outside,
`CompletionStream` is one that yields results as they complete, and `Stream` is the base class for other orders.
"""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock.concurrency._native_job import NativeJob
    from penstock.concurrency._native_pool import NativeThreadPool
    from penstock.concurrency._stream import Stream
    from penstock.concurrency._streams import CompletionStream, ExtendableStream
    from penstock.concurrency._worker import Worker
    from penstock.concurrency._worker_pool import WorkerPool
else:
    # A program that uses no processes or event loops doesn't load them.
    __getattr__ = _lazy.from_modules(
        __name__,
        CompletionStream="penstock.concurrency._streams",
        ExtendableStream="penstock.concurrency._streams",
        NativeJob="penstock.concurrency._native_job",
        NativeThreadPool="penstock.concurrency._native_pool",
        Stream="penstock.concurrency._stream",
        Worker="penstock.concurrency._worker",
        WorkerPool="penstock.concurrency._worker_pool",
    )
    __dir__ = _lazy.listing(__name__)

__all__ = [
    "CompletionStream",
    "ExtendableStream",
    "NativeJob",
    "NativeThreadPool",
    "Stream",
    "Worker",
    "WorkerPool",
]
