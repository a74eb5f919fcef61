"""Iterables with a state, each by one of the common conventions."""

import json
from collections.abc import Callable, Iterator
from typing import Any

COUNT = 37


def order(epoch: int) -> list[int]:
    """Return the order of an epoch."""
    return sorted(range(COUNT), key=lambda number: (number + 1) * (2 * epoch + 7) % 41)


class Lazy:
    """By torchdata's convention, with a generator as `__iter__`: nothing of it runs before the first element."""

    def __init__(self) -> None:
        self._at = 0
        self._start = 0

    def __iter__(self) -> Iterator[int]:
        self._at, self._start = self._start, 0
        while self._at < COUNT:
            self._at += 1
            yield self._at

    def state_dict(self) -> dict[str, Any]:
        """Return the number of elements so far."""
        return {"at": self._at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next pass there."""
        self._start = state["at"]


class Shuffled(Lazy):
    """An iterable with another order in each epoch, by `set_epoch`."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self._at, self._start = self._start, 0
        for number in order(self.epoch)[self._at :]:
            self._at += 1
            yield number


class Eager:
    """By torchdata's convention, where the iterator has the state; also under Penstock's names."""

    def __iter__(self) -> "Counter":
        return Counter()


class Counter:
    """An iterator with a state."""

    def __init__(self) -> None:
        self._at = 0

    def __iter__(self) -> "Counter":
        return self

    def __next__(self) -> int:
        if self._at == COUNT:
            raise StopIteration
        self._at += 1
        return self._at

    def get_state(self) -> int:
        """Return the number of elements so far."""
        return self._at

    def set_state(self, state: int) -> None:
        """Continue there."""
        self._at = state


class Continuing:
    """An iterable under Penstock's names that continues a pass that was left, and gives nothing at the end."""

    def __init__(self) -> None:
        self._at = 0

    def __iter__(self) -> Iterator[int]:
        while self._at < COUNT:
            self._at += 1
            yield self._at

    def get_state(self) -> dict[str, int]:
        """Return the number of elements so far."""
        return {"at": self._at}

    def set_state(self, state: dict[str, int]) -> None:
        """Continue there."""
        self._at = state["at"]


class CountsPasses:
    """An iterable under Penstock's names that counts its passes, each of which has other elements."""

    def __init__(self) -> None:
        self._passes = self._at = self._start = 0

    def __iter__(self) -> Iterator[int]:
        self._passes += not self._start
        self._at, self._start = self._start, 0
        while self._at < COUNT:
            self._at += 1
            yield self._at + 100 * self._passes

    def get_state(self) -> list[int]:
        """Return the pass, and the number of elements so far."""
        return [self._passes, self._at]

    def set_state(self, state: list[int]) -> None:
        """Start the next pass there."""
        self._passes, self._start = state


class Streaming:
    """A stand-in for MosaicML Streaming's `StreamingDataset`, with its bookkeeping of epochs and resumed samples.

    It counts its passes as `next_epoch`; the epoch decides the order of a pass. A loaded state stays until another is
    loaded, and is outdated when `next_epoch` is past its epoch. `state_dict` takes the number of read samples.
    """

    def __init__(self) -> None:
        self.next_epoch = 0
        self._resume_text = ""

    def _resume(self, epoch: int) -> tuple[int, int]:
        saved = json.loads(self._resume_text) if self._resume_text else {"epoch": -2}
        if saved["epoch"] < epoch:
            return epoch, 0
        return saved["epoch"], saved["sample_in_epoch"]

    def __iter__(self) -> Iterator[int]:
        epoch, sample_in_epoch = self._resume(self.next_epoch)
        self.next_epoch = epoch + 1
        yield from order(epoch)[sample_in_epoch:]

    def state_dict(self, num_samples: int, from_beginning: bool) -> dict[str, Any]:  # noqa: FBT001 - as Streaming's
        """Return the state after so many samples, of the epoch or since the resume."""
        epoch, offset = self._resume(self.next_epoch - 1)
        return {"epoch": epoch, "sample_in_epoch": num_samples if from_beginning else offset + num_samples}

    def load_state_dict(self, obj: dict[str, Any]) -> None:
        """Start the next pass there, unless it is of a later epoch."""
        self._resume_text = json.dumps(obj)


ITERABLES: dict[str, Callable[[], Any]] = {"lazy": Lazy, "shuffled": Shuffled, "eager": Eager, "streaming": Streaming}
