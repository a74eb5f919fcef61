"""However it ends (loop, scope, process or interpreter), a pool neither crashes nor hangs, and releases everything."""

import asyncio
import contextlib
import gc
import os
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Literal

import pytest

from penstock.concurrency import NativeJob, NativeThreadPool
from penstock.errors import ClosedError
from tests.concurrency.loops import in_another_thread, on_loop, on_loops
from tests.concurrency.native_extension import Extension
from tests.concurrency.test_native_pool import is_held
from tests.programs import forked
from tests.programs.forked import Ended

pytestmark = pytest.mark.usefixtures("forked_programs")


def outcome(program: str, library: Path) -> Ended:
    """Run a program with the extension and a pool's names."""
    head = f"""
        import asyncio, faulthandler, importlib.util, os, signal, threading
        from penstock.concurrency import NativeJob, NativeThreadPool
        spec = importlib.util.spec_from_file_location({library.stem!r}, {str(library)!r})
        extension = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(extension)
        def filling(target):
            return NativeJob.from_extension(extension.filling(target))
        faulthandler.enable()
    """
    return forked.outcome(textwrap.dedent(head) + textwrap.dedent(program))


def left_by_its_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop], extension: Extension, running: bytearray, queued: bytearray
) -> None:
    """Enter a pool, start one job, queue another, and close the loop without leaving the scope."""

    async def use() -> None:
        async with NativeThreadPool(1) as pool:
            pool.submit(NativeJob.from_extension(extension.filling(running)))
            await asyncio.to_thread(extension.await_waiting, 1)
            pool.submit(NativeJob.copy(b"abc", queued))
            asyncio.get_running_loop().stop()
            await asyncio.get_running_loop().create_future()

    loop = new_loop()
    loop.call_soon(_step, loop, use())
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


def _step(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine without a task, which would warn that it was destroyed while pending."""
    try:
        waited: asyncio.Future[Any] = coroutine.send(None)
    except StopIteration:
        return

    def go_on(_: asyncio.Future[Any]) -> None:
        _step(loop, coroutine)

    waited.add_done_callback(go_on)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@on_loops
async def test_a_loop_closed_before_its_jobs_end(extension: Extension) -> None:
    """Jobs that were not started are dropped; running ones keep their memory, which the next pool releases."""
    running, queued = bytearray(3), bytearray(3)
    await asyncio.to_thread(left_by_its_loop, type(asyncio.get_running_loop()), extension, running, queued)
    gc.collect()
    assert not is_held(queued)
    assert is_held(running)
    extension.open_gate()
    await released(running)
    assert running == b"xxx"
    assert queued == bytes(3)


@on_loops
async def test_a_loop_of_another_thread_ends_while_its_jobs_run(extension: Extension) -> None:
    """A loop that submitted to a shared pool may end before its jobs; the pool's own loop ends normally."""
    target = bytearray(3)

    async def submit(pool: NativeThreadPool) -> None:
        pool.submit(NativeJob.from_extension(extension.filling(target)))

    async with NativeThreadPool(1) as pool:
        await in_another_thread(submit(pool))
        await asyncio.to_thread(extension.await_waiting, 1)
        extension.open_gate()
    assert target == b"xxx"


def test_a_forked_child_has_no_threads(library: Path) -> None:
    """It is refused, may open a new pool, and leaves the scope that it inherited at once; the parent is unharmed."""
    program = """
        from penstock.errors import UsageError
        async def main():
            target, out = bytearray(3), bytearray(3)
            try:
                async with NativeThreadPool(1) as pool:
                    running = pool.submit(filling(target))
                    await asyncio.to_thread(extension.await_waiting, 1)
                    queued = pool.submit(NativeJob.copy(b"abc", out))
                    pid = os.fork()
                    if pid == 0:
                        try:
                            pool.submit(NativeJob.crc32(b""))
                        except UsageError as error:
                            assert "os.fork()" in str(error)
                            raise SystemExit(7)
                    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
                    extension.open_gate()
                    await running
                    await queued
            except SystemExit:  # closing this loop would take the parent's descriptors out of its poll
                thread = threading.Thread(target=lambda: asyncio.run(own()))
                thread.start()
                thread.join()
            print(target.decode(), out.decode())

        async def own():
            async with NativeThreadPool(2) as pool:
                os._exit(7 if await pool.submit(NativeJob.crc32(b"123456789")) == 0xCBF43926 else 1)
        asyncio.run(main())
    """
    assert outcome(program, library)[:2] == (0, "xxx abc\n")


@pytest.mark.parametrize("opens", [False, True])
def test_the_interpreter_may_end_while_jobs_run(library: Path, *, opens: bool) -> None:
    """The interpreter's end may cut off a loop in a daemon thread, with jobs running and queued, or just ending.

    A pool in a global that was never left, with a job that never ends, doesn't keep the process from ending either.
    """
    program = f"""
        import numpy as np
        started = threading.Event()
        def jobs():
            target = np.zeros(1 << 20, np.uint8) if {opens} else bytearray(1 << 20)
            return [filling(target) for _ in range(5)]
        async def main():
            async with NativeThreadPool(2) as pool:
                for job in jobs():
                    pool.submit(job)
                await asyncio.to_thread(extension.await_waiting, 4)
                started.set()
                await asyncio.get_running_loop().create_future()
        loop = asyncio.new_event_loop()
        pool = NativeThreadPool(2)
        kept = []
        async def enter():
            await pool.__aenter__()
            kept.extend(map(pool.submit, jobs()))
            await asyncio.to_thread(extension.await_waiting, 2)
        loop.run_until_complete(enter())
        threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
        started.wait()
        opener = threading.Timer(0.0, extension.open_gate)
        opener.daemon = True
        if {opens}: opener.start()
        print("ends")
    """
    # Python warns of the pool, if its end gets to it.
    assert outcome(program, library)[:2] == (0, "ends\n")


async def released(*buffers: bytearray) -> None:
    """Wait until abandoned jobs have released their buffers."""
    async with NativeThreadPool(1) as pool:
        while any(map(is_held, buffers)):  # no event reports that an abandoned thread has released its job
            await pool.submit(NativeJob.crc32(b""))


@pytest.mark.each_value
@pytest.mark.parametrize("warns", ["always", "error"])
@pytest.mark.parametrize("by_an_error", [False, True])
@on_loops
async def test_a_job_that_hangs_is_abandoned(
    extension: Extension, warns: Literal["always", "error"], *, by_an_error: bool
) -> None:
    """After `patience` the scope is left; the job's future fails, a warning names it, and its buffers stay held.

    If warnings are errors, leaving raises it, and the pool is closed.
    """
    targets = [bytearray(3), bytearray(4)]
    queued = bytearray(3)
    submitted: list[asyncio.Future[Any]] = []
    pool = NativeThreadPool(2, patience=0.05)

    async def use() -> None:
        async with pool:
            submitted.extend(pool(NativeJob.from_extension(extension.filling(target))) for target in targets)
            await asyncio.to_thread(extension.await_waiting, 2)
            submitted.append(pool(NativeJob.copy(b"abc", queued)))
            if by_an_error:
                raise KeyError("mine")

    text = r"is abandoned: .*got <NativeJob: .*>, <.*>\. .*more patience="
    if warns == "error":
        with pytest.raises(RuntimeWarning, match=text):
            await use()
    else:
        with pytest.warns(RuntimeWarning, match=text), contextlib.suppress(KeyError):
            await use()
    assert "closed" in repr(pool)
    for future in submitted[:2]:
        with pytest.raises(ClosedError, match=r"is abandoned: .*got <NativeJob: of an extension>\. Give"):
            future.result()
    with pytest.raises(ClosedError, match="the job was not started"):
        submitted[2].result()
    assert not is_held(queued)
    assert all(map(is_held, targets))
    extension.open_gate()
    await released(*targets)
    assert targets == [b"xxx", b"xxxx"]


@on_loops
async def test_abandoned_jobs_fail_in_every_loop(extension: Extension) -> None:
    """A job that another thread's loop submitted fails there, while that loop awaits the job."""
    target = bytearray(3)

    async def use(pool: NativeThreadPool) -> None:
        future = pool(NativeJob.from_extension(extension.filling(target)))
        await asyncio.to_thread(extension.await_waiting, 1)
        future.cancel()  # it was started, so it is abandoned all the same
        with pytest.raises(ClosedError, match="is abandoned"):
            await pool(NativeJob.from_extension(extension.filling(target)))

    async def leave() -> None:
        async with NativeThreadPool(2, patience=0.05) as pool:
            other = asyncio.ensure_future(in_another_thread(use(pool)))
            await asyncio.to_thread(extension.await_waiting, 2)
        await other

    with pytest.warns(RuntimeWarning, match="is abandoned"):
        await leave()
    extension.open_gate()
    await released(target)


def test_leaving_waits_while_jobs_end(tmp_path: Path) -> None:
    """Patience is the time in which no job ends: two jobs, one after the other, may take longer in all."""
    paths = [tmp_path / str(number) for number in range(2)]
    opened: list[int] = []

    def let_through(path: Path) -> None:
        opened.append(os.open(path, os.O_RDWR))  # a reader waits until the file has a writer

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with NativeThreadPool(1, patience=1.0) as pool:
            futures = [pool(NativeJob.read_file(path, size=1)) for path in paths]
            for number, path in enumerate(paths, 1):
                loop.call_later(number * 0.6, let_through, path)
        for future in futures:
            assert isinstance(future.exception(), OSError)  # a pipe has no places to read from

    for path in paths:
        os.mkfifo(path)
    try:
        asyncio.run(run())
    finally:
        for descriptor in opened:
            os.close(descriptor)


HANGING = """
    import time
    async def main():
        async with NativeThreadPool(2{arguments}) as pool:
            future = pool.submit(filling(bytearray(3)))
            await asyncio.to_thread(extension.await_waiting, 1)
            {last}
    started = time.monotonic()
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        print("interrupted")
    assert time.monotonic() - started < 20, "it waited"
"""
KILLS_ITSELF = "asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize(
    ("arguments", "last", "printed"),
    [
        ("", f"{KILLS_ITSELF}; await future", "interrupted\n"),
        (", patience=None", KILLS_ITSELF, "interrupted\n"),
        (", patience=0.05", "", ""),
    ],
    ids=["Ctrl-C inside", "Ctrl-C while leaving", "abandoned"],
)
def test_a_program_ends_whose_job_hangs(library: Path, arguments: str, last: str, printed: str) -> None:
    """One Ctrl-C ends it, inside the scope or while it is left, whatever the patience; so does an abandoned job."""
    code, out, errors = outcome(HANGING.format(arguments=arguments, last=last), library)
    assert (code, out) == (0, printed)
    assert "RuntimeWarning: a job must end within the patience" in errors
    assert "<NativeJob: of an extension>" in errors


@on_loops
async def test_left_in_another_loop() -> None:
    """A loop that neither entered the scope nor submitted a job may leave it, and waits for the jobs of others."""
    pool = await NativeThreadPool(1).__aenter__()
    future = pool.submit(NativeJob.crc32(b"123456789"))
    await in_another_thread(pool.__aexit__(None, None, None))
    assert await future == 0xCBF43926
    assert "closed" in repr(pool)


@on_loop
async def test_dropped_inside_its_scope() -> None:
    """A pool that is dropped inside its scope warns, and leaves no thread or descriptor."""
    pools = [NativeThreadPool(2)]
    await pools[0].__aenter__()
    assert await pools[0].submit(NativeJob.crc32(b"")) == 0
    with pytest.warns(ResourceWarning, match="dropped inside its scope"):
        pools.clear()
    await asyncio.sleep(0)
