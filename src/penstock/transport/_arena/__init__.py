"""Memory shared by processes, lent out in slots: one process owns it, others attach and hold what they are told of."""

from penstock.transport._arena._attached import AttachedArena as AttachedArena
from penstock.transport._arena._owner import Arena as Arena
from penstock.transport._arena._values import ArenaCounters as ArenaCounters
from penstock.transport._arena._values import Located as Located
from penstock.transport._arena._values import SlotPlace as SlotPlace
