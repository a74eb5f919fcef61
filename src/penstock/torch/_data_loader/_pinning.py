"""Pinning the next batch in a thread, while the program computes on the one before.

To copy 38 MB into pinned memory takes 3.5 ms. A program that waits for each of its steps leaves the device idle
meanwhile, unless a thread does it, as in torch's loader. The thread takes turns with the program, as the one that
places the batches of a `penstock.torch.Loader`: in its turn the thread alone uses the iterator, and the program never
waits for a thread that hasn't begun.
"""

from collections.abc import Callable

from penstock._caught import Caught
from penstock._loader import PlacementThread, Turn
from penstock._os import weakly
from penstock.torch._data_loader._torch_private import pinned


class PinnedAhead:
    """Pins batches for one iterator, and owns the thread that does it, which starts with the first turn.

    Args:
        device: the kind of device, as torch names it.
        pin_next: a method of the iterator, which the thread calls in its turn: it calls `pin` for the next batch, if it
            can make that without a wait. An exception is dropped, and the program tries the same again.
    """

    def __init__(self, device: str, pin_next: Callable[[], None]) -> None:
        self._device = device
        self._pin_next = weakly(pin_next)  # the iterator owns this object
        self._thread = PlacementThread("penstock-pinning")
        self._turn: Turn | None = None
        self._pinned: list[object] = []  # the next batch, if the thread has pinned it

    def give(self) -> None:
        """Give the thread a turn, after which it may use the iterator."""
        if self._turn is None:
            pin_next = self._pin_next

            def work() -> None:
                with Caught():
                    pin_next()

            self._turn = self._thread.turn(work, _nothing)
        self._turn.give()

    def take_back(self) -> None:
        """Wait until the thread is in no turn."""
        if self._turn is not None:
            self._turn.take_back()

    def pin(self, batch: Callable[[], object]) -> None:
        """Pin the batch that `finish` gets next, in the thread."""
        self._pinned = [pinned(batch(), self._device)]

    def finish(self, batch: Callable[[], object]) -> object:
        """Return a batch in pinned memory; the thread may have pinned it, and is in no turn.

        Args:
            batch: returns the batch, or raises.
        """
        done, self._pinned = self._pinned, []
        return done[0] if done else pinned(batch(), self._device)

    def forget(self) -> None:
        """Drop the batch that was pinned: it isn't delivered."""
        self.take_back()
        self._pinned = []

    def close(self) -> None:
        """End the thread."""
        self.forget()
        self._thread.close()


def _nothing() -> None:
    """Do nothing: an abandoned turn has nothing to close."""
