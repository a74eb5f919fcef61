"""The room for the results of a job, in a worker process: a part of the job's memory, and offers of it to functions."""

from collections.abc import Callable
from typing import NamedTuple

from penstock._memory import Region, end_offer, is_offer_free, offer_array


class Offers:
    """The offers of one worker process: whether there is one, and of what size, follows from the elements before.

    Once two elements in a row had a largest array of the same size, memory of that size is offered to the function of
    the next one. A function that keeps its arrays gets no more offers.

    Attributes:
        was_kept: whether an array of the last offer is kept, so that the memory isn't shared any more in this process.
    """

    def __init__(self) -> None:
        self.was_kept = False
        self._largest_bytes = 0  # of the last element
        self._has_repeated = False
        self._are_kept = False

    @property
    def size_bytes(self) -> int:
        """The size to offer; 0 for no offer."""
        return self._largest_bytes if self._has_repeated and not self._are_kept else 0

    def note(self, largest_bytes: int) -> None:
        """Note the size of an element's largest array; 0 for no array."""
        self._has_repeated = largest_bytes == self._largest_bytes
        self._largest_bytes = largest_bytes

    def begin(self, memory: Region, start_bytes: int) -> None:
        """Offer memory from a place on."""
        offer_array(memory, start_bytes, self.size_bytes)

    @property
    def is_free(self) -> bool:
        """Whether no array is in the memory that is offered."""
        return is_offer_free()

    def end(self, memory: Region) -> None:
        """End the offer."""
        if end_offer(memory):
            self.was_kept = self._are_kept = True


class Room(NamedTuple):
    """Memory for results, and a function that reserves so many bytes of it and returns their start."""

    memory: Region
    take: Callable[[int], int]
    offers: Offers
