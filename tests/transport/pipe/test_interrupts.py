"""Ctrl-C at every instruction, cancelling at every wait, closing from elsewhere: nothing is lost, repeated or held."""

import asyncio
import contextlib
import gc
import inspect
import itertools
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest

from penstock.errors import ClosedError, EndOfPipeError, PeerError
from penstock.transport import TensorPipeReader, TensorPipeWriter, leased_slots
from tests.profiles import IS_LONG
from tests.promptness import PATIENCE_SECONDS
from tests.transport.pipe.children import LARGE, element_of, is_element

STRIDE = 1 if IS_LONG else 7  # of instructions that are tried
FILLING = np.zeros(60_000, np.uint8)  # what goes through the socket, and fills it soon


class Interruption:
    """Presses Ctrl-C before the nth instruction of the transport that a call executes.

    Instructions of coroutines aren't counted: asyncio's own locks don't survive Ctrl-C there, and `asyncio.run` cancels
    the task instead.
    """

    def __init__(self, nth: int) -> None:
        self._left = nth
        self.pressed = False

    def call(self, function: Callable[[], Any]) -> Any:
        """Call a function, which may raise KeyboardInterrupt."""
        with each_instruction(self._execute):
            return function()

    def _execute(self) -> None:
        self._left -= 1
        if self._left == 0:
            self.pressed = True
            signal.raise_signal(signal.SIGINT)


def is_counted(code: CodeType) -> bool:
    """Return whether the instructions of a function count."""
    is_own = "penstock/transport" in code.co_filename and code.co_name != "__del__"
    return is_own and not code.co_flags & inspect.CO_COROUTINE


if sys.version_info >= (3, 12):  # where `sys.settrace` misses instructions

    @contextlib.contextmanager
    def each_instruction(act: Callable[[], None]) -> Generator[None]:
        """Call a function before each instruction that counts and that this thread executes."""
        monitoring, tool, thread = sys.monitoring, sys.monitoring.PROFILER_ID, threading.get_ident()

        def executed(code: CodeType, _: int) -> object:
            if not is_counted(code):
                return monitoring.DISABLE
            return act() if threading.get_ident() == thread else None

        monitoring.use_tool_id(tool, "instructions")
        try:
            monitoring.register_callback(tool, monitoring.events.INSTRUCTION, executed)
            monitoring.set_events(tool, monitoring.events.INSTRUCTION)
            yield
        finally:
            monitoring.set_events(tool, monitoring.events.NO_EVENTS)
            monitoring.register_callback(tool, monitoring.events.INSTRUCTION, None)
            monitoring.free_tool_id(tool)

else:

    @contextlib.contextmanager
    def each_instruction(act: Callable[[], None]) -> Generator[None]:
        """Call a function before each instruction that counts and that this thread executes."""

        def entered(frame: FrameType, *_: object) -> Any:
            if not is_counted(frame.f_code):
                return None
            frame.f_trace_lines, frame.f_trace_opcodes = False, True
            return executed

        def executed(_: FrameType, event: str, __: object) -> Any:
            if event == "opcode":
                act()
            return executed

        sys.settrace(entered)
        try:
            yield
        finally:
            sys.settrace(None)


def interruptions() -> Iterator[Interruption]:
    """Return interruptions, each later than the one before, until a call is over before the last."""
    for nth in itertools.count(1, STRIDE):
        interruption = Interruption(nth)
        yield interruption
        if not interruption.pressed:
            return


@pytest.mark.filterwarnings("ignore:.*received elements are still referenced")  # by tasks that were interrupted
@pytest.mark.each_value
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("count", [3, LARGE])
def test_ctrl_c_in_receive_keeps_the_order_and_the_memory(count: int, *, is_async: bool) -> None:
    """After Ctrl-C at any instruction, the next call returns the element, unless this call was about to return it."""
    lost, tried, before = 0, 0, leased_slots()
    loop = asyncio.new_event_loop()
    with contextlib.closing(loop), TensorPipeReader() as reader, TensorPipeWriter(reader.address, capacity=3) as writer:

        def receive() -> object:
            if not is_async:
                return reader.receive(timeout_seconds=PATIENCE_SECONDS)
            task = loop.create_task(reader.areceive())
            try:
                return loop.run_until_complete(task)
            except KeyboardInterrupt:  # end the task, as `asyncio.run` does
                task.cancel()
                loop.run_until_complete(asyncio.wait([task]))
                raise

        for step, interruption in enumerate(interruptions()):
            writer.send(element_of(2 * step, count))
            tried += 1
            try:
                received = interruption.call(receive)
            except KeyboardInterrupt:
                writer.send(element_of(2 * step + 1, count))
                received = reader.receive(timeout_seconds=PATIENCE_SECONDS)
                if is_element(received, 2 * step, count):
                    assert is_element(reader.receive(timeout_seconds=PATIENCE_SECONDS), 2 * step + 1, count)
                else:
                    lost += 1
                    assert is_element(received, 2 * step + 1, count)
            else:
                assert is_element(received, 2 * step, count)
        received = None
        with pytest.raises(TimeoutError):
            reader.receive(timeout_seconds=0)
        gc.collect()
        counters = writer.arena.counters
        assert counters.leased == counters.returned
    assert tried * STRIDE > 300
    assert lost <= 40 / STRIDE  # instructions between the last look for Ctrl-C and the caller
    assert leased_slots() == before


@pytest.mark.parametrize("count", [3, LARGE])
def test_ctrl_c_in_send_sends_all_or_nothing(count: int) -> None:
    """At any instruction: no element comes twice, none is half there, later ones follow, no memory stays held."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address, capacity=3) as writer:
        for step, interruption in enumerate(interruptions()):
            with contextlib.suppress(KeyboardInterrupt):
                interruption.call(lambda step=step: writer.send(element_of(2 * step, count)))  # type: ignore[misc] # a default binds the loop's value
            writer.send(element_of(2 * step + 1, count))
            received = reader.receive(timeout_seconds=PATIENCE_SECONDS)
            if is_element(received, 2 * step, count):
                received = reader.receive(timeout_seconds=PATIENCE_SECONDS)
            assert is_element(received, 2 * step + 1, count)
        received = None
        counters = writer.arena.counters
        assert counters.leased == counters.returned


def test_ctrl_c_in_close_still_closes() -> None:
    """At any instruction: a second close completes it, the reader gets the end, and nothing leaks."""
    for interruption in interruptions():
        with TensorPipeReader() as reader:
            writer = TensorPipeWriter(reader.address)
            writer.send(1)
            with contextlib.suppress(KeyboardInterrupt):
                interruption.call(writer.close)
            writer.close()
            assert reader.receive(timeout_seconds=PATIENCE_SECONDS) == 1
            with pytest.raises(EndOfPipeError):
                reader.receive(timeout_seconds=PATIENCE_SECONDS)
            with contextlib.suppress(KeyboardInterrupt):
                interruption.call(reader.close)
            reader.close()


@pytest.mark.parametrize("where", ["receive", "send", "turn"])
def test_ctrl_c_ends_a_wait(where: str) -> None:
    """Ctrl-C ends a wait for an element, for room, and for another thread's operation; the pipe stays usable."""
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address, capacity=1) as writer:
        inside = threading.Thread(target=lambda: reader.receive(timeout_seconds=PATIENCE_SECONDS))
        if where == "turn":
            inside.start()
        elif where == "send":
            writer.send(0)
        pressed = threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
        pressed.start()
        waiting: Callable[[], object] = (lambda: writer.send(1)) if where == "send" else reader.receive
        with pytest.raises(KeyboardInterrupt):
            waiting()
        pressed.join()
        if where != "send":
            writer.send(0)
        if where == "turn":
            inside.join()
        else:
            assert reader.receive(timeout_seconds=PATIENCE_SECONDS) == 0
        writer.send(2)
        assert reader.receive(timeout_seconds=PATIENCE_SECONDS) == 2


def test_a_handler_that_does_not_raise_interrupts_nothing() -> None:
    """The handler is called each time, and the wait continues."""
    called: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: called.append(number))
    try:
        with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:

            def press_and_send() -> None:
                for count in (1, 2):
                    signal.raise_signal(signal.SIGINT)
                    while len(called) < count:
                        threading.Event().wait(0.001)
                writer.send("sent")

            thread = threading.Thread(target=press_and_send)
            thread.start()
            assert reader.receive(timeout_seconds=PATIENCE_SECONDS) == "sent"
            thread.join()
            assert len(called) == 2
    finally:
        signal.signal(signal.SIGINT, before)


def fill(writer: TensorPipeWriter) -> int:
    """Send until the socket is full; return how many elements were sent."""
    for step in itertools.count():
        try:
            writer.send({"step": step, "x": FILLING}, timeout_seconds=0.02)
        except TimeoutError:
            return step
    raise AssertionError


def test_a_message_in_pieces_is_taken_back_whole() -> None:
    """Its layout and its places arrive whole; a withdrawn one doesn't, though pieces were read, and it held memory."""
    count = 16_000  # arrays, each of them a place: more than a packet, and than the socket, takes
    with TensorPipeReader() as reader, TensorPipeWriter(reader.address, capacity=1000) as writer:
        blanks = writer.empty([np.zeros(1)] * count)
        sending = threading.Thread(target=writer.send, args=(blanks,))
        sending.start()
        assert len(reader.receive(timeout_seconds=PATIENCE_SECONDS)) == count
        sending.join()
        for _ in range(2):
            with pytest.raises(TimeoutError):
                writer.send(blanks, timeout_seconds=0.02)
            with pytest.raises(TimeoutError):
                reader.receive(timeout_seconds=0.02)
            assert writer.counters.messages == 1
        writer.send("next")
        assert reader.receive(timeout_seconds=PATIENCE_SECONDS) == "next"
        del blanks
        counters = writer.arena.counters
        assert counters.leased == counters.returned


def test_a_cancelled_areceive_loses_nothing() -> None:
    """Whenever it is cancelled: the element is its result, or the next call's."""

    async def check(reader: TensorPipeReader, writer: TensorPipeWriter, turns: int) -> None:
        for step in range(20):
            receiving = asyncio.ensure_future(reader.areceive())
            for turn in range(turns):
                if turn == step % 3:
                    writer.send(element_of(step))
                await asyncio.sleep(0)
            if turns <= step % 3:
                writer.send(element_of(step))
            receiving.cancel()
            try:
                received = await receiving
            except asyncio.CancelledError:
                received = await reader.areceive()
            assert is_element(received, step)

    for turns in range(6):
        with TensorPipeReader() as reader, TensorPipeWriter(reader.address) as writer:
            asyncio.run(check(reader, writer, turns))
            counters = writer.arena.counters
            assert counters.leased == counters.returned


@pytest.mark.parametrize("small", [False, True])
def test_a_cancelled_asend_sends_nothing(*, small: bool) -> None:
    """It may be cancelled while it waits for room or for the socket; calls that wait behind it continue."""

    async def check(reader: TensorPipeReader, writer: TensorPipeWriter, turns: int) -> None:
        element: dict[str, Any] = {"step": -1, "x": FILLING} if small else element_of(-1)
        sent = fill(writer) if small else 2
        for step in range(0 if small else 2):
            await writer.asend(element_of(step))
        first, second = (asyncio.ensure_future(writer.asend({**element, "step": sent + n})) for n in range(2))
        for _ in range(turns):
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        steps = [(await reader.areceive())["step"] for _ in range(sent + 1)]
        await second
        assert steps == [*range(sent), sent + 1]

    for turns in range(5):
        with TensorPipeReader() as reader, TensorPipeWriter(reader.address, capacity=1000 if small else 2) as writer:
            asyncio.run(check(reader, writer, turns))
            counters = writer.arena.counters
            assert counters.leased == counters.returned


@pytest.mark.parametrize("fails", [False, True])
def test_closing_a_writer_inside_send_sends_its_last_word(*, fails: bool) -> None:
    """The sender gets a ClosedError; the reader receives the sent elements, and the end or the failure."""
    with TensorPipeReader() as reader:
        writer = TensorPipeWriter(reader.address, capacity=1)
        writer.send(0)
        thread = threading.Thread(target=refused, args=(writer,))
        thread.start()
        while writer.counters.waits == 0:
            threading.Event().wait(0.001)
        writer.fail(ValueError("broken")) if fails else writer.close()
        thread.join()
        assert reader.receive() == 0
        with pytest.raises(PeerError if fails else EndOfPipeError, match="ValueError: broken" if fails else "ended"):
            reader.receive()


def refused(writer: TensorPipeWriter) -> None:
    """Send, and be refused."""
    with pytest.raises(ClosedError):
        writer.send(1)


@pytest.mark.longer
@pytest.mark.filterwarnings("ignore:.*received elements are still referenced")
def test_closing_ends_from_other_threads() -> None:
    """At any moment, from several threads at once: every operation ends, and every hold comes back."""
    for attempt in range(30 if IS_LONG else 10):  # ten have each order of closing after each wait
        reader = TensorPipeReader()
        writer = TensorPipeWriter(reader.address, capacity=2)
        arena = writer.arena

        def work(act: Callable[[], object]) -> None:
            with contextlib.suppress(ClosedError, EndOfPipeError, PeerError):
                while True:
                    act()

        def send(writer: TensorPipeWriter = writer) -> None:
            writer.send(element_of(0))

        acts: list[Callable[[], object]] = [send, send, reader.receive, reader.receive]
        threads = [threading.Thread(target=work, args=(act,)) for act in acts]
        closes = [writer.close, reader.close, writer.close, reader.close][attempt % 2 :]
        closers = [threading.Thread(target=close) for close in closes]
        for thread in threads:
            thread.start()
        threading.Event().wait(0.002 * (attempt % 5))
        for thread in closers:
            thread.start()
        for thread in [*threads, *closers]:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()
        writer.close()
        reader.close()
        assert arena.counters.slots >= 0
