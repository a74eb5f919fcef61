"""Shared memory in slots: one process owns the arena and leases slots; other processes attach and hold slots.

Problem: arrays must move between processes without a copy; their memory must be used again only when no process has a
view of it; and any process may be killed at any instruction. Solution: a table in shared memory counts, for each slot,
the *holds* of each participant. The owner alone leases slots and adds holds: on its own behalf, or on a reader's behalf
before it sends the slot. A participant only lowers its own counts. So no lock exists that a killed process could keep,
and nobody races for a slot. The owner removes the counts of a dead participant once its pidfd reports the end.

Rejected: a lock in shared memory (a killed process keeps it, or leaves the data behind it half changed); one file or
descriptor for each array (thousands of descriptors, and new pages for each batch); reference counts that the reader
raises (a reader that dies before it raises the count, or after, makes it wrong for ever).

Invariants:
  - A slot is leased again only when all its counts are 0.
  - Only the owner raises a count. A participant's words are changed by that participant, or by the owner once the
    participant has certainly ended.
  - `leased` and `returned` count exactly; they are equal when nobody holds anything.
"""

from penstock.transport._arena._attached import AttachedArena as AttachedArena
from penstock.transport._arena._owner import Arena as Arena
from penstock.transport._arena._values import ArenaCounters as ArenaCounters
from penstock.transport._arena._values import Located as Located
from penstock.transport._arena._values import SlotPlace as SlotPlace
