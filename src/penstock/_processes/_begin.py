"""The beginning of a child process: signals, the watch for the parent's end, seeds, memory, and limits of threads.

Guarantees:
  - SIGINT, which a terminal sends to all processes, is ignored: the parent handles Ctrl-C. The process is started with
    SIGINT blocked (`interrupts_blocked`), so that it can't die by it earlier.
  - When the parent has ended, however it did, the process ends at once, in the middle of a call that keeps Python's
    lock, too: a native thread watches.
  - The global random generators are seeded, in each process differently.
  - Texts have the same hashes in all of the program's processes.
  - Freed memory is kept for the next allocations.
  - The code that runs in the process may start processes of its own.

Hashes. Each Python that starts draws a seed for the hashes of texts and bytes, and these hashes decide the order of a
set. So `hash(name) % 10`, or a position in `list(names)` of a set, would be another number in each process that is
spawned, in a fork server that is started again, and in the next run. Only an environment variable sets the seed, before
Python starts. Processes are started with it, and then get the program's variables, so that programs that they start see
no other environment. The program's own seed can't be known, unless its user has set the variable.

Memory. The C library returns memory at the end of its heap to the system as soon as a little of it is free: twice the
size of the largest block that it has seen. A decoder of images allocates and frees a few such blocks again and again.
In some processes, depending on the layout of the heap, the memory of every image is then returned and fetched again,
page by page: of eight workers on two cores, one spent a third as long on that as on decoding. So the limits are raised,
unless the user has set one of the C library's variables.

Threads. BLAS, OpenCV and torch start a thread for each core in every process, so processes that compute side by side
slow each other down. Most libraries read an environment variable when they are loaded; in OpenCV and torch, a function
sets the limit later, too. Limits that the user has set stay.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from typing import Any, Final

from penstock._caught import keep_all
from penstock._decisions import follow_environment
from penstock._native import end_when_readable
from penstock._processes._seeding import GlobalSeeds, seed_process

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # in malloc.h
_LARGEST_BYTES: Final = 32 << 20  # the largest threshold that the C library accepts; larger blocks are the system's
_KEPT_BYTES: Final = 2 * _LARGEST_BYTES  # the limit that the C library itself sets once it has freed such a block
_MALLOC_VARIABLES: Final = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")

_THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)

HASH_VARIABLE: Final = "PYTHONHASHSEED"
# Read at the import, before the program's variables arrive in a process that this program starts; then its own
# processes get the same seed. A program that sets the variable later doesn't change its hashes.
_hash_seed = os.environ.get(HASH_VARIABLE, "")
HASH_SEED: Final = "0" if _hash_seed in {"", "random"} else _hash_seed
"""The seed of the hashes in all processes; that of the program if its user has set one."""

_watching: Final[set[int]] = set()  # pids, since a fork of this process has another one


@contextmanager
def interrupts_blocked() -> Generator[None]:
    """Block SIGINT in this thread, and so in the processes that it starts; other threads of the program receive it."""
    if sys.platform == "win32":
        yield
        return
    # Otherwise it would be started with the first process, and Python unblocks SIGINT in this thread to do so.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_process(seeds: GlobalSeeds) -> None:
    """Prepare this process, which `ChildProcess` has started, as the module says.

    Args:
        seeds: of the global random generators.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    assert parent is not None
    if os.getpid() not in _watching:
        watched: list[int] = [parent.sentinel]
        with suppress(OSError, AttributeError):  # not on every system, and not if the parent has ended already
            # A fork of the parent holds the other end of the sentinel, and may outlive the parent.
            watched.append(os.pidfd_open(parent.pid or 0))
        watch_parent(*watched)
    # The parent needn't wait for a daemon; but `multiprocessing` lets daemons have no children.
    multiprocessing.current_process().daemon = False
    follow_environment()
    keep_all()
    seed_process(seeds)
    keep_freed_memory()


def watch_parent(*descriptors: int) -> None:
    """End this process as soon as one of the descriptors is readable."""
    _watching.add(os.getpid())
    end_when_readable(descriptors)


def keep_freed_memory() -> None:
    """Keep up to 64 MB of memory that this process frees, if the C library has a setting for it."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None and not any(map(os.environ.get, _MALLOC_VARIABLES)):
        mallopt(_MMAP_THRESHOLD, _LARGEST_BYTES)
        mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)


def thread_variables(threads: int | None) -> dict[str, str]:
    """Return the environment variables that limit a process to so many threads, except those that the user has set."""
    if threads is None:
        return {}
    return {name: str(threads) for name in _THREAD_VARIABLES if name not in os.environ}


def limit_threads(variables: Mapping[str, str]) -> None:
    """Apply variables to this process: to libraries that it loads from now on, and to OpenCV and torch."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)
    for name, module, setter in (
        ("OPENCV_FOR_THREADS_NUM", "cv2", "setNumThreads"),
        ("OMP_NUM_THREADS", "torch", "set_num_threads"),
    ):
        limit: Any = getattr(sys.modules.get(module), setter, None)  # missing while it is being imported
        if limit is not None and name in variables:
            limit(int(variables[name]))
