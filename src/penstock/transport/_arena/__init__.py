"""Shared memory in slots: one process owns the arena and leases slots; other processes attach and hold slots.

The problem: arrays must move between processes without a copy. Their memory must be used again only when no process
has a view of it. And any process may be killed at any instruction.

The solution: a table in shared memory counts, for each slot, the *holds* of each participant. The owner alone leases
slots and adds holds: on its own behalf, or on a reader's behalf before it sends the slot. A participant only lowers its
own counts. So no lock exists that a killed process could keep, and processes never race for a slot. The owner removes
the counts of a dead participant once the pidfd of its process reports the end.

Rejected: a lock in shared memory (a killed process keeps it, or leaves the data that it protects half changed); one
file or descriptor for each array (thousands of descriptors, and new pages for each batch); reference counts that the
reader raises (if the reader dies just before or after that, the count stays wrong).

Invariants:
  - A slot is leased again only when all its counts are 0.
  - Only the owner raises a count. Only a participant changes its own words in the table, until it has certainly ended;
    then the owner does.
  - `leased` and `returned` count exactly; they are equal when no process holds anything.
"""

from penstock.transport._arena._attached import AttachedArena as AttachedArena
from penstock.transport._arena._owner import Arena as Arena
from penstock.transport._arena._table import ArenaCounters as ArenaCounters
from penstock.transport._arena._table import Located as Located
from penstock.transport._arena._table import SlotPlace as SlotPlace
