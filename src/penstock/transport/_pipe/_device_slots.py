"""A writer's slots on CUDA devices: which are idle, and how much memory they take.

A slot is idle when the reader has no hold on its ticket, a small lease in the arena. Slots that are too small are given
up before a device's slots exceed the limit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.errors import UsageError
from penstock.transport._encoding import MIN_SLOT_BYTES, WriterSlot
from penstock.transport._memory import Lease

TICKET_BYTES: Final = 64


@dataclass(frozen=True, eq=False, slots=True)
class DeviceSlot:
    """A slot and its ticket."""

    memory: WriterSlot
    ticket: Lease

    @property
    def number(self) -> int:
        """Its number for the reader: that of its ticket in the arena."""
        return self.ticket.slot


class DeviceSlots:
    """The slots of one writer.

    Args:
        limit_bytes: how much memory of each device they may take; None for any.
        is_held: whether the reader has a hold on a slot of the arena.
        lease_ticket: leases a ticket, or returns None where the arena has no room now.
    """

    def __init__(
        self, limit_bytes: int | None, is_held: Callable[[int], bool], lease_ticket: Callable[[], Lease | None]
    ) -> None:
        self._limit_bytes = limit_bytes
        self._is_held = is_held
        self._lease_ticket = lease_ticket
        self._slots: list[DeviceSlot] = []
        self.untold: list[tuple[int, bytes]] = []
        """What the reader has to be sent before the next message: a slot's number and its description, in order.

        An empty description has it forget the slot, whose number another one may have next.
        """

    def __len__(self) -> int:
        return len(self._slots)

    def numbers(self) -> set[int]:
        """Return the slots' numbers."""
        return {slot.number for slot in self._slots}

    def take(self, device: int, size_bytes: int) -> DeviceSlot | None:
        """Return an idle slot that is large enough, which may be made for it; None where there is no room now.

        Args:
            device: the device's number.
            size_bytes: what it must hold.

        Raises:
            UsageError: that is more than the limit.
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
        self.untold.append((slot.number, slot.memory.shared()))
        self._slots.append(slot)
        return slot

    def _with_headroom(self, size_bytes: int) -> int:
        return -(-(size_bytes + size_bytes // 4) // MIN_SLOT_BYTES) * MIN_SLOT_BYTES

    def _make_room(self, device: int, size_bytes: int, idle: Sequence[DeviceSlot]) -> bool:
        """Return whether a slot may be made, for which idle ones are given up."""
        if self._limit_bytes is None:
            # One that grows replaces one that was too small.
            self._give_up(idle[:1])
            return True
        total = sum(slot.memory.size_bytes for slot in self._slots if slot.memory.device == device)
        free = sum(slot.memory.size_bytes for slot in idle if slot in self._slots)
        if total - free + size_bytes > self._limit_bytes:
            return False
        for slot in [slot for slot in idle if slot in self._slots]:
            if total + size_bytes <= self._limit_bytes:
                break
            total -= slot.memory.size_bytes
            self._give_up([slot])
        return True

    def _give_up(self, slots: Sequence[DeviceSlot]) -> None:
        for slot in slots:
            if slot in self._slots:
                self._slots.remove(slot)
                self.untold.append((slot.number, b""))
