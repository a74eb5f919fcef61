"""The live view of a loader: the figures of the last seconds, from two moments of its live page, as text.

The page has sums since the first request, so any two moments give the report of the time between them, by the rules of
`Loader.report`. A wait that lasts counts as waiting, although the page is written when it has ended.
"""

import textwrap
import unicodedata
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from penstock._printable import printable
from penstock.observe._report import CAUSE_TEXTS, Report, StepReport, by_length, milliseconds
from penstock.observe._sums import STALE_SECONDS, Losses, Sums

if TYPE_CHECKING:
    from penstock._readings import Cause

WINDOW_SECONDS: Final = 5.0
"""The time for which a redrawn view has figures."""
_LEAST_SECONDS: Final = 2.0  # of a window: a page of a slow training may be a second old
_NARROW: Final = 60  # columns; with fewer, there are no bars
_LABEL: Final = 10  # columns
_LEAST_CAUSE: Final = 0.05
_LEAST_BYTES: Final = 1_000_000
_MINUTE: Final = 60


def report_between(before: Sums, now: Sums) -> Report:
    """Return the report of the time between two moments; it has no quantiles, and leaves no pauses out."""
    batches = now.batches - before.batches
    elapsed = max(now.at - before.at, 0.0)
    waited = min(max(now.wait_seconds - before.wait_seconds, 0.0), elapsed)
    waits: list[tuple[Cause, float]] = [
        (cause, seconds - before.waits.get(cause, 0.0)) for cause, seconds in now.waits.items()
    ]
    made = max(now.made - before.made, 0.0)
    earlier = {step.number: step.seconds for step in before.steps}
    taken = [max(step.seconds - earlier.get(step.number, 0.0), 0.0) for step in now.steps]
    total = sum(taken)
    steps = [
        StepReport(step.name, step.text, seconds / made, seconds / total, step.cpu_share, is_in_order=step.is_in_order)
        for step, seconds in zip(now.steps, taken, strict=True)
        if made and total
    ]
    in_order = sum(step.seconds for step in steps if step.is_in_order)
    at_workers = sum(step.seconds for step in steps if not step.is_in_order)
    busy = (now.busy_seconds - before.busy_seconds) / made if made else 0.0
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
        work_seconds=in_order + max(busy, at_workers),
        order_seconds=in_order,
        lock_wait_seconds=now.lock_wait_seconds,
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
    is_known = report.batches and (report.steps or report.bottleneck)
    advice = textwrap.wrap(printable(report.advice), max(columns - _LABEL, _LABEL)) if is_known else []
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


def bytes_text(count: int) -> str:
    """Return a number of bytes as text."""
    if count >= 1e9:
        return f"{count / 1e9:.2f} GB"
    if count >= 1e6:
        return f"{count / 1e6:.0f} MB"
    return f"{count / 1e3:.0f} kB" if count >= 1e3 else f"{count} bytes"


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
