"""The remaining pieces of the last parent element of each step that makes several elements of one.

The problem: `unbatch`, `flat_map` and `windows` make many elements of one parent element. A block evaluates each parent
once, but the elements of one parent are often in several blocks, one after the other. Each block would evaluate the
parent again, for a row alone as often as it has rows.

The solution: a thread keeps, for each such step, the parent of the last element of its last block. The next block takes
the pieces that it needs from there. Blocks of whole parents (`_runtime._queue`) do the rest where several workers share
the elements of one parent.

Rejected: keeping several parents of a step, which costs the memory of as many episodes or batches, and gains little
under a random order. Sharing parents between threads, since a thread would wait for another in the midst of a block.

Invariants:
  - Each piece is handed out once, and forgotten: no two elements share an array. (A window is a copy of its frames, so
    there the episode itself is kept.)
  - A parent is kept only after its evaluation succeeded without an event, such as a substitution: each element whose
    evaluation observes something is evaluated for each block, so no observer misses it.
  - A piece belongs to a step by the step's identity, so datasets never exchange pieces.
  - `take` removes a parent at once: code that interrupts an evaluation, such as a signal handler, finds nothing.
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from penstock._graph._nodes import Node

_MAX_STEPS: Final = 16
"""Steps whose parents are kept: as many parts of a mixture may be read in turns without a repeated evaluation."""


class KeptParent(NamedTuple):
    """A parent element whose pieces may be needed by the next block."""

    step: "Node"
    """The step that makes elements of it."""
    epoch: int
    position: int
    pieces: Any
    """Its pieces that were not handed out, by their ordinal; or the element, if its pieces are copies."""


class KeptPieces:
    """The kept parents of one thread, and two counters by which its evaluations see what happened below them.

    The counters are here since all contexts of a thread have this one object: a context that `replace` made, as for
    requested records, counts on.

    Attributes:
        events: the number of events that the thread's evaluations have observed. A step that finds it changed keeps, or
            stores, no element that was evaluated meanwhile.
        parent_seconds: the time in which the thread evaluated parents. It includes that of their own parents.
    """

    __slots__ = ("_kept", "events", "parent_seconds")

    def __init__(self) -> None:
        self.events = 0
        self.parent_seconds = 0.0
        self._kept: dict[int, KeptParent] = {}  # by the identity of the step, the oldest first

    def take(self, step: "Node") -> KeptParent | None:
        """Remove and return the parent that is kept for a step."""
        return self._kept.pop(id(step), None)

    def keep(self, parent: KeptParent) -> None:
        """Keep a parent until the step's next block."""
        self._kept[id(parent.step)] = parent
        if len(self._kept) > _MAX_STEPS:
            self._kept.pop(next(iter(self._kept)), None)

    def clear(self) -> None:
        """Forget all parents."""
        self._kept.clear()
