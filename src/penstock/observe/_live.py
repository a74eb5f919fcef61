"""The live view of a loader: the figures of the last seconds, from two moments of its live page, as text.

The page has sums since the first request, so any two moments give the report of the time between them, by the rules of
`Loader.report`. A wait that lasts counts as waiting, although the page is written when it has ended.
"""

import textwrap
import unicodedata
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import Final, NamedTuple

from penstock._graph import chain_text
from penstock._live_page import Seen
from penstock._plan import Plan
from penstock._readings import Cause, Readings
from penstock.observe._measured import step_text, timed_steps
from penstock.observe._report import CAUSE_TEXTS, Report, StepReport, by_length, milliseconds

WINDOW_SECONDS: Final = 5.0
"""The time for which a redrawn view has figures."""
_LEAST_SECONDS: Final = 2.0  # of a window: a page of a slow training may be a second old
STALE_SECONDS: Final = 2.0
"""A page is written several times a second, so if it is older than this, no batch was delivered."""
_MOST_STEPS: Final = 24  # in a page; those that take most time
_NAME: Final = 40  # characters, in a page
_TEXT: Final = 60
_LONG: Final = 200
_NARROW: Final = 60  # columns; with fewer, there are no bars
_LABEL: Final = 10  # columns
_LEAST_CAUSE: Final = 0.05
_LEAST_BYTES: Final = 1_000_000
_MINUTE: Final = 60


class StepSums(NamedTuple):
    """A step of the dataset, and the time that it has taken."""

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
        sums = sums._replace(written=sums.at, waits_since=since)
        if since:
            return sums._replace(at=max(now, sums.at), wait_seconds=sums.wait_seconds + max(now - since, 0.0))
        return sums._replace(at=now) if now - sums.at > STALE_SECONDS else sums


def step_sums(plan: Plan, readings: Readings) -> tuple[StepSums, ...]:
    """Return the steps that took time, in the order in which elements pass them; of many, those that took most."""
    in_order = plan.program.in_order
    found = [
        StepSums(name[:_NAME], step_text(node)[:_TEXT], time.seconds, time.cpu_share, node is in_order)
        for name, (node, time) in timed_steps(plan, readings, each=False).items()
    ]
    least = sorted((step.seconds for step in found), reverse=True)[:_MOST_STEPS][-1:] or [0.0]
    return tuple(step for step in found if step.seconds >= least[0])[:_MOST_STEPS]


def dataset_text(plan: Plan) -> str:
    """Return the dataset as text, for a page."""
    return chain_text(plan.node)[:_LONG]


def report_between(before: Sums, now: Sums) -> Report:
    """Return the report of the time between two moments; it has no quantiles, and leaves no pauses out."""
    batches = now.batches - before.batches
    elapsed = max(now.at - before.at, 0.0)
    waited = min(max(now.wait_seconds - before.wait_seconds, 0.0), elapsed)
    waits: list[tuple[Cause, float]] = [
        (cause, seconds - before.waits.get(cause, 0.0)) for cause, seconds in now.waits.items()
    ]
    made = max(now.made - before.made, 0.0)
    earlier = {step.name: step.seconds for step in before.steps}
    taken = [max(step.seconds - earlier.get(step.name, 0.0), 0.0) for step in now.steps]
    total = sum(taken)
    steps = [
        StepReport(step.name, step.text, seconds / made, seconds / total, step.cpu_share)
        for step, seconds in zip(now.steps, taken, strict=True)
        if made and total
    ]
    in_order = [seconds / made for step, seconds in zip(now.steps, taken, strict=True) if made and step.is_in_order]
    return Report(
        steps=tuple(steps),
        batches=batches,
        elapsed_seconds=elapsed,
        wait_seconds=waited,
        waits=by_length([each for each in waits if each[1] > 0]),
        consumer_seconds=(elapsed - waited) / max(batches, 1),
        workers=now.workers,
        workers_text=now.workers_text,
        processors=now.processors,
        work_seconds=max((now.busy_seconds - before.busy_seconds) / made, sum(taken) / made) if made else 0.0,
        order_seconds=sum(in_order) if now.workers else 0.0,
    )


class Window:
    """The sums of a loader in the last seconds."""

    def __init__(self, seconds: float = WINDOW_SECONDS) -> None:
        self._seconds = seconds
        self._moments: deque[Sums] = deque()

    def add(self, sums: Sums) -> Report:
        """Add the sums of a moment.

        Returns:
            The report of the last seconds; at first, while there are too few, of the time since the first request.
        """
        moments = self._moments
        if not moments or sums.at > moments[-1].at:
            moments.append(sums)
        while len(moments) > 2 and moments[1].at <= sums.at - self._seconds:
            moments.popleft()
        is_short = moments[-1].at - moments[0].at < _LEAST_SECONDS
        return report_between(sums.start if is_short else moments[0], moments[-1])


# ---------------------------------------------------------------------- as text


def view(title: str, sums: Sums, report: Report, memory_bytes: int, columns: int) -> list[str]:
    """Return the lines of a view, none of them longer than so many columns.

    Args:
        title: the first line.
        sums: the latest ones.
        report: of the last seconds.
        memory_bytes: the memory of the training's processes; 0 if it isn't known.
        columns: the width of the terminal.
    """
    entries = [
        ("", title),
        ("", sums.dataset),
        ("epoch", f"{_bar(_share_done(sums), columns)}{_progress_text(sums, report)}"),
        ("rate", _rate_text(sums, report)),
        ("waiting", f"{_bar(report.wait_share, columns)}{_waiting_text(report)}"),
        ("workers", f"{_bar(report.busy_share if sums.workers else None, columns)}{_workers_text(sums, report)}"),
        ("slowest", _slowest_text(report)),
        ("memory", _memory_text(sums, memory_bytes)),
        ("lost", _losses_text(sums.losses)),
        ("now", _now_text(sums)),
        ("limit", report.bottleneck or ""),
    ]
    lines = [f"{name:<{_LABEL}}{text}" if name else text for name, text in entries if text]
    advice = textwrap.wrap(printable(report.advice), max(columns - _LABEL, _LABEL)) if report.batches else []
    lines += [f"{'change' if number == 0 else '':<{_LABEL}}{part}" for number, part in enumerate(advice)]
    return [cut(line, columns) for line in lines]


def summary(sums: Sums, report: Report, memory_bytes: int = 0) -> str:
    """Return the view as one line, for logs; its first words are those that matter most."""
    rank = f"rank {sums.rank} of {sums.ranks}, " if sums.ranks > 1 else ""
    parts = [
        f"{rank}epoch {sums.position.epoch:,}, step {sums.position.step:,}{_percent(_share_done(sums))}",
        f"{report.batches_per_second:,.1f} batches/s",
        f"waiting {report.wait_share:.0%}{_causes_text(report)}",
        f"workers busy {report.busy_share:.0%}" if sums.workers else "",
        f"limit: {report.bottleneck}" if report.bottleneck else "",
        bytes_text(memory_bytes) if memory_bytes else "",
        _losses_text(sums.losses),
        _now_text(sums),
    ]
    return printable("; ".join(part for part in parts if part))


def cut(text: str, columns: int) -> str:
    """Return a text without control characters that fits into a line."""
    text = printable(text)
    ends = list(accumulate(map(_columns_of, text)))
    if not ends or ends[-1] <= columns:
        return text
    return f"{text[: bisect_right(ends, columns - 1)]}…"


def _columns_of(character: str) -> int:
    """Return the number of columns that a character takes in a terminal."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def printable(text: str) -> str:
    """Return a text as one line, whose control characters, which a terminal would obey, are replaced."""
    return "".join(each if each.isprintable() else " " if each.isspace() else "�" for each in text)


def bytes_text(count: int) -> str:
    """Return a number of bytes as text."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def seconds_text(seconds: float) -> str:
    """Return a time as text, such as 1:02:03."""
    minutes, rest = divmod(int(seconds), _MINUTE)
    hours, minutes = divmod(minutes, _MINUTE)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(share: float | None, columns: int) -> str:
    if share is None or columns < _NARROW:
        return ""
    width = columns // 4
    done = round(min(max(share, 0.0), 1.0) * width)
    return f"{'━' * done}{'─' * (width - done)}  "


def _share_done(sums: Sums) -> float | None:
    position = sums.position
    return min(position.done / position.of, 1.0) if position.of else None


def _percent(share: float | None) -> str:
    return "" if share is None else f" ({share:.0%})"


def _progress_text(sums: Sums, report: Report) -> str:
    position = sums.position
    text = f"{position.epoch:,}, step {position.step:,}{_percent(_share_done(sums))}"
    if position.of and report.batches_per_second:
        text += f", {seconds_text(max(position.of - position.done, 0) / report.batches_per_second)} left"
    return text


def _rate_text(sums: Sums, report: Report) -> str:
    rate = report.batches_per_second
    return f"{rate:,.1f} batches/s, {rate * sums.rows:,.0f} rows/s"


def _causes_text(report: Report) -> str:
    noted = sum(seconds for _, seconds in report.waits)
    causes = [
        f"{CAUSE_TEXTS[cause]} {seconds / noted:.0%}"
        for cause, seconds in report.waits
        if seconds > _LEAST_CAUSE * noted
    ]
    return f": {', '.join(causes)}" if causes and report.wait_share >= _LEAST_CAUSE else ""


def _waiting_text(report: Report) -> str:
    return f"{report.wait_share:.0%}{_causes_text(report)}"


def _workers_text(sums: Sums, report: Report) -> str:
    return f"{report.busy_share:.0%} busy, {sums.workers_text}" if sums.workers else sums.workers_text


def _slowest_text(report: Report) -> str:
    if not report.steps:
        return ""
    step = max(report.steps, key=lambda step: step.seconds)
    return f"{step.text}: {step.share:.0%}, {milliseconds(step.seconds)} ms a batch"


def _memory_text(sums: Sums, memory_bytes: int) -> str:
    batches = f"{bytes_text(sums.batch_bytes)} of batches" if sums.batch_bytes > _LEAST_BYTES else ""
    whole = bytes_text(memory_bytes) if memory_bytes else ""
    return f"{whole}, with {batches}" if whole and batches else whole or batches


def _losses_text(losses: Losses) -> str:
    workers = f"{losses.deaths:,} worker{'' if losses.deaths == 1 else 's'} died, the last: {losses.reason}"
    parts = [
        workers if losses.deaths else "",
        f"{losses.replaced:,} elements replaced" if losses.replaced else "",
        f"{losses.skipped:,} elements left out" if losses.skipped else "",
    ]
    return "; ".join(part for part in parts if part)


def _now_text(sums: Sums) -> str:
    """Return what lasts for seconds; "" if batches are delivered."""
    if sums.waits_since and sums.at - sums.waits_since > STALE_SECONDS:
        return f"waiting for step {sums.position.step:,} for {seconds_text(sums.at - sums.waits_since)}"
    if not sums.waits_since and sums.at - sums.written > STALE_SECONDS:
        return f"no batch was requested for {seconds_text(sums.at - sums.written)}"
    return ""
