"""Elements go through a real pipe to a real other process and come back through another, and are what they were."""

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.errors import EndOfPipeError, UsageError
from penstock.transport import TensorPipeReader, TensorPipeWriter
from tests.promptness import PATIENCE_SECONDS
from tests.transport.encoding.samples import ARRAYS, ELEMENTS, assert_same
from tests.transport.pipe.children import free_path, running
from tests.transport.pipe.echo import Answers, Done, Question, echo

SMALLEST_LARGE = 65_537  # bytes: goes through shared memory


@dataclass(frozen=True)
class Plan:
    """An element to send, the way to send it, and the time for which its answer is kept.

    Attributes:
        element: the part that is copied.
        referenced: arrays that `empty` made the memory for.
        keep_for: so many later answers, or to the end of the pipe and beyond it.
    """

    element: Any
    referenced: list[Any]
    keep_for: int

    def expected(self) -> dict[str, Any]:
        """Return what must come back."""
        named = {f"referenced {number}": np.array(array, order="C") for number, array in enumerate(self.referenced)}
        return {"element": self.element, **named}

    def made(self, writer: TensorPipeWriter) -> dict[str, Any]:
        """Return the element to send."""
        made: dict[str, Any] = {"element": self.element}
        for number, array in enumerate(self.referenced):
            memory = writer.empty(array, timeout_seconds=PATIENCE_SECONDS)
            memory[...] = array
            made[f"referenced {number}"] = memory
        return made


def large_array(dtype: str, extra_bytes: int, how: str) -> NDArray[Any]:
    """Return an array that is not sent through the socket."""
    size = (SMALLEST_LARGE + extra_bytes) // np.dtype(dtype).itemsize // 6 + 1
    array = np.arange(size * 6).astype(dtype).reshape(3, size, 2)
    match how:
        case "fortran":
            return np.asfortranarray(array)
        case "strided":
            return np.repeat(array, 2, axis=1)[:, ::2]
        case _:
            return array


LARGE_ARRAYS = st.builds(
    large_array,
    st.sampled_from(["u1", "f4", ">i2", "c16", "m8[s]"]),
    st.integers(0, 130_000),
    st.sampled_from(["plain", "fortran", "strided"]),
)
PARTS = st.one_of(
    ELEMENTS,
    LARGE_ARRAYS,
    st.dictionaries(st.sampled_from("abc"), ARRAYS | LARGE_ARRAYS, max_size=2),
    st.tuples(ELEMENTS, LARGE_ARRAYS),
)
PLANS = st.builds(Plan, PARTS, st.lists(ARRAYS | LARGE_ARRAYS, max_size=2), st.sampled_from([0, 1, 3, 1000]))
KEPT_PLANS = st.builds(Plan, LARGE_ARRAYS, st.lists(LARGE_ARRAYS, min_size=1, max_size=2), st.just(1000))
CAPACITIES = st.integers(1, 4)
LIMITS = st.sampled_from([None, 3 << 19, 8 << 20])  # an element takes up to 1 MB


@pytest.fixture(scope="module")
def other_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a process that answers."""
    address = free_path(tmp_path_factory.mktemp("echo"))
    with TensorPipeReader() as waiting, running("spawn", echo, address, waiting.address) as process:
        assert waiting.receive(timeout_seconds=PATIENCE_SECONDS) == "listening"
        yield address
        process.kill()


@contextmanager
def sending(writer: TensorPipeWriter, answers: Answers, plans: list[Plan]) -> Generator[None]:
    """Ask everything, from a thread of its own: while it waits, answers are received here."""
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            writer.send(answers, timeout_seconds=PATIENCE_SECONDS)
            for plan in plans:
                writer.send(Question(plan.made(writer)), timeout_seconds=PATIENCE_SECONDS)
            writer.send(Done(len(plans)), timeout_seconds=PATIENCE_SECONDS)
        except BaseException as failure:  # noqa: BLE001 - raised in the waiting thread
            failures.append(failure)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        for failure in failures:
            raise failure


class Keeper:
    """Keeps answers for as long as planned, and sees that none changes meanwhile."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, dict[str, Any], Any]] = []
        self.seen = 0

    def take(self, answer: Any, plan: Plan) -> None:
        """Look at an answer, and keep it."""
        expected = plan.expected()
        assert_same(expected, answer)
        self.seen += 1
        self.kept.append((self.seen + plan.keep_for, expected, answer))
        self.drop([each for each in self.kept if each[0] <= self.seen])

    def drop(self, given_up: list[tuple[int, dict[str, Any], Any]]) -> None:
        """Look at answers once more, and give them up."""
        for _, expected, answer in given_up:
            assert_same(expected, answer)
        self.kept = [each for each in self.kept if not any(each is other for other in given_up)]


def receive_with_room(reader: TensorPipeReader, keeper: Keeper) -> Any:
    """Receive; where the limit doesn't allow for all that is kept, keep less."""
    while True:
        try:
            return reader.receive(timeout_seconds=PATIENCE_SECONDS)
        except UsageError as error:
            assert "max_bytes" in str(error)  # noqa: PT017 - it is expected sometimes
            assert keeper.kept
            event("answers had to be given up for memory")
            keeper.drop(keeper.kept[:1])


@pytest.mark.filterwarnings("ignore:.*received elements are still referenced")
@given(
    plans=st.lists(PLANS, min_size=1, max_size=10) | st.lists(KEPT_PLANS, min_size=6, max_size=10),
    capacities=st.tuples(CAPACITIES, CAPACITIES),
    limits=st.tuples(LIMITS, LIMITS),
    by_reference=st.booleans(),
    copy=st.booleans(),
)
def test_elements_come_back_as_they_were_sent(
    other_process: str,
    plans: list[Plan],
    capacities: tuple[int, int],
    limits: tuple[int | None, int | None],
    *,
    by_reference: bool,
    copy: bool,
) -> None:
    """All, whole and in order; kept ones never change, even after both pipes are closed; all memory returns."""
    keeper = Keeper()
    with (
        TensorPipeReader(copy=copy) as reader,
        TensorPipeWriter(other_process, capacity=capacities[0], max_bytes=limits[0]) as writer,
    ):
        answers = Answers(reader.address, capacities[1], limits[1], by_reference)
        with sending(writer, answers, plans):
            for plan in plans:
                keeper.take(receive_with_room(reader, keeper), plan)
            with pytest.raises(EndOfPipeError):
                receive_with_room(reader, keeper)
        counters = writer.arena.counters
        assert counters.leased == counters.returned
        assert writer.counters.messages == len(plans) + 2
        assert reader.messages == len(plans)
    keeper.drop(list(keeper.kept))
