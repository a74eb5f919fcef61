"""The messages from a helper process to the trainer's: batches, events of elements, and the reason why a run ended.

Batches come through the tensor pipe, several small ones at once, as `(run, status, batches, reports, bytes_in_flight,
bounds)`. Where `bounds` is an array, all are stacked in the only one of `batches`, and batch i is its rows [bounds[i],
bounds[i + 1]): then several batches cost hardly more than one.
"""

import time
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._caught import Caught
from penstock._decisions import MESSAGE_BATCHES, decide
from penstock._graph import Element
from penstock._processes import PackedError, pack_error
from penstock._runtime._recorder import HelperRecorder
from penstock._runtime._shared_output import MIN_BYTES
from penstock._runtime._streams import EndOfEpoch
from penstock._streaming import Token
from penstock._tree import flatten
from penstock.errors import UsageError
from penstock.events import Event

_CHUNK_SECONDS: Final = 0.002  # of what is sent at once; sending takes a twentieth of it
_MAX_BATCHES: Final = 64


class RunStatus(IntEnum):
    """The status of a run, which each message states."""

    BATCHES = 0
    END = 1
    FAILED = 2


class BatchReport(NamedTuple):
    """The report that comes with a batch, and with the end of a run.

    Attributes:
        token: what the stream gave with the batch; with an error, the step that failed, or None for the next in order.
        events: what happened to elements since the batch before.
        filtered: what filters kept and left out since then: the number of the step, and how many.
        error: what ended the run.
    """

    token: Token
    events: tuple[Event, ...]
    filtered: tuple[tuple[int, int, int], ...]
    error: PackedError | None = None


Message: TypeAlias = tuple[int, int, list[Element], bytes, int, NDArray[np.int64] | None]
NO_REPORT: Final = BatchReport(None, (), ())


class TrainerGoneError(Exception):
    """Nobody receives batches any more."""


class Send(Protocol):
    """Sends batches, or all of them stacked with where each begins and ends."""

    def __call__(
        self,
        run: int,
        status: RunStatus,
        batches: list[Element],
        reports: list[BatchReport],
        bounds: list[int] | None = None,
        /,
    ) -> None: ...


class Outbox:
    """The batches that are sent together: as many as take a moment, and are small.

    Their number is a power of two, if it can be: each number is another layout for the pipe.

    Attributes:
        failing: the step whose batch can't be made or sent, where batches come in no order.
    """

    def __init__(
        self,
        recorder: HelperRecorder,
        chunk_bytes: int,
        run: int,
        send: Send,
    ) -> None:
        self._recorder = recorder
        self._chunk_bytes = chunk_bytes
        self._run = run
        self._send = send
        self.failing: Token = None
        self._batches: list[Element] = []
        self._reports: list[BatchReport] = []
        self._bytes = 0
        self._has_large = False  # a batch that may be sent where it lies: it goes now
        self._began = 0.0
        self._wanted = 1  # batches
        self._most = 1  # of the next message

    @property
    def is_empty(self) -> bool:
        return not self._batches

    @property
    def is_full(self) -> bool:
        return len(self._batches) >= self._most or self._bytes >= self._chunk_bytes or self._has_large

    def begin(self) -> None:
        """Begin to compute what will be sent next."""
        self._began = time.perf_counter()
        self._most = decide(MESSAGE_BATCHES, self._wanted)

    def add(self, batch: Element, token: Token) -> None:
        self._batches.append(batch)
        self._reports.append(BatchReport(token, *self._recorder.taken()))
        size_bytes = _size_bytes(batch)
        self._bytes += size_bytes
        self._has_large |= size_bytes >= MIN_BYTES

    def send_stacked(self, stacked: Element, bounds: list[int], tokens: Sequence[Token]) -> None:
        """Send batches that lie stacked in memory, at once; there are no others."""
        reports = [BatchReport(tokens[0], *self._recorder.taken())]
        if tokens[0] is not None:
            reports += (NO_REPORT._replace(token=token) for token in tokens[1:])
        self._send(self._run, RunStatus.BATCHES, [stacked], reports, bounds)

    def send(self) -> None:
        """Send what there is; of several batches of which one can't be sent, those before it."""
        self._learn()
        batches, reports = self._batches, self._reports
        self.drop()
        try:
            self._send(self._run, RunStatus.BATCHES, batches, reports)
        except UsageError as error:
            if len(batches) == 1:
                self.failing = reports[0].token
                raise UsageError(
                    f"a batch must be able to leave the helper process of isolated=True; got one of which {error}"
                ) from error
        else:
            return
        for batch, each in zip(batches, reports, strict=True):
            self._batches, self._reports = [batch], [each]
            self.send()

    def _learn(self) -> None:
        seconds = time.perf_counter() - self._began
        if seconds > _CHUNK_SECONDS:
            self._wanted = max(self._wanted // 2, 1)
        elif 2 * seconds < _CHUNK_SECONDS and 2 * self._bytes <= self._chunk_bytes and self.is_full:
            self._wanted = min(2 * self._wanted, _MAX_BATCHES)

    def end(self, error: BaseException) -> None:
        """Send what there is, and what ended the run."""
        status = RunStatus.END if isinstance(error, EndOfEpoch) else RunStatus.FAILED
        if self._batches:
            with Caught() as caught:
                self.send()
            if caught.error is not None:  # of a batch before the one that failed
                error, status = caught.taken(), RunStatus.FAILED
        if isinstance(error, TrainerGoneError):
            raise error
        packed = pack_error(error, with_cause=True) if status is RunStatus.FAILED else None
        self._send(self._run, status, [], [BatchReport(self.failing, *self._recorder.taken(), packed)])

    def drop(self) -> None:
        """Forget what there is."""
        self._batches, self._reports, self._bytes, self._has_large = [], [], 0, False


def _size_bytes(batch: Element) -> int:
    """Return about how large a batch's leaves are."""
    leaves, _ = flatten(batch)
    return sum(len(leaf) if isinstance(leaf, bytes) else int(getattr(leaf, "nbytes", 0)) for leaf in leaves)
