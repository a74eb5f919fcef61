"""The memory of a crew in one of its processes, which asks for a region when it first needs it."""

import mmap
import os

from penstock._workers._processes import SharedDescriptors
from penstock.transport._arena._table import open_region
from penstock.transport._memory import Region


class Regions:
    """The crew's memory, as far as this process has met it."""

    def __init__(self, descriptors: SharedDescriptors) -> None:
        self._descriptors = descriptors
        self.known: dict[int, Region] = {}

    def get(self, number: int) -> Region:
        if number not in self.known:
            descriptor = self._descriptors.ask(number)
            try:
                self.known[number] = open_region(descriptor)
            finally:
                os.close(descriptor)
        return self.known[number]

    def private(self, number: int, size_bytes: int) -> mmap.mmap:
        """Return the beginning of some memory as it is now, whatever is done to it here."""
        descriptor = self.get(number).descriptor
        return mmap.mmap(descriptor, max(size_bytes, 1), mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)

    def keep(self, living: tuple[int, ...]) -> None:
        for number in self.known.keys() - living:
            del self.known[number]
