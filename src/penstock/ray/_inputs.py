"""The inputs of folds, whose elements the processes of a pool compute, in spans of positions.

A dataset that is read in order has steps that take one element after the other, such as `pack`, and inputs whose
elements depend on their positions alone. A thread of the trainer runs the former ahead, where they cost little, and the
processes of the pool compute the latter. So the fold, its state and its order are those of any other loader.

Guarantees:
  - The elements of an input come in order, each exactly once, whichever processes compute them.
  - The elements before a failing one come first. This thread computes those of a span that failed, one by one, so that
    the exception is raised here.
  - An element with which eight processes in a row were lost is a WorkerError that names it, or is left to `on_error=`.
"""

import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

from penstock._graph import Block
from penstock._os import Bell
from penstock._pickles import load_parts
from penstock._runtime import Client
from penstock._runtime._failing_work import crashing_position_error, describe_record_at
from penstock._runtime._isolated_helper import described_rows
from penstock._runtime._recovery import leave_to_steps
from penstock._streaming import BlockInput, Chunk, one_by_one
from penstock.errors import WorkerError
from penstock.ray._dealer import Dealer, Learned, Owner, Span
from penstock.ray._team import Member
from penstock.ray._worker import InputWork

if TYPE_CHECKING:
    from concurrent.futures import Future

    from penstock._readings import Added
    from penstock.events import Event
    from penstock.ray._sent import Failed, Sent
    from penstock.ray._worker import Computed

_MOST_POSITIONS: Final = 1024  # of a span


class Dealing(Owner, Protocol):
    """The runtime of the loader.

    Attributes:
        crashing_rows: elements that are known to crash processes, as in `Context`.
        learned: what spans of an input have shown, by its number.
    """

    crashing_rows: dict[tuple[int, ...], Exception]
    learned: dict[int | None, Learned]

    def sent(self) -> "tuple[Sent, object]":
        """Return the arguments by which a process gets the plan."""
        ...

    def prepare(self) -> None:
        """Call `worker_init` in the calling thread, once."""
        ...


class _Positions(NamedTuple):
    """Positions of an input, by their numbers in its input range, as the work of spans."""

    start: int
    stop: int

    @property
    def steps(self) -> int:
        """The number of positions."""
        return self.stop - self.start

    def part(self, start: int, steps: int, /) -> "_Positions":
        """Return some of the positions."""
        first = self.start + start
        return _Positions(first, min(first + steps, self.stop))


class _Input:
    """The positions of one input, as a kind of work."""

    def __init__(self, runtime: Dealing, block_input: BlockInput) -> None:
        self._runtime = runtime
        self._input = block_input

    def call(self, member: Member, work: _Positions, /, *, with_care: bool) -> "Future[Computed | Failed]":
        del with_care  # a single position needs none: its element is known
        own, runtime = self._input, self._runtime
        known = described_rows(runtime.crashing_rows)
        remembered = runtime.recorder.remembered()
        task = InputWork(own.number, own.epoch, own.input_range, work.start, work.stop, remembered, known)
        result: Future[Computed | Failed] = member.actor.evaluate.remote(*runtime.sent(), task).future()
        return result

    def describe(self, work: _Positions, /) -> str:
        positions = self._input.input_range.positions(work.start, work.start + 1)
        record = describe_record_at(self._input.node, self._input.epoch, int(positions[0]))
        return f"position {positions[0]} of epoch {self._input.epoch}, {record}"

    def name(self, work: _Positions, /) -> str:
        return f"input {self._input.number}, elements {work.start} to {work.stop - 1}"

    def step(self, work: _Positions, /) -> None:
        del work


class PoolReader:
    """Reads the inputs of a dataset: the processes of a pool compute positions ahead, for each input that is read.

    Args:
        runtime: the owner.
        client: of the runtime.
    """

    def __init__(self, runtime: Dealing, client: Client) -> None:
        self._runtime = runtime
        self._client = client
        self._dealers: dict[int, Dealer[_Positions]] = {}  # by the number of the input
        self._closed = False

    @property
    def waiting_bytes(self) -> int:
        """The bytes of elements that have arrived."""
        return sum(dealer.waiting_bytes for dealer in list(self._dealers.values()))

    def __call__(self, block_input: BlockInput, start: int) -> Iterator[Chunk]:
        """Yield the chunks of an input from position `start` in its range on."""
        dealer = self._open(block_input, start)
        while (span := self._next(dealer)) is not None:
            first, stop = span.work
            if span.crash is not None:
                self._replace_crashing(block_input, first, span.crash)
                dealer = self._open(block_input, first)
                continue
            evaluated = self._evaluated(span)
            if isinstance(evaluated, Block):
                yield block_input.chunk(first, stop, evaluated)
            else:
                self._runtime.prepare()
                yield from one_by_one(block_input, first, stop, self._client.before_wait)
                self._client.log_complaint(evaluated)
        if self._dealers.get(block_input.number) is dealer:
            self._close(block_input.number)

    def _open(self, block_input: BlockInput, start: int) -> Dealer[_Positions]:
        number = block_input.number
        self._close(number)
        works = [_Positions(start, block_input.input_range.total)]
        learned = self._runtime.learned.setdefault(
            number, Learned(_MOST_POSITIONS, is_shared=self._runtime.team.is_shared)
        )
        kind = _Input(self._runtime, block_input)
        dealer = self._dealers[number] = Dealer(self._runtime, kind, works, learned=learned, bell=Bell())
        if self._closed:  # another thread closed the reader, and may not have seen this dealer
            dealer.close()
        return dealer

    def _next(self, dealer: Dealer[_Positions]) -> Span[_Positions] | None:
        client, began = self._client, time.perf_counter()
        client.stall = dealer.stall  # the consumer logs the wait
        try:
            if not dealer.is_ready():
                client.before_wait()
            return dealer.next(logs=False)
        finally:
            client.waited_until, client.stall = time.monotonic(), None
            client.readings.times("fold").leave_out(time.perf_counter() - began)

    def _evaluated(self, span: Span[_Positions]) -> Block | str:
        """Return the elements of a span, or the exception that was raised there, as text; empty for no answer.

        Raises:
            Exception: the process can't compute any element.
        """
        error, span.error = span.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # otherwise its traceback would keep it and the stream
        if span.computed is None:
            return ""
        loaded = load_parts(span.computed.parts, copied_bytes=sys.maxsize)  # so that arrays may be written to
        evaluated, events, times = cast("tuple[Block | str, tuple[Event, ...], Added]", loaded)
        self._runtime.readings.include(times, "the pool")
        for event in events:
            self._runtime.recorder.observe(event)
        return evaluated

    def _replace_crashing(self, block_input: BlockInput, number: int, crash: WorkerError) -> None:
        """Replace or leave out the element that crashes processes, if a step allows it; raise otherwise."""
        position = int(block_input.input_range.positions(number, number + 1)[0])
        at = block_input.epoch, position, block_input.number
        leave_to_steps(self._client, block_input.node, at, crashing_position_error(block_input, number, crash))

    def _close(self, number: int) -> None:
        dealer = self._dealers.pop(number, None)
        if dealer is not None:
            dealer.close()

    def close(self) -> None:
        """Take no more spans."""
        for number in list(self._dealers):
            self._close(number)

    def give_up(self) -> None:
        """Take no more spans, and open none; from any thread."""
        self._closed = True
        for dealer in list(self._dealers.values()):
            dealer.close()
