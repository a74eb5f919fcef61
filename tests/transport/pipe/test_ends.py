"""Both ends distinguish end, failure, close and death, and no call waits for ever."""

import asyncio
import gc
import os
import signal
import threading
import time
import warnings
import weakref
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import ClosedError, EndOfPipeError, PeerError
from penstock.transport import TensorPipeReader, TensorPipeWriter
from tests.promptness import PATIENCE_SECONDS, is_prompt
from tests.transport.pipe.children import (
    element_of,
    free_path,
    is_element,
    receive_and_keep,
    running,
    send_and_fail,
    send_for_ever,
    send_steps,
    send_with_a_child_that_keeps_the_socket,
)

NOTICED_SECONDS = 1.0  # promised are 20 ms


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_a_failure_of_the_writer_is_raised_after_its_elements(*, allow_pickle: bool) -> None:
    """It is the exception itself between processes that trust each other; else its text, with the traceback."""
    with TensorPipeReader(allow_pickle=allow_pickle) as reader:
        with running("fork", partial(send_and_fail, allow_pickle=allow_pickle), reader.address) as process:
            assert is_element(reader.receive(), 0)
            with pytest.raises(KeyError if allow_pickle else PeerError) as raised:
                reader.receive()
            assert "no such file: 'a'" in str(raised.value)
            assert "send_and_fail" in "".join(raised.value.__notes__)
            assert str(process.pid) in "".join(raised.value.__notes__)
        with pytest.raises(EndOfPipeError):
            reader.receive()


def test_a_process_that_never_became_a_writer_raises() -> None:
    """If it was expected, an error names it, and others are still received. One that became a writer is no error."""
    with TensorPipeReader(num_writers=3) as reader:
        with running("fork", os._exit, 3) as lost, running("fork", send_steps, reader.address, 2) as process:
            reader.expect(lost.pid or 0)
            reader.expect(process.pid or 0)
            found: list[object] = []
            for _ in range(3):
                try:
                    found.append(reader.receive(timeout_seconds=20)["step"])
                except PeerError as error:
                    found.append(error.pid == lost.pid)
            pid = process.pid or 0
        assert found in ([True, 0, 1], [0, True, 1], [0, 1, True])
        reader.expect(pid)  # it has ended by now, and was a writer
        reader.expect(1 << 22)  # no process has such a number
        with pytest.raises(PeerError, match=r"ended before it opened a TensorPipeWriter"):
            reader.receive(timeout_seconds=20)
        with pytest.raises(EndOfPipeError):
            reader.receive()
    with pytest.raises(ClosedError):
        reader.expect(pid)


def test_a_death_is_noticed_though_a_child_keeps_the_socket_open() -> None:
    """Its elements are received; the process shows its end, although the socket doesn't; an error names it."""
    pids = get_context("fork").Queue()
    send = send_with_a_child_that_keeps_the_socket
    with TensorPipeReader() as reader, running("fork", send, reader.address, pids) as process:
        child = pids.get()
        try:
            assert is_element(reader.receive(), 0)
            with pytest.raises(PeerError, match="without an end or a failure") as raised:
                reader.receive(timeout_seconds=10)
            assert raised.value.pid == process.pid
        finally:
            os.kill(child, signal.SIGKILL)
    pids.close()
    pids.join_thread()


def test_the_death_of_a_writer_ends_a_waiting_receive_at_once() -> None:
    """Within milliseconds, as an error and not as a hang."""
    ready = get_context("fork").Event()
    with TensorPipeReader() as reader, running("fork", send_for_ever, reader.address, ready) as process:
        reader.receive()
        os.kill(process.pid or 0, signal.SIGSTOP)
        while True:
            try:
                reader.receive(timeout_seconds=0.05)
            except TimeoutError:
                break
        killed = threading.Timer(0.05, os.kill, (process.pid, signal.SIGKILL))
        began = time.monotonic()
        killed.start()
        with pytest.raises(PeerError):
            reader.receive()
        assert is_prompt(time.monotonic() - began, 0.05 + NOTICED_SECONDS)
        killed.join()


def test_the_death_of_a_reader_ends_a_waiting_send_at_once(tmp_path: Path) -> None:
    """And its leases come back."""
    address, ready, kept = free_path(tmp_path), get_context("fork").Event(), get_context("fork").Event()
    with running("fork", receive_and_keep, address, 2, ready, kept) as process:
        assert ready.wait(20)
        writer = TensorPipeWriter(address)
        writer.send(element_of(0))
        writer.send(element_of(1))
        assert kept.wait(20)
        writer.send(element_of(2))
        writer.send(element_of(3))
        killed = threading.Timer(0.05, os.kill, (process.pid, signal.SIGKILL))
        began = time.monotonic()
        killed.start()
        with pytest.raises(PeerError, match="died") as raised:
            writer.send(element_of(4))
        assert is_prompt(time.monotonic() - began, 0.05 + NOTICED_SECONDS)
        assert raised.value.pid == process.pid
        killed.join()
        process.join()
        writer.arena.reclaim()
        counters = writer.arena.counters
        assert counters.leased == counters.returned
        with pytest.raises(PeerError):
            writer.close()


def test_a_closed_reader_raises_closed_error() -> None:
    """Each send raises an error of its own, so the writer holds no traceback with an element; closing is no error."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
        writer.send(element_of(0))
        writer.send(element_of(1))
        reader.receive()
        reader.close()
        element = np.zeros(1)
        kept = weakref.ref(element)
        with pytest.raises(ClosedError, match="the reader") as raised:
            writer.send(element)
        del element, raised
        gc.collect()
        assert kept() is None
        counters = writer.arena.counters
        assert counters.leased == counters.returned  # also of what was sent and never received


LONG = ValueError("ü" * 20_000, bytes(1_000_000))


@pytest.mark.parametrize(("error", "allow_pickle"), [(ValueError("broken"), False), (LONG, False), (LONG, True)])
def test_a_failure_is_sent(error: ValueError, *, allow_pickle: bool) -> None:
    """To either end, though it needs several packets, or is too long to be sent as it is."""
    refused = pytest.raises(PeerError, match="ValueError" if error is LONG else "ValueError: broken")
    with TensorPipeReader(allow_pickle=allow_pickle) as reader:
        writer = TensorPipeWriter(reader.address, allow_pickle=allow_pickle)
        reader.fail(error)
        for _ in range(2):
            with refused:
                writer.send(1)
        writer.fail(error)
    with TensorPipeReader(allow_pickle=allow_pickle) as reader:
        writer = TensorPipeWriter(reader.address, allow_pickle=allow_pickle)
        failing = threading.Thread(target=writer.fail, args=(error,))
        failing.start()
        with refused:
            reader.receive(timeout_seconds=PATIENCE_SECONDS)
        failing.join()


def test_a_writer_closes_though_the_reader_failed_with_an_exception_of_its_own() -> None:
    """`close` raises the reader's exception, `fail` doesn't, and neither leaves a descriptor open."""
    with TensorPipeReader(allow_pickle=True) as reader:
        writer = TensorPipeWriter(reader.address, allow_pickle=True)
        reader.fail(ValueError("short"))
        with pytest.raises(ValueError, match="short"):
            writer.close()
        writer.close()
    with TensorPipeReader(allow_pickle=True) as reader:
        writer = TensorPipeWriter(reader.address, allow_pickle=True)
        reader.fail(ValueError("short"))
        writer.fail(KeyError("of the caller"))


def test_closed_ends_say_so() -> None:
    """At every later call; closing again does nothing."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
        writer.close()
        writer.close()
        with pytest.raises(ClosedError, match="TensorPipeWriter is closed"):
            writer.send(1)
        reader.close()
        reader.close()
        with pytest.raises(ClosedError, match="TensorPipeReader is closed"):
            reader.receive()


def test_closing_from_another_thread_ends_a_waiting_call() -> None:
    """For both ends."""
    with TensorPipeReader() as reader:
        timer = threading.Timer(0.05, reader.close)
        timer.start()
        with pytest.raises(ClosedError):
            reader.receive()
        timer.join()
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address, capacity=1) as writer:
        writer.send(1)
        timer = threading.Timer(0.05, writer.close)
        timer.start()
        with pytest.raises(ClosedError):
            writer.send(2)
        timer.join()


def test_no_reader_at_the_address_is_an_error() -> None:
    """With what to do."""
    with pytest.raises(PeerError, match="no reader listens"):
        TensorPipeWriter("@penstock-without-a-reader")


def test_a_writer_too_many_is_refused() -> None:
    """A reader that expects one writer refuses the second; the first continues."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as first:
        first.send(1)
        assert reader.receive() == 1
        second = TensorPipeWriter(reader.address)
        with pytest.raises(TimeoutError):
            reader.receive(timeout_seconds=0.02)
        with pytest.raises(ValueError, match="has num_writers=1, and as many have connected"):
            second.send(1)
        with pytest.raises(ValueError, match="has num_writers=1, and as many have connected"):
            second.close()
        first.send(2)
        assert reader.receive() == 2


def test_a_forked_child_is_refused() -> None:
    """Its copy of an end does nothing, and dropping the copy has no effect."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
        writer.send(element_of(0))
        element = reader.receive()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                later = (lambda: asyncio.run(writer.asend(1)), lambda: asyncio.run(reader.areceive()))
                for use in (lambda: writer.send(1), reader.receive, *later):
                    with pytest.raises(ClosedError, match="forked"):
                        use()
                writer.close()
                reader.close()
                del element
                gc.collect()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert is_element(element, 0)
        counters = writer.arena.counters
        assert counters.leased - counters.returned == 1
        writer.send(element_of(1))
        assert is_element(reader.receive(), 1)


@pytest.mark.filterwarnings("ignore:unclosed")  # Python's own words for the same
def test_dropping_an_open_end_warns() -> None:
    """It names the end and the remedy."""
    with TensorPipeReader() as reader:
        writer = TensorPipeWriter(reader.address)
        held = [writer]
        del writer
        with pytest.warns(ResourceWarning, match="TensorPipeWriter was dropped"):
            _drop(held)
        gc.collect()  # the warning that was caught referred to it
        with pytest.raises(PeerError):
            reader.receive()


def test_coroutines_send_and_receive() -> None:
    """Both ends in one event loop, waiting for each other in turn."""

    async def main() -> list[bool]:
        with TensorPipeReader() as reader:

            async def produce() -> None:
                with TensorPipeWriter(reader.address, capacity=1) as writer:
                    blank = await writer.aempty(np.zeros(3))
                    assert blank.shape == (3,)
                    for step in range(10):
                        await writer.asend(element_of(step))

            async with asyncio.TaskGroup() as group:
                group.create_task(produce())
                return [is_element(element, step) for step, element in enumerate([item async for item in reader])]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of kept elements
        assert asyncio.run(main()) == [True] * 10


def test_closing_ends_a_waiting_coroutine() -> None:
    """With ClosedError, and everything is given back."""

    async def main() -> None:
        with TensorPipeReader() as reader:

            async def wait() -> None:
                with pytest.raises(ClosedError):
                    await reader.areceive()

            async with asyncio.TaskGroup() as group:
                group.create_task(wait())
                await asyncio.sleep(0.01)
                reader.close()

    asyncio.run(main())


def _drop(held: list[TensorPipeWriter]) -> None:
    held.clear()
    gc.collect()
