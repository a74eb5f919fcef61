"""Jobs of 20 us on 1 to 16 threads, awaited by a loop in a background thread; the main thread idles or runs Python.

A batch is 256 jobs, submitted at once and awaited together. The number is the time from the first submission until the
loop has the last result. The limit is the same jobs on as many C++ threads, without a loop. All contestants run the
same C++ job; the references call it through ctypes, which releases the GIL. A job ends 20 us after its start by the
clock, even if its thread has no processor meanwhile. So more threads than processors make the limit shorter, as for
jobs that wait for a disk.
"""

import asyncio
import ctypes
import shutil
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from benchmarks.bench import Bench
from benchmarks.scenario import MILLISECONDS, Contestant, Goal, Measurement, Role, Scenario
from penstock.concurrency import NativeJob, NativeThreadPool
from penstock.transport import include_directory

NUM_THREADS = (1, 2, 4, 8, 16)
COMPARED_THREADS = 2  # the references are measured with these, and a busy main thread, too
LIMIT = "C++ threads"
GOALS = {"idle": 0.6, "busy": 0.8}  # shares of the limit

_CAPSULE_NAME = ctypes.c_char_p(b"penstock.job.v2")  # must outlive the capsules


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """The number of jobs of a batch, the library with the job, and the number of threads."""

    num_jobs: int
    library: ctypes.CDLL
    num_threads: int


Prepare = Callable[[], Callable[[], Awaitable[None]]]  # makes a batch's jobs, untimed; its result runs the batch
Way = Callable[[Work], AbstractAsyncContextManager[Prepare]]


def build(bench: Bench) -> Scenario:
    """Return the scenario: the limit, the pool, an executor and plain threads, for each state of the main thread."""
    num_jobs = 8 if bench.smoke else 256
    library = _compile(bench.directory)
    pair: tuple[tuple[str, Role, Way], ...] = (
        (LIMIT, "limit", _without_a_loop),
        ("NativeThreadPool", "ours", _native),
    )
    references: tuple[tuple[str, Role, Way], ...] = (
        ("run_in_executor", "reference", _executor),
        ("threads, call_soon_threadsafe", "reference", _threads),
    )
    contestants: list[Contestant] = []
    for num_threads in NUM_THREADS:
        work = Work(num_jobs, library, num_threads)
        is_compared = num_threads == COMPARED_THREADS
        for state in GOALS if is_compared else ("idle",):
            contestants += [_contestant(work, state, *way) for way in (*pair, *(references if is_compared else ()))]
    return Scenario(
        "native-pool",
        f"{num_jobs} jobs of 20 us, awaited by a background loop; time of a batch",
        tuple(contestants),
    )


def _contestant(work: Work, state: str, name: str, role: Role, way: Way) -> Contestant:
    slowest = 0.0
    where = f"{work.num_threads} threads, main thread {state}"
    has_goal = role == "ours" and work.num_threads == COMPARED_THREADS

    def run(repeats: int) -> Measurement:
        nonlocal slowest
        times = timed_batches(work, way, repeats, main_is_busy=state == "busy")
        slowest = max(slowest, *times)
        return Measurement(repeats, sum(times))

    return Contestant(
        f"{where}: {name}",
        role,
        run,
        MILLISECONDS,
        against=() if role == "limit" else (f"{where}: {LIMIT}",),
        goal=Goal("share", GOALS[state]) if has_goal else None,
        facts=lambda: {"slowest ms": 1e3 * slowest},
    )


def timed_batches(work: Work, way: Way, repeats: int, *, main_is_busy: bool) -> Sequence[float]:
    """Return the seconds of each of `repeats` batches, run by a loop in another thread."""
    times: list[float] = []
    ended = threading.Event()

    async def run() -> None:
        async with way(work) as prepare:
            for _ in range(repeats):
                batch = prepare()
                started = time.perf_counter()
                await batch()
                times.append(time.perf_counter() - started)

    def in_loop() -> None:
        try:
            asyncio.run(run())
        finally:
            ended.set()

    thread = threading.Thread(target=in_loop)
    thread.start()
    if main_is_busy:
        number = 0
        while not ended.is_set():
            number = (number * 31 + 7) % 1_000_003
    thread.join()
    return times


async def _all(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        await future


@asynccontextmanager
async def _native(work: Work) -> AsyncGenerator[Prepare]:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    pointer = work.library.busy_job()

    async with NativeThreadPool(work.num_threads) as pool:

        def prepare() -> Callable[[], Awaitable[None]]:
            jobs = [NativeJob.from_extension(make(pointer, _CAPSULE_NAME, None)) for _ in range(work.num_jobs)]

            async def batch() -> None:
                for future in [pool.submit(job) for job in jobs]:
                    await future

            return batch

        yield prepare


@asynccontextmanager
async def _executor(work: Work) -> AsyncGenerator[Prepare]:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(work.num_threads) as executor:

        async def batch() -> None:
            await _all([loop.run_in_executor(executor, work.library.busy) for _ in range(work.num_jobs)])

        yield lambda: batch


@asynccontextmanager
async def _threads(work: Work) -> AsyncGenerator[Prepare]:
    loop = asyncio.get_running_loop()
    queue: SimpleQueue[asyncio.Future[None] | None] = SimpleQueue()
    busy = work.library.busy

    def serve() -> None:
        while (future := queue.get()) is not None:
            busy()
            loop.call_soon_threadsafe(future.set_result, None)

    async def batch() -> None:
        futures = [loop.create_future() for _ in range(work.num_jobs)]
        for future in futures:
            queue.put(future)
        await _all(futures)

    threads = [threading.Thread(target=serve) for _ in range(work.num_threads)]
    for thread in threads:
        thread.start()
    try:
        yield lambda: batch
    finally:
        for _ in threads:
            queue.put(None)
        for thread in threads:
            thread.join()


@asynccontextmanager
async def _without_a_loop(work: Work) -> AsyncGenerator[Prepare]:
    async def batch() -> None:
        work.library.busy_on_threads(work.num_jobs, work.num_threads)

    yield lambda: batch


def _compile(directory: Path) -> ctypes.CDLL:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise RuntimeError("the job is C++; install a compiler (c++, g++ or clang++)")
    library = directory / "native_pool.so"
    source = Path(__file__).with_name("native_pool.cpp")
    flags = ["-O2", "-std=c++17", "-shared", "-fPIC", "-pthread", "-I", include_directory()]
    subprocess.run([compiler, *flags, str(source), "-o", str(library)], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.busy_job.restype = ctypes.c_void_p
    loaded.busy.restype = loaded.busy_on_threads.restype = None
    return loaded
