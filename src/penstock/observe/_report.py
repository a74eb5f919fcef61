"""The report of a loader: a table of the dataset's steps, the waits by cause, the bottleneck and one line of advice."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock._frozen import frozen
from penstock._printable import printable
from penstock._readings import Cause
from penstock.observe._page import fragment, page
from penstock.observe._verdict import HARDLY, Model, WhatIf, advice_on, bottleneck_of, main_cause, what_if

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADINGS: Final = ("step", "ms a batch", "share", "computes", "p99", "if free")
_LEAST_SHARE: Final = 0.01  # of the time of all steps; smaller ones share a line
_SHORT_PAUSES: Final = 0.1  # seconds; not worth a line
_LEAST_CAUSE: Final = 0.005
_OWN_VERBS: Final = frozenset(
    {"batch", "padded_batch", "rebatch", "unbatch", "window_shuffle", "limit", "zip", "interleave", "concatenate"}
)
CAUSE_TEXTS: Final[dict[Cause, str]] = {
    "inline": "computing it here",
    "workers": "workers",
    "stragglers": "stragglers",
    "memory": "memory that you keep",
    "storage": "storage",
    "fold": "the steps in order",
    "placing": "placing",
    "start": "the start",
    "helper": "other processes",
    "delivery": "delivery",
}


@frozen
class StepReport:
    """The time of one step of a dataset.

    Attributes:
        name: the step's name: that of the function, or the verb.
        text: the verb with its arguments.
        seconds: of work for one batch, summed over workers. It includes waits for storage, and for a processor or the
            interpreter.
        share: the share of this in the time of all steps, in [0, 1].
        cpu_share: the share of the time in which a processor computed, in [0, 1]; None if it was not measured.
        p99_seconds: the 99th percentile of `seconds`, taken over blocks of elements; None if all were short.
        is_in_order: whether one thread runs the step in order, however many workers there are.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(64).map(lambda number: number + 1, name="add").batch(8))
        >>> batches = list(loader)
        >>> [step.text for step in loader.report().steps]
        ['read(Range(0, 64, 1))', 'map(add)', 'batch(8)']
    """

    name: str
    text: str
    seconds: float
    share: float
    cpu_share: float | None = None
    p99_seconds: float | None = None
    is_in_order: bool = False


@frozen
class Report:
    """A snapshot of where a loader's time went; `print` it.

    Attributes:
        steps: the steps of the dataset that took time, in the order in which elements pass them.
        batches: the number of delivered batches.
        elapsed_seconds: from the first request to the last delivery, without `pause_seconds`.
        wait_seconds: the time of it in which the consumer waited for batches.
        waits: the causes of noticeable waits and their seconds, the longest first: "inline" (the consumer's thread
            computes the batches), "workers", "stragglers" (workers were idle, since no further batch may be ahead of
            the next one), "memory" (the consumer keeps that of batches), "storage", "fold" (the thread that runs the
            steps in order), "placing" (on a device), "start" (the first batch of an iterator), "helper" (the helper
            process of `isolated=True` sends batches, or a pool computes them), "delivery".
        wait_p50_seconds: the median of the waits for a batch.
        wait_p99_seconds: the 99th percentile.
        pauses: the number of pauses of the consumer, such as for an evaluation: times between two requests of more than
            ten medians. They count in no other figure. Where the training fetches several batches at once, and then
            works on all of them, the median is that of the times in which it works.
        pause_seconds: their sum.
        consumer_seconds: the consumer's own time for a batch, pauses left out.
        consumer_p5_seconds: the 5th percentile of that. The mean is far above it where threads hold the interpreter's
            lock, for which the consumer's code waits as well.
        workers: the number of workers; 0 if the consumer computes the batches.
        workers_text: the workers in words.
        processors: the number of processors that this program may use.
        work_seconds: the time that a batch takes to compute, in steps and all else, summed over threads and processes.
        order_seconds: the part of it that steps take which one thread runs in order, beside the workers.
        lock_wait_seconds: the time for which a thread that wakes up waits for the interpreter's lock, where the workers
            are threads that compute with it; else 0.
        busy_seconds: the time that the workers have worked, summed over them, where they may have computed thousands of
            elements for the first batch, since the dataset is read in order; 0 elsewhere.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(64).map(lambda number: number + 1, name="add").batch(8))
        >>> batches = list(loader)
        >>> report = loader.report()
        >>> report.batches, [step.name for step in report.steps]
        (8, ['read', 'add', 'batch'])
    """

    steps: tuple[StepReport, ...]
    batches: int = 0
    elapsed_seconds: float = 0.0
    wait_seconds: float = 0.0
    waits: tuple[tuple[Cause, float], ...] = ()
    wait_p50_seconds: float = 0.0
    wait_p99_seconds: float = 0.0
    pauses: int = 0
    pause_seconds: float = 0.0
    consumer_seconds: float = 0.0
    workers: int = 0
    workers_text: str = "no workers"
    processors: int = 1
    work_seconds: float = 0.0
    order_seconds: float = 0.0
    consumer_p5_seconds: float = 0.0
    lock_wait_seconds: float = 0.0
    busy_seconds: float = 0.0

    @property
    def batches_per_second(self) -> float:
        """The batches delivered per second, pauses left out."""
        return self.batches / self.elapsed_seconds if self.elapsed_seconds else 0.0

    @property
    def wait_share(self) -> float:
        """The share of the time in which the consumer waited, in [0, 1]; an upper bound of the time that it lost."""
        return min(self.wait_seconds / self.elapsed_seconds, 1.0) if self.elapsed_seconds else 0.0

    @property
    def busy_share(self) -> float:
        """The share of the time after the start in which the workers worked, in [0, 1]; 0 without workers.

        The thread that runs steps in order is none of the workers, except where a helper process has no others.
        """
        whole = self.workers * self._steady_seconds
        own = self.work_seconds - (0.0 if self.workers_text.startswith("inline") else self.order_seconds)
        return min((self.busy_seconds or max(own, 0.0) * self.batches) / whole, 1.0) if whole else 0.0

    @property
    def bottleneck(self) -> str | None:
        """The name of the step that limits the rate, or another limit; None if it can't be known yet.

        "the consumer" if it waits less than a tenth of the time after the first batch. Else the cause of most of its
        waits: "memory", "stragglers", "placing", "the other processes"; where it waits for computation, the step that
        takes most of what limits the rate: the workers' time, the processors, or the thread that runs steps in order.
        """
        return bottleneck_of(self._model)

    @property
    def slowed_by_threads(self) -> bool:
        """Whether threads hold the interpreter's lock for so long that the consumer's own code takes longer."""
        return self._model.slows_consumer

    @property
    def consumer_own_seconds(self) -> float:
        """The consumer's own time for a batch, without its waits for the interpreter's lock, as far as is known."""
        return self._model.own_seconds

    @property
    def what_if(self) -> tuple[WhatIf, ...]:
        """Predictions of the rate after one change, the best first."""
        return what_if(self._model)

    @property
    def advice(self) -> str:
        """The one change that would help most; or "nothing" and the reason."""
        return advice_on(self._model)

    @property
    def _start_seconds(self) -> float:
        """The waits for first batches, while workers started; they say nothing about the rate."""
        return min(dict(self.waits).get("start", 0.0), self.wait_seconds)

    @property
    def _steady_seconds(self) -> float:
        return max(self.elapsed_seconds - self._start_seconds, 0.0)

    @property
    def _model(self) -> Model:
        steady = self._steady_seconds
        wait_share = min((self.wait_seconds - self._start_seconds) / steady, 1.0) if steady else 0.0
        return Model(
            names=tuple(step.name for step in self.steps),
            seconds=tuple(step.seconds for step in self.steps),
            cpu_seconds=tuple(step.seconds * (step.cpu_share or 0.0) for step in self.steps),
            are_in_order=tuple(step.is_in_order for step in self.steps),
            work_seconds=self.work_seconds,
            order_seconds=self.order_seconds,
            consumer_seconds=self.consumer_seconds,
            rate=self.batches / steady if steady else 0.0,
            wait_share=wait_share,
            workers=self.workers,
            has_threads="thread" in self.workers_text,
            processors=self.processors,
            cause=main_cause(self.waits, self.busy_share if self.workers else 1.0),
            consumer_p5_seconds=self.consumer_p5_seconds,
            lock_wait_seconds=self.lock_wait_seconds,
            is_isolated="helper" in self.workers_text,
            are_own=tuple(map(_is_own, self.steps)),
            start_share=self._start_seconds / self.elapsed_seconds if self.elapsed_seconds else 0.0,
        )

    def numbers(self) -> dict[str, float]:
        """Return the figures as one flat dict, for loggers that take numbers by name.

        Returns:
            "time_metrics/end_to_end(s)" and "time_metrics/data_loading(s)", for a batch, and
            "time_metrics/data_loading(%)", as torchtitan names them; "data/batches", "data/batches_per_second",
            "data/wait_p50(s)", "data/wait_p99(s)", "data/pauses(s)", "data/workers_busy(%)", "data/lock_wait(s)"; for
            each cause of waiting "data/wait/CAUSE(s)"; for each step "data/step/NAME(ms)", for a batch, and
            "data/step/NAME(%)".

        Example:
            >>> report = Report((StepReport("decode", "map(decode)", 0.052, 1.0),), batches=8, elapsed_seconds=2.0)
            >>> report.numbers()["data/step/decode(ms)"], report.numbers()["time_metrics/end_to_end(s)"]
            (52.0, 0.25)
        """
        batches = max(self.batches, 1)
        found = {
            "time_metrics/end_to_end(s)": self.elapsed_seconds / batches,
            "time_metrics/data_loading(s)": self.wait_seconds / batches,
            "time_metrics/data_loading(%)": 100 * self.wait_share,
            "data/batches": float(self.batches),
            "data/batches_per_second": self.batches_per_second,
            "data/wait_p50(s)": self.wait_p50_seconds,
            "data/wait_p99(s)": self.wait_p99_seconds,
            "data/pauses(s)": self.pause_seconds,
            "data/workers_busy(%)": 100 * self.busy_share,
            "data/lock_wait(s)": self.lock_wait_seconds,
        }
        found |= {f"data/wait/{cause}(s)": seconds for cause, seconds in self.waits}
        for step in self.steps:
            found[f"data/step/{step.name}(ms)"] = 1e3 * step.seconds
            found[f"data/step/{step.name}(%)"] = 100 * step.share
        return found

    def html(self, path: str | Path | None = None) -> str:
        """Return the report as HTML, for a part of a page; and write it as a page, if there is a path.

        The page needs no other file and no network.

        Args:
            path: of the page's file; an existing one is replaced. None, the default, writes none.

        Raises:
            OSError: the file can't be written.
        """
        shares = [(step.text, step.share) for step in self.steps]
        parts = self._head, self._rows(), shares, self._tail
        if path is not None:
            Path(path).write_text(page(*parts), encoding="utf-8")
        return fragment(*parts)

    def _repr_html_(self) -> str:
        return self.html()

    def __str__(self) -> str:
        if not self.batches:
            return "no batch was delivered yet"
        rows = [tuple(map(printable, row)) for row in self._rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(map(_aligned, row, widths, range(len(row)))).rstrip() for row in rows if self.steps]
        return "\n".join([*self._head, *lines, *map(printable, self._tail)])

    @property
    def _head(self) -> list[str]:
        rate = f"{self.elapsed_seconds:.1f} s, {self.batches:,} batches, {self.batches_per_second:,.1f} a second"
        waited = f"the training waited {self.wait_share:.0%} of it"
        if self.wait_share >= HARDLY / 10:
            waited += f" (p50 {milliseconds(self.wait_p50_seconds)} ms, p99 {milliseconds(self.wait_p99_seconds)} ms)"
        noted = sum(seconds for _, seconds in self.waits)
        causes = [
            f"{CAUSE_TEXTS[cause]} {seconds / noted:.0%}"
            for cause, seconds in self.waits
            if seconds > _LEAST_CAUSE * noted
        ]
        lines = [f"{rate}; {waited}" + (f": {', '.join(causes)}" if causes else "")]
        if self.pause_seconds > _SHORT_PAUSES:
            plural = "" if self.pauses == 1 else "s"
            lines.append(f"left out: {self.pauses} pause{plural} of the training, {self.pause_seconds:.1f} s")
        return lines

    @property
    def _tail(self) -> list[str]:
        processors = f"{self.processors} processor{'' if self.processors == 1 else 's'}"
        busy = f", busy {self.busy_share:.0%}" if self.workers else ""
        full = ", full" if self._model.is_full else ""
        lock = f"; a thread waits {milliseconds(self.lock_wait_seconds)} ms for the interpreter's lock (GIL)"
        return [
            f"{self.workers_text}{busy}; {processors}{full}{lock if self._model.holds_interpreter else ''}",
            f"bottleneck: {self.bottleneck or 'not known yet'}",
            f"to change: {self.advice}",
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        """Return the headings and the cells of each step."""
        free = self._model.if_free()
        shown = [step for step in self.steps if step.share >= _LEAST_SHARE]
        rows = [_HEADINGS, *(_cells(step, free[step.name]) for step in shown)]
        rest = sum(step.seconds for step in self.steps if step.share < _LEAST_SHARE)
        beyond = max(self.work_seconds - sum(step.seconds for step in self.steps), 0.0)
        if rest + beyond > _LEAST_SHARE * self.work_seconds:
            rows.append(("all else", milliseconds(rest + beyond), "", "", "", ""))
        return rows


def _is_own(step: StepReport) -> bool:
    """Return whether a step runs no function of the user's."""
    return step.text.partition("(")[0] in _OWN_VERBS and "merge=" not in step.text


def _cells(step: StepReport, free: WhatIf) -> tuple[str, ...]:
    return (
        step.text,
        milliseconds(step.seconds),
        f"{step.share:.0%}",
        "" if step.cpu_share is None else f"{step.cpu_share:.0%}",
        "" if step.p99_seconds is None else milliseconds(step.p99_seconds),
        free.times_text,
    )


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, with two or three digits."""
    number = 1e3 * seconds
    return f"{number:,.{0 if number >= 99.5 else 1 if number >= 9.95 else 2}f}"


def _aligned(text: str, width: int, column: int) -> str:
    return text.rjust(width) if 0 < column < len(_HEADINGS) - 1 else text.ljust(width)


def by_length(waits: "Sequence[tuple[Cause, float]]") -> tuple[tuple[Cause, float], ...]:
    """Return waits, the longest first."""
    return tuple(sorted(waits, key=lambda each: -each[1]))
