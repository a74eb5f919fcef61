"""What a worker process is told at its start, and how it tells of what a user's function raises."""

import os
import pickle
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock._pickles import pickler
from penstock._runtime._job_failure import ToldError
from penstock.batching import LayoutMismatchError
from penstock.torch._data_loader._pickling import Arrived, Sealed
from penstock.torch._data_loader._torch_private import SentError, become_worker, worker_number

_TEXT_CHARACTERS: Final = 50_000  # of a traceback, from its end


@frozen(eq=False)
class Work:
    """What is computed: the functions of the user's that workers call.

    Attributes:
        collate_fn: of the elements of a batch, or of one where batches aren't made.
        init_fn: the user's, called with the number of each worker at its start; None for nothing.
        is_batched: whether indices come in lists.
        dataset: the user's. The last, since the modules that the others need are looked for in a pickle's beginning.
    """

    collate_fn: Callable[[Any], Any]
    init_fn: Callable[[int], object] | None
    is_batched: bool
    dataset: Any

    @property
    def reads_at_once(self) -> bool:
        """Whether the dataset gives all elements of a batch in one call."""
        return self.is_batched and bool(getattr(self.dataset, "__getitems__", None))


@frozen(eq=False)
class Start:
    """Called in each worker before its first task.

    Attributes:
        work: sealed where this is sent from, arrived where it is called.
        num_workers: how many workers there are.
        base_seed: of the iterator that they work for.
        first: the number of the first worker of a crew.
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
    """Return what has arrived in a worker."""
    assert isinstance(sent, Arrived)
    return cast("Work", sent.value)


def sent_error(error: BaseException) -> SentError:
    """Return an exception as it is sent, without what it holds."""
    text = "".join(traceback.format_exception(error))[-_TEXT_CHARACTERS:]
    if isinstance(error, Exception):
        return SentError(type(error), text, f"in DataLoader worker process {worker_number()}")
    return SentError(RuntimeError, text, f"in DataLoader worker (pid(s) {os.getpid()}), which exited unexpectedly,")


@contextmanager
def telling() -> Generator[None]:
    """Have the consumer told, in torch's words, of what is raised inside."""
    with Caught() as caught:
        yield
    if caught.error is None:
        return
    error = caught.taken()
    if isinstance(error, LayoutMismatchError):
        raise error
    raise ToldError(_note(sent_error(error))) from None


def _note(sent: SentError) -> bytes:
    with Caught():
        return bytes(pickler().dumps(sent, protocol=pickle.HIGHEST_PROTOCOL))
    return pickle.dumps(sent._replace(kind=RuntimeError), protocol=pickle.HIGHEST_PROTOCOL)


def told_error(note: bytes) -> SentError | None:
    """Return what `telling` has told; None if the note is another's."""
    return pickle.loads(note) if note[:1] == pickle.PROTO else None
