"""Decisions that depend on time or scheduling: the size of chunks, how far to compute ahead, when, and where.

The elements of a dataset depend on none of them. So that tests can show it, every decision is a call of `decide`. It
returns the caller's measured proposal, or, within `random_decisions`, any legal value. This makes rare alignments
common, such as a chunk that is exactly one batch, which otherwise occur once in thousands of batches.

The list below has every decision with its legal range; a caller may pass a smaller upper bound. A decision of 0 or 1 is
a yes or no. Each decision draws from a generator of its own, so that threads that make different decisions don't change
each other's draws. Workers, helper processes and their children read the seed from the environment.
"""

import itertools
import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final, NamedTuple

from penstock._seeds import derive
from penstock.errors import InternalError

VARIABLE: Final = "PENSTOCK_RANDOM_DECISIONS"
"""The environment variable that holds the seed while decisions are random."""

_ENDLESS: Final = 1 << 62


class Decision(NamedTuple):
    """One decision.

    Attributes:
        name: the decision in a few words.
        lowest: the lowest legal value.
        highest: the highest legal value.
    """

    name: str
    lowest: int
    highest: int


# How much is computed at once.
INLINE_BATCHES: Final = Decision("batches computed at once without workers", 1, _ENDLESS)
DIRECT_BATCHES: Final = Decision("batches whose keys are computed at once, where records are only read", 1, _ENDLESS)
JOB_BATCHES: Final = Decision("batches of a job", 1, 1 << 12)
JOB_POSITIONS: Final = Decision("positions of a job of elements that are read in order", 1, 1 << 14)
JOB_BLOCKS: Final = Decision("blocks that the rows of a job are cut into", 1, 256)
WHOLE_PARENTS: Final = Decision("whether blocks end where the elements of one parent end", 0, 1)
COLLATE_BATCHES: Final = Decision("batches of a job of the steps above the folds", 1, 32)
WHOLE_BATCHES: Final = Decision("whether one worker makes a batch, its rows included", 0, 1)
INPUT_ELEMENTS_INLINE: Final = Decision("elements computed at once below the folds, without workers", 1, 4096)
STREAM_ELEMENTS: Final = Decision("elements of a stream that are passed on together", 1, 64)
MIXTURE_ELEMENTS: Final = Decision("elements of a mixture that are passed on together", 1, 64)
PARENT_ELEMENTS: Final = Decision("elements that are taken apart at once by unbatch and flat_map", 1, 1024)
FUNCTION_ELEMENTS: Final = Decision("elements that a function or a predicate gets at once above a fold", 1, 1024)
COMBINED_ELEMENTS: Final = Decision("elements that are added to an object of combine() at once", 1, 1024)
PACK_DOCUMENTS: Final = Decision("documents that a pack takes in together", 1, 1024)
FOLD_BATCHES: Final = Decision("batches that the thread of the folds passes on together", 1, _ENDLESS)
MESSAGE_BATCHES: Final = Decision("batches of a message from the helper process", 1, 64)
SPAN_BATCHES: Final = Decision("batches of a span that a process of a pool computes", 1, 64)
MESSAGE_JOBS: Final = Decision("whether a whole job may be a message", 0, 1)
RANGE_POSITIONS: Final = Decision("positions of a range of a scan", 1, 1 << 14)
READ_KEYS: Final = Decision("records of one request to an async source", 1, _ENDLESS)

# How far ahead.
JOBS_AHEAD: Final = Decision("jobs that are being computed or ready, where they are taken in order", 1, _ENDLESS)
PLACED_AHEAD: Final = Decision("batches that a door places before they are requested", 0, _ENDLESS)
REQUESTED_AHEAD: Final = Decision("whether a record of an async source is requested ahead of the workers", 0, 1)

# When, and by whom.
READ_BY_FOLD: Final = Decision("whether the thread of a fold computes the elements below it itself", 0, 1)
ABOVE_BY_FOLD: Final = Decision("whether the thread of a fold applies the steps above it itself", 0, 1)
SEEN_NOW: Final = Decision("whether what is ready is noticed at this look", 0, 1)
DELAY_MICROSECONDS: Final = Decision("the time that a worker waits before it computes a block", 0, 200)
THROTTLED: Final = Decision("whether a worker process is throttled for a moment", 0, 1)
KNOWN_LAYOUT: Final = Decision("whether the layout of rows, once learned, is used by a job", 0, 1)
LEFT_TO_CONSUMER: Final = Decision("whether the consumer computes again what workers have computed", 0, 1)
REPEATED_JOBS: Final = Decision("times that a job that needs more memory is repeated before the consumer does it", 0, 8)


def decide(decision: Decision, proposal: int, highest: int | None = None) -> int:
    """Return the proposal; or, while decisions are random, any legal value.

    Args:
        decision: the decision.
        proposal: the value that the caller's measurements suggest.
        highest: the caller's upper bound, if it is lower than the decision's.
    """
    if _chance is None:
        return proposal
    return _chance(decision, proposal, decision.highest if highest is None else min(highest, decision.highest))


@contextmanager
def random_decisions(seed: int | None) -> Generator[None]:
    """Draw all decisions from a generator, here and in processes that are started in the block.

    Args:
        seed: the generator's seed; None lets `decide` return proposals.
    """
    before = os.environ.get(VARIABLE)
    if seed is not None:
        os.environ[VARIABLE] = str(seed)
    else:
        os.environ.pop(VARIABLE, None)
    follow_environment()
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = before
        follow_environment()


def follow_environment() -> None:
    """Set the mode from the environment variable: at import, and when a process gets other variables."""
    global _chance
    seed = os.environ.get(VARIABLE)
    _chance = _Chance(int(seed)) if seed else None


class _Chance:
    """Draws decisions."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._draws: dict[str, _Draws] = {}

    def __call__(self, decision: Decision, proposal: int, highest: int) -> int:
        if not decision.lowest <= proposal <= highest:
            raise InternalError(f"{decision.name}: {proposal} is not in [{decision.lowest}, {highest}]")
        draws = self._draws.get(decision.name)
        if draws is None:
            draws = self._draws.setdefault(decision.name, _Draws(decision, derive(self._seed, decision.name)))
        return draws.next(proposal, highest)


class _Draws:
    """The draws of one decision. The seed also determines their distribution, so that some seeds prefer extremes."""

    def __init__(self, decision: Decision, seed: int) -> None:
        self._seed = seed
        self._count = itertools.count(1)
        self._lowest = decision.lowest
        self._is_binary = decision.highest - decision.lowest == 1
        self._character = derive(seed, 0) % 5
        # The chance of an inverted answer is below 1, so that a reader that polls sees a result eventually.
        self._chance = _CHANCES[derive(seed, 0, 0) % len(_CHANCES)]
        self._width = _WIDTHS[derive(seed, 0, 1) % len(_WIDTHS)]
        self._constant = derive(seed, 0, 2) % self._width

    def next(self, proposal: int, highest: int) -> int:
        """Return a value from the lowest one to `highest`."""
        drawn = derive(self._seed, next(self._count)) >> 8
        if self._is_binary:
            keeps = drawn % _PARTS >= self._chance
            return proposal if keeps else self._lowest + highest - proposal
        if self._character == 0:
            return proposal
        if self._character == 1:
            return min(self._lowest + self._constant, highest)
        if self._character == 2:
            return (self._lowest, proposal, highest)[drawn % 3]
        return min(self._lowest + drawn % self._width, highest)


_PARTS: Final = 64
_CHANCES: Final = (0, 4, 12, 32)  # of inverting a yes or no, out of 64
_WIDTHS: Final = (2, 3, 4, 8, 20, 100)  # of the range of values to draw from; it starts at the lowest one

_chance: _Chance | None = None
follow_environment()
