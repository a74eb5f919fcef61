"""The scheduler's memory in one of its processes, which requests each region when it first needs it."""

import os

from penstock._memory import Region, open_region
from penstock._workers._processes import SharedDescriptors


class Regions:
    """The regions that this process has opened."""

    def __init__(self, descriptors: SharedDescriptors) -> None:
        self._descriptors = descriptors
        self.known: dict[int, Region] = {}

    def get(self, number: int) -> Region:
        """Return a region by its number."""
        if number not in self.known:
            descriptor = self._descriptors.ask(number)
            try:
                self.known[number] = open_region(descriptor)
            finally:
                os.close(descriptor)
        return self.known[number]

    def keep(self, living: tuple[int, ...]) -> None:
        """Release all but those with some numbers."""
        for number in self.known.keys() - living:
            del self.known[number]
