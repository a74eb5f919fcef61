"""A pipe behaves like a queue of values: for any order of calls, and any elements kept."""

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from penstock.errors import ClosedError, EndOfPipeError
from penstock.transport import TensorPipeReader, TensorPipeWriter
from tests.profiles import in_short

LARGE = 70_000  # bytes: more than goes through the socket
INLINE = 60_000  # bytes: a few of these fill the socket
SIZES = st.sampled_from([1, 1000, INLINE, LARGE, LARGE + 1, 3 * LARGE])


@dataclass
class _Shared:
    """Memory of `empty`: every holder sees its current contents.

    Attributes:
        value: its contents.
        memory: the writer's array; None once it is dropped.
    """

    value: int
    memory: Any


@dataclass(frozen=True)
class _Sent:
    """The model of an element.

    Attributes:
        size: its bytes.
        value: the contents of all of them, if it was copied.
        shared: its memory, if it was sent by reference.
    """

    size: int
    value: int
    shared: _Shared | None

    @property
    def in_a_slot(self) -> bool:
        return self.shared is not None or self.size >= LARGE

    def is_same(self, received: Any) -> bool:
        value = self.value if self.shared is None else self.shared.value
        return received["x"].shape == (self.size,) and bool((received["x"] == value).all())


class PipeMachine(RuleBasedStateMachine):
    """One writer and one reader; no call waits, so that what each must do is known."""

    def __init__(self) -> None:
        super().__init__()
        self.on_their_way: deque[_Sent] = deque()
        self.kept: list[tuple[_Sent, Any]] = []
        self.memories: list[_Shared] = []
        self.number = 0
        self.ended = False

    @initialize(capacity=st.integers(1, 8), copy=st.booleans())
    def open(self, *, capacity: int, copy: bool) -> None:
        """Both ends are opened."""
        self.capacity = capacity
        self.copies = copy
        self.reader = TensorPipeReader(copy=copy)
        self.writer = TensorPipeWriter(self.reader.address, capacity=capacity)

    def socket_may_be_full(self) -> bool:
        """Return whether there is so much in the socket that the next frame may have to wait."""
        return sum(not sent.in_a_slot and sent.size == INLINE for sent in self.on_their_way) > 1

    def send(self, sent: _Sent, array: Any) -> None:
        """Send; it fails exactly if the pipe is full, or its socket is, and then nothing is sent."""
        if self.ended:
            with pytest.raises(ClosedError):
                self.writer.send({"x": array}, timeout_seconds=0)
        elif len(self.on_their_way) == self.capacity:
            with pytest.raises(TimeoutError):
                self.writer.send({"x": array}, timeout_seconds=0)
        else:
            try:
                self.writer.send({"x": array}, timeout_seconds=0)
            except TimeoutError:
                assert self.socket_may_be_full()
            else:
                self.on_their_way.append(sent)

    @rule(size=SIZES, times=st.sampled_from([1, 6]))
    def send_copies(self, size: int, times: int) -> None:
        """Arrays of this process are sent, and changed at once."""
        for _ in range(times):
            self.number += 1
            array = np.full(size, self.number % 251, np.uint8)
            self.send(_Sent(size, self.number % 251, None), array)
            array[:] = 255

    @precondition(lambda self: not self.ended and len(self.memories) < 5)
    @rule(size=SIZES)
    def make(self, size: int) -> None:
        """Memory to send from is made, and written."""
        self.number += 1
        memory = self.writer.empty(np.empty(size, np.uint8), timeout_seconds=0)
        memory[:] = self.number % 251
        self.memories.append(_Shared(self.number % 251, memory))

    @precondition(lambda self: self.memories)
    @rule(which=st.integers(0, 4))
    def send_by_reference(self, which: int) -> None:
        """It is sent, perhaps once more."""
        shared = self.memories[which % len(self.memories)]
        self.send(_Sent(len(shared.memory), 0, shared), shared.memory)

    @precondition(lambda self: self.memories and not self.copies)
    @rule(which=st.integers(0, 4))
    def write_again(self, which: int) -> None:
        """Another write to it, which every holder sees."""
        self.number += 1
        shared = self.memories[which % len(self.memories)]
        shared.value = self.number % 251
        shared.memory[:] = shared.value

    @precondition(lambda self: self.memories)
    @rule(which=st.integers(0, 4))
    def forget(self, which: int) -> None:
        """The writer drops it; those that received it keep it."""
        self.memories.pop(which % len(self.memories)).memory = None

    @rule(keep=st.booleans())
    def receive(self, *, keep: bool) -> None:
        """The earliest element comes, or there is none yet, or no more."""
        if self.on_their_way:
            received: Any = self.reader.receive(timeout_seconds=0)
            sent = self.on_their_way.popleft()
            assert sent.is_same(received)
            if keep:
                self.kept.append((sent, received))
        else:
            with pytest.raises(EndOfPipeError if self.ended else TimeoutError):
                self.reader.receive(timeout_seconds=0)

    @precondition(lambda self: self.kept)
    @rule(which=st.integers(0, 100))
    def drop(self, which: int) -> None:
        """An element is given up."""
        self.kept.pop(which % len(self.kept))

    @precondition(lambda self: not self.ended)
    @rule(sure=st.integers(0, 9))
    def end(self, sure: int) -> None:
        """The writer ends, now and then; what it sent is still received."""
        if sure == 0 and not self.socket_may_be_full():
            self.writer.close()
            self.ended = True

    @invariant()
    def kept_elements_do_not_change(self) -> None:
        """Every kept element has its first value."""
        assert all(sent.is_same(received) for sent, received in self.kept)

    @invariant()
    def all_leases_are_known(self) -> None:
        """A slot is held once for each large element on its way or kept, and for each memory that the writer has."""
        if self.number == 0 or self.ended:
            return
        held = sum(sent.in_a_slot for sent in self.on_their_way) + len(self.memories)
        held += 0 if self.copies else sum(sent.in_a_slot for sent, _ in self.kept)
        counters = self.writer.arena.counters
        assert counters.leased - counters.returned == held

    def teardown(self) -> None:
        """Both ends are closed, and kept elements still have their values."""
        if hasattr(self, "writer"):
            while self.on_their_way:
                self.receive(keep=False)  # so that there is room for the last word
            self.writer.close()
            self.reader.close()
        self.kept_elements_do_not_change()
        self.kept.clear()
        self.memories.clear()


PipeMachine.TestCase.settings = settings(in_short(10), stateful_step_count=40)
TestPipe = pytest.mark.filterwarnings("ignore:.*received elements are still referenced")(PipeMachine.TestCase)
