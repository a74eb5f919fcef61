"""A writer's slots on CUDA devices: their use, and the limit on their memory.

A slot is idle when the reader has no hold on its *ticket*, a small lease in the arena. Slots that are too small are
dropped before a device's slots exceed the limit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock._memory import Lease
from penstock.errors import UsageError
from penstock.transport._encoding import MIN_SLOT_BYTES, WriterSlot

TICKET_BYTES: Final = 64


@dataclass(frozen=True, eq=False, slots=True)
class DeviceSlot:
    """A slot and its ticket."""

    memory: WriterSlot
    ticket: Lease

    @property
    def number(self) -> int:
        """Its number for the reader: the slot of its ticket in the arena."""
        return self.ticket.slot


class DeviceSlots:
    """The slots of one writer.

    Args:
        limit_bytes: the most memory of each device for them; None for no limit.
        is_held: returns whether the reader has a hold on a slot of the arena.
        lease_ticket: leases a ticket, or returns None if the arena has no room now.
    """

    def __init__(
        self, limit_bytes: int | None, is_held: Callable[[int], bool], lease_ticket: Callable[[], Lease | None]
    ) -> None:
        self._limit_bytes = limit_bytes
        self._is_held = is_held
        self._lease_ticket = lease_ticket
        self._slots: list[DeviceSlot] = []
        self.unsent: list[tuple[int, bytes]] = []
        """The descriptions to send to the reader before the next message: each a slot's number and bytes, in order.

        Empty bytes make the reader drop the slot; another slot may have its number next.
        """

    def __len__(self) -> int:
        return len(self._slots)

    def numbers(self) -> set[int]:
        """Return the slots' numbers."""
        return {slot.number for slot in self._slots}

    def take(self, device: int, size_bytes: int) -> DeviceSlot | None:
        """Return an idle slot that is large enough, or a new one; None if there is no room now.

        Args:
            device: the device's number.
            size_bytes: the size to hold.

        Raises:
            UsageError: the size is more than the limit.
        """
        if self._limit_bytes is not None and size_bytes > self._limit_bytes:
            raise UsageError(
                f"an element's tensors on a device must fit max_bytes={self._limit_bytes}; got {size_bytes} bytes on "
                f"cuda:{device}. Raise max_bytes, or send smaller elements"
            )
        idle = [slot for slot in self._slots if slot.memory.device == device and not self._is_held(slot.number)]
        fitting = [slot for slot in idle if slot.memory.size_bytes >= size_bytes]
        if fitting:
            return min(fitting, key=lambda slot: slot.memory.size_bytes)
        wanted_bytes = self._with_headroom(size_bytes)
        if not self._make_room(device, wanted_bytes, idle):
            wanted_bytes = size_bytes
            if not self._make_room(device, wanted_bytes, idle):
                return None
        ticket = self._lease_ticket()
        if ticket is None:
            return None
        slot = DeviceSlot(WriterSlot(device, wanted_bytes), ticket)
        self.unsent.append((slot.number, slot.memory.shared()))
        self._slots.append(slot)
        return slot

    def _with_headroom(self, size_bytes: int) -> int:
        return -(-(size_bytes + size_bytes // 4) // MIN_SLOT_BYTES) * MIN_SLOT_BYTES

    def _make_room(self, device: int, size_bytes: int, idle: Sequence[DeviceSlot]) -> bool:
        """Return whether a new slot fits under the limit, after idle ones were dropped for it if needed."""
        if self._limit_bytes is None:
            # The new slot replaces one that was too small.
            self._drop(idle[:1])
            return True
        total = sum(slot.memory.size_bytes for slot in self._slots if slot.memory.device == device)
        free = sum(slot.memory.size_bytes for slot in idle if slot in self._slots)
        if total - free + size_bytes > self._limit_bytes:
            return False
        for slot in [slot for slot in idle if slot in self._slots]:
            if total + size_bytes <= self._limit_bytes:
                break
            total -= slot.memory.size_bytes
            self._drop([slot])
        return True

    def _drop(self, slots: Sequence[DeviceSlot]) -> None:
        for slot in slots:
            if slot in self._slots:
                self._slots.remove(slot)
                self.unsent.append((slot.number, b""))
