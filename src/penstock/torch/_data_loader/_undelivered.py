"""Iterators that keep a batch if a signal's handler raises an exception inside `next`.

Guarantees:
  - Signals' handlers run while `next` waits for workers, and at its end; never while samplers draw, jobs are armed or
    batches are made of their results.
  - `next` raises the exception of a handler once. If `next` had a batch, an error or the end by then, the next call
    delivers that, and until then the iterator's position is the one before it.
"""

from abc import ABC, abstractmethod
from functools import partial
from typing import Final, Generic, NamedTuple, Self, TypeVar

import torch

from penstock._caught import Caught
from penstock._os import HeldInterrupts, holding_interrupts

At = TypeVar("At")

_NOTHING: Final = object()


class _Outcome(NamedTuple, Generic[At]):
    """A batch or an error that was not delivered, and the position after it."""

    batch: object
    error: BaseException | None
    after: At


class InterruptibleIterator(ABC, Generic[At]):
    """Delivers each batch once, whenever signals' handlers raise. `At` is the type of a position."""

    def __init__(self) -> None:
        self._undelivered: _Outcome[At] | None = None

    def __iter__(self) -> Self:
        return self

    @holding_interrupts
    def __next__(self, held: HeldInterrupts) -> object:
        before = self._position()
        found, self._undelivered = self._undelivered, None
        if found is None:
            found = self._outcome(held)
        else:
            self._go_to(found.after)
        held.undo = partial(self._keep, found, before)
        if found.error is None:
            return found.batch
        try:
            raise found.error
        finally:
            del found  # the error's traceback holds this frame

    def _outcome(self, held: HeldInterrupts) -> _Outcome[At]:
        batch: object = _NOTHING
        with Caught(Exception) as caught, torch.autograd.profiler.record_function(self._name()):
            batch = self._advance(held)
        error = None if caught.error is None else caught.taken()
        try:
            if error is not None and held.has_raised:
                raise error
            return _Outcome(batch, error, self._position())
        finally:
            del error  # its traceback holds this frame

    def _keep(self, found: _Outcome[At], before: At) -> None:
        self._undelivered = found
        self._go_to(before)

    def _forget(self) -> None:
        """Drop an undelivered batch or error: another epoch begins."""
        self._undelivered = None

    def _name(self) -> str:
        return f"enumerate(DataLoader)#{type(self).__name__}.__next__"

    @abstractmethod
    def _advance(self, held: HeldInterrupts) -> object:
        """Return the next batch, or raise; call `held.allow` only where an exception loses nothing."""

    @abstractmethod
    def _position(self) -> At:
        """Return the iterator's position, as a state records it."""

    @abstractmethod
    def _go_to(self, position: At) -> None:
        """Set the position that a state records."""
