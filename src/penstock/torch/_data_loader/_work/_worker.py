"""The start of a DataLoader's worker, and the exceptions of the user's functions that it sends to the consumer."""

import os
import pickle
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._pickles import pickler
from penstock._runtime import NotedError
from penstock.batching import LayoutMismatchError
from penstock.torch._data_loader._pickling import Arrived, Sealed
from penstock.torch._data_loader._torch_private import SentError, become_worker, worker_number

_TEXT_CHARACTERS: Final = 50_000  # of a traceback, from its end


@frozen(eq=False)
class Work:
    """The user's dataset and functions, which workers call.

    Attributes:
        collate_fn: called with the elements of a batch, or with one element where elements aren't batched.
        init_fn: called with the number of each worker at its start; None for no call.
        is_batched: whether indices come in lists.
        dataset: the dataset. It is the last field, since only the beginning of a pickle is searched for modules that
            workers need.
    """

    collate_fn: Callable[[Any], Any]
    init_fn: Callable[[int], object] | None
    is_batched: bool
    dataset: Any

    @property
    def reads_at_once(self) -> bool:
        """Whether the dataset returns all elements of a batch in one call."""
        return self.is_batched and bool(getattr(self.dataset, "__getitems__", None))


@frozen(eq=False)
class Start:
    """The function that each worker calls before its first job.

    Attributes:
        work: `Sealed` in the consumer, `Arrived` in the worker.
        num_workers: the number of workers.
        base_seed: the base seed of the iterator that the workers serve.
        first: the number of the scheduler's first worker.
    """

    work: Sealed | Arrived
    num_workers: int
    base_seed: int
    first: int = 0

    def __call__(self, place: int) -> None:
        number = self.first + place
        work = work_of(self.work)
        become_worker(number, self.num_workers, self.base_seed, work.dataset)
        if work.init_fn is None:
            return
        with Caught() as caught:
            work.init_fn(number)
        if isinstance(caught.error, Exception):
            sent_error(caught.error).raise_again()
        elif caught.error is not None:
            raise caught.taken()


def work_of(sent: object) -> Work:
    """Return the work that a worker received."""
    assert isinstance(sent, Arrived)
    return cast("Work", sent.value)


def sent_error(error: BaseException) -> SentError:
    """Return an exception in the form in which it is sent: its type and text, without the objects that it refers to."""
    text = "".join(traceback.format_exception(error))[-_TEXT_CHARACTERS:]
    if isinstance(error, Exception):
        return SentError(type(error), text, f"in DataLoader worker process {worker_number()}")
    return SentError(RuntimeError, text, f"in DataLoader worker (pid(s) {os.getpid()}), which exited unexpectedly,")


@contextmanager
def sending_errors() -> Generator[None]:
    """Send exceptions of the block to the consumer, which raises them with torch's message."""
    with Caught() as caught:
        yield
    if caught.error is None:
        return
    error = caught.taken()
    if isinstance(error, LayoutMismatchError):
        raise error
    raise NotedError(_note(sent_error(error))) from None


def _note(sent: SentError) -> bytes:
    with Caught():
        return bytes(pickler().dumps(sent, protocol=pickle.HIGHEST_PROTOCOL))
    return pickle.dumps(sent._replace(kind=RuntimeError), protocol=pickle.HIGHEST_PROTOCOL)


def received_error(note: bytes) -> SentError | None:
    """Return the exception that `sending_errors` sent; None if the note is of another kind."""
    return pickle.loads(note) if note[:1] == pickle.PROTO else None
