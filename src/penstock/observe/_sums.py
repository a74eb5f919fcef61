"""The sums of a loader at one moment: what its live page holds, from which any two moments give a report."""

import re
from typing import Final, NamedTuple

from penstock._graph import Node, chain_text
from penstock._live_page import Seen
from penstock._plan import Plan
from penstock._readings import Cause, Readings
from penstock.observe._measured import free_name, step_text, timed_steps

STALE_SECONDS: Final = 2.0
"""A page is written several times a second, so if it is older than this, no batch was delivered."""
_MOST_STEPS: Final = 24  # in a page; those that take most time
_NAME: Final = 40  # characters, in a page
_TEXT: Final = 60
_LONG: Final = 200
_SCOPES: Final = re.compile(r"[\w.<>]+<locals>\.")  # the functions in which a function is defined


class StepSums(NamedTuple):
    """A step of the dataset, and the time that it has taken."""

    number: int
    """The number of the step, the same in all pages; a step that takes time later may change the names of others."""
    name: str
    text: str
    seconds: float
    cpu_share: float | None
    is_in_order: bool


class Position(NamedTuple):
    """The position of a loader in its training."""

    epoch: int
    step: int
    """The number of the next batch."""
    done: int
    """The number of batches delivered in the epoch."""
    of: int | None
    """The number of batches of the epoch; None if it isn't known."""


class Losses(NamedTuple):
    """The workers and elements that a loader has lost."""

    deaths: int = 0
    reason: str = ""
    """The reason of the last death."""
    replaced: int = 0
    skipped: int = 0


class Sums(NamedTuple):
    """The sums of a loader at one moment: the content of a live page, by the names of its fields.

    A change of the fields needs another number of the layout, in `penstock._live_page`.
    """

    pid: int
    at: float
    """The moment, by the monotonic clock."""
    since: float
    """The moment of the first request."""
    dataset: str
    workers: int
    workers_text: str
    processors: int
    rank: int
    ranks: int
    rows: int
    """The number of rows of a batch, on this rank."""
    position: Position
    batches: int
    wait_seconds: float
    waits: dict[Cause, float]
    made: float
    """The number of batches computed."""
    busy_seconds: float
    steps: tuple[StepSums, ...]
    batch_bytes: int
    """The memory of batches that are being made, ready or in use."""
    losses: Losses
    lock_wait_seconds: float = 0.0
    """The time for which a thread that wakes up waits for the interpreter's lock, since the first request."""
    written: float = 0.0
    """The moment at which the page was written; a reader sets it, and the next one."""
    waits_since: float = 0.0
    """When the wait began that lasts at this moment; 0 for none."""

    @property
    def start(self) -> "Sums":
        """The sums at the moment of the first request."""
        return self._replace(at=self.since, batches=0, wait_seconds=0.0, waits={}, made=0, busy_seconds=0.0, steps=())

    @classmethod
    def seen(cls, seen: Seen, now: float) -> "Sums":
        """Return the sums of a page at a moment at which it was read."""
        values = dict(seen.values)
        position, losses = Position(*values.pop("position")), Losses(*values.pop("losses"))
        steps = tuple(StepSums(*each) for each in values.pop("steps"))
        sums = cls(**values, position=position, losses=losses, steps=steps)
        since = seen.waiting_since
        if seen.later is not None:
            epoch, step, done, batches = seen.later
            sums = sums._replace(position=Position(epoch, step, done, position.of), batches=batches)
        sums = sums._replace(written=sums.at, waits_since=since)
        if sums.batches > values["batches"]:  # of a time after the page was written
            sums = sums._replace(at=max(now, sums.at))
        if since:
            return sums._replace(at=max(now, sums.at), wait_seconds=sums.wait_seconds + max(now - since, 0.0))
        return sums._replace(at=now) if now - sums.at > STALE_SECONDS else sums


class StepTexts:
    """The texts of a dataset's steps, each made once: a source's own `__repr__` may take long."""

    def __init__(self) -> None:
        self._known: dict[int, str] = {}

    def __call__(self, node: Node) -> str:
        """Return the text of a step of a dataset that is kept alive."""
        known = self._known.get(id(node))
        if known is None:
            known = self._known[id(node)] = _short(step_text(node), _TEXT)[:_TEXT]
        return known


def step_sums(plan: Plan, readings: Readings, delivered: int, texts: StepTexts) -> tuple[StepSums, ...]:
    """Return the steps that took time, in the order in which elements pass them; of many, those that took most."""
    found: list[StepSums] = []
    names: set[str] = set()
    for name, step in timed_steps(plan, readings, delivered, each=False, text_of=texts).items():
        short = free_name(_short(name, _NAME)[-_NAME:], names)
        names.add(short)
        found.append(StepSums(step.number, short, step.text, step.time.seconds, step.time.cpu_share, step.is_in_order))
    least = sorted((step.seconds for step in found), reverse=True)[:_MOST_STEPS][-1:] or [0.0]
    return tuple(step for step in found if step.seconds >= least[0])[:_MOST_STEPS]


def _short(text: str, most: int) -> str:
    """Return a text without the scopes of its functions, if it is longer than so many characters."""
    return text if len(text) <= most else _SCOPES.sub("…", text)


def dataset_text(plan: Plan) -> str:
    """Return the dataset as text, for a page."""
    return chain_text(plan.node)[:_LONG]
