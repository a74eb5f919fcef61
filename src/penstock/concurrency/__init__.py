"""Work beside an event loop: C++ threads whose jobs are awaited like any future."""

from typing import TYPE_CHECKING

from penstock import _lazy

if TYPE_CHECKING:
    from penstock.concurrency._native_job import NativeJob
    from penstock.concurrency._native_pool import NativeThreadPool
else:
    __getattr__ = _lazy.from_modules(
        __name__,
        NativeJob="penstock.concurrency._native_job",
        NativeThreadPool="penstock.concurrency._native_pool",
    )

__all__ = ["NativeJob", "NativeThreadPool"]
