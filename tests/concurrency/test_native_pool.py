"""Jobs of C++ are awaited from any loop, cancelled at any point, and never write to freed memory."""

import asyncio
import threading
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.concurrency import NativeJob, NativeThreadPool
from penstock.errors import ClosedError, UsageError
from tests.concurrency.loops import in_another_thread, on_loop, on_loops
from tests.concurrency.native_extension import Extension
from tests.profiles import in_short


def is_held(buffer: bytearray) -> bool:
    """Return whether a buffer is exported, so that it can't be resized."""
    try:
        buffer.append(0)
    except BufferError:
        return True
    buffer.pop()
    return False


@on_loops
async def test_loops_in_threads_share_pools() -> None:
    """Several loops in several threads submit to one pool and to their own at once; each gets its results."""

    async def use(shared: NativeThreadPool, seed: int) -> None:
        async with NativeThreadPool(1) as own:
            for start in range(0, 200, 20):
                parts = [bytes([seed]) * size for size in range(start, start + 20)]
                futures = [pool.submit(NativeJob.crc32(part)) for part in parts for pool in (shared, own)]
                assert [await future for future in futures] == [zlib.crc32(part) for part in parts for _ in range(2)]

    async with NativeThreadPool(2) as pool, asyncio.TaskGroup() as tasks:
        for seed in range(3):
            tasks.create_task(in_another_thread(use(pool, seed)))
        await use(pool, 9)


@on_loop
async def test_extensions_give_results_and_errors(extension: Extension) -> None:
    """An extension's job returns its bytes or None; the text of its error is that of a RuntimeError."""
    async with NativeThreadPool(2) as pool:
        capsule = extension.upper(b"penstock")
        assert await pool.submit(NativeJob.from_extension(capsule)) == b"PENSTOCK"
        with pytest.raises(UsageError, match="can be taken once"):
            NativeJob.from_extension(capsule)
        assert await pool.submit(NativeJob.from_extension(extension.nothing())) is None
        with pytest.raises(RuntimeError, match="not today"):
            await pool.submit(NativeJob.from_extension(extension.failing()))
        with pytest.raises(RuntimeError, match="no std::exception"):
            await pool.submit(NativeJob.from_extension(extension.throwing_an_int()))
        for wrong in (None, b"bytes", 3):
            with pytest.raises(UsageError, match=r"penstock\.job\.v2"):
                NativeJob.from_extension(wrong)


@on_loop
async def test_exceptions_of_cpp_become_those_of_python(extension: Extension) -> None:
    """An exception of a job, also of its function with the lock, is raised as the corresponding one of Python."""
    expected: list[tuple[type[Exception], str]] = [
        (IndexError, "no row 9"),
        (ValueError, "no such codec"),
        (ValueError, "below 0"),
        (ValueError, "too long"),
        (ValueError, "out of range"),
        (OverflowError, "too large"),
        (FileNotFoundError, "[Errno 2] the index: No such file or directory"),
        (PermissionError, "[Errno 13] the index: Permission denied"),
        (OSError, "the stream"),
        (MemoryError, "bad_alloc"),
        (RuntimeError, "\N{REPLACEMENT CHARACTER} is no text"),
        (RuntimeError, "future"),
    ]
    async with NativeThreadPool(1) as pool:
        for number, (error, text) in enumerate(expected):
            for make in (extension.throwing, extension.finishing_badly):
                with pytest.raises(error) as raised:
                    await pool(NativeJob.from_extension(make(number)))
                assert type(raised.value) is error
                assert text in str(raised.value)


@on_loops
async def test_a_second_function_makes_the_result(extension: Extension) -> None:
    """The result is made in the loop's thread, with the interpreter's lock; an exception there is raised unchanged."""
    threads: list[int] = []

    def called() -> list[int]:
        threads.append(threading.get_ident())
        return threads

    def failing() -> None:
        raise KeyError("mine")

    def ending() -> None:
        raise StopIteration(3)

    async with NativeThreadPool(2) as pool:
        job = NativeJob.from_extension(extension.word_lengths(b"from the public headers"))
        assert await pool(job) == [4, 3, 6, 7]
        assert await pool(NativeJob.from_extension(extension.calling(called))) is threads
        for function, error, text in [
            (failing, KeyError, "mine"),
            (ending, RuntimeError, r"a native job raised StopIteration\(3\)"),
            (False, SystemError, "without setting an exception"),
        ]:
            with pytest.raises(error, match=text):
                await pool(NativeJob.from_extension(extension.calling(function)))
        with pytest.raises(ValueError, match="no such codec"):  # so the second function is not called
            await pool(NativeJob.from_extension(extension.finishing_badly(-1)))
    assert threads == [threading.get_ident()]


def test_an_interrupt_in_a_second_function_ends_the_loop(extension: Extension) -> None:
    """A KeyboardInterrupt while a result is made ends the program, and is the job's outcome as well."""
    futures: list[asyncio.Future[Any]] = []

    def interrupted() -> None:
        raise KeyboardInterrupt

    async def run() -> None:
        async with NativeThreadPool(1) as pool:
            futures.append(pool(NativeJob.from_extension(extension.calling(interrupted))))
            futures.append(pool(NativeJob.from_extension(extension.upper(b"a"))))
            await asyncio.get_running_loop().create_future()

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(run())
    assert isinstance(futures[0].exception(), KeyboardInterrupt)
    assert futures[1].result() == b"A"


@on_loops
async def test_a_running_job_keeps_its_memory(extension: Extension) -> None:
    """A cancelled future's job runs to its end, with its buffers; a cancelled task withdraws one that was not started.

    Buffers are released when their job has ended, or at once when it was withdrawn.
    """
    target, queued = bytearray(1000), bytearray(8)
    async with NativeThreadPool(1) as pool:
        future = pool.submit(NativeJob.from_extension(extension.filling(target)))
        await asyncio.to_thread(extension.await_waiting, 1)
        later = pool.submit(NativeJob.copy(b"12345678", queued))
        assert is_held(queued)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await later
        assert not is_held(queued)
        assert future.cancel()
        assert is_held(target)
        extension.open_gate()
    assert future.cancelled()
    assert later.cancelled()
    assert queued == bytes(8)
    assert not is_held(target)
    assert target == b"x" * 1000


@in_short(10)
@given(steps=st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=40), num_threads=st.integers(1, 4))
@on_loops
async def test_cancelled_at_any_point(steps: list[tuple[int, bool]], num_threads: int) -> None:
    """Cancelling some jobs at any point leaves the others to end before the scope does, and no buffer held."""
    buffers = [bytearray(size) for size, _ in steps]
    futures: list[asyncio.Future[bytearray]] = []
    async with NativeThreadPool(num_threads) as pool:
        for number, (size, at_once) in enumerate(steps):
            futures.append(pool.submit(NativeJob.copy(b"x" * size, buffers[number])))
            if at_once:
                futures[number // 2].cancel()
            else:
                await asyncio.sleep(0)
    for (size, _), future, buffer in zip(steps, futures, buffers, strict=True):
        if future.cancelled():
            assert buffer in (b"x" * size, bytes(size))
        else:
            assert future.result() is buffer
            assert buffer == b"x" * size
    assert not any(is_held(buffer) for buffer in buffers)


@pytest.mark.parametrize("by_an_error", [False, True])
@on_loops
async def test_leaving_early_withdraws_the_rest(extension: Extension, *, by_an_error: bool) -> None:
    """Left by an exception, or cancelled while it is left, the scope waits for running jobs; others fail at once."""
    target, out = bytearray(3), bytearray(3)
    loop, leaving = asyncio.get_running_loop(), asyncio.Event()
    queued: list[asyncio.Future[bytearray]] = []

    async def use() -> None:
        async with NativeThreadPool(1) as pool:
            pool.submit(NativeJob.from_extension(extension.filling(target)))
            await asyncio.to_thread(extension.await_waiting, 1)
            queued.append(pool.submit(NativeJob.copy(b"abc", out)))
            pool.submit(NativeJob.copy(b"abc", out))  # its future isn't kept, and nothing is logged for it
            loop.call_soon(leaving.set)
            if by_an_error:
                raise KeyError("mine")

    task = loop.create_task(use())
    await leaving.wait()
    if not by_an_error:
        task.cancel()
    with pytest.raises(ClosedError, match="not started"):
        await queued[0]
    assert not is_held(out)
    assert not task.done()
    extension.open_gate()
    with pytest.raises(KeyError if by_an_error else asyncio.CancelledError):
        await task
    assert target == b"xxx"
    assert out == bytes(3)


@on_loop
async def test_outside_its_scope_nothing_is_taken() -> None:
    """Before, after and beside its scope a pool refuses jobs and says why; a job can be submitted once."""
    pool = NativeThreadPool(1)
    assert "not entered" in repr(pool)
    with pytest.raises(ClosedError, match="Enter it first"):
        pool.submit(NativeJob.crc32(b""))
    async with pool:
        assert "open" in repr(pool)
        job = NativeJob.crc32(b"")
        await pool.submit(job)
        with pytest.raises(UsageError, match="submitted once"):
            pool.submit(job)
        with pytest.raises(UsageError, match="running event loop"):
            await asyncio.to_thread(pool.submit, NativeJob.crc32(b""))
    with pytest.raises(ClosedError, match="before it is left"):
        pool.submit(NativeJob.crc32(b""))
    with pytest.raises(ClosedError, match="entered once"):
        await pool.__aenter__()
    assert "closed" in repr(pool)


def test_profilers_find_the_names_of_functions() -> None:
    """The library's symbol table has the functions that a profiler of native threads shows."""
    found = find_spec("penstock._native")
    assert found is not None
    assert found.origin is not None
    library = Path(found.origin).read_bytes()
    for name in (b"_ZN8penstock9PoolState4workEv", b"_ZN8penstock8ReadFile3runEv"):
        assert name in library


def test_wrong_arguments() -> None:
    """A pool has at least one thread, and no more than the limit; the patience is a number of seconds from 0."""
    for number in (-1, 0, 5000):
        with pytest.raises(UsageError, match=f"got {number}"):
            NativeThreadPool(number)
    for seconds in (-1.0, float("nan")):
        with pytest.raises(UsageError, match=f"patience must be .* got patience={seconds}"):
            NativeThreadPool(1, patience=seconds)
