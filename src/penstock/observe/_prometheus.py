"""The figures of loaders in the text format of Prometheus, which a program serves by itself."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

from penstock.observe._report import Report


class Reporting(Protocol):
    """Something that has a report, such as a loader."""

    def report(self) -> Report:
        """Return the report of this moment."""
        ...


class _Metric(NamedTuple):
    name: str
    kind: str
    help: str


_BATCHES: Final = _Metric("penstock_batches_total", "counter", "Batches delivered.")
_ELAPSED: Final = _Metric("penstock_elapsed_seconds_total", "counter", "Time from the first request on.")
_WAITED: Final = _Metric("penstock_wait_seconds_total", "counter", "Time in which the training waited for batches.")
_CAUSES: Final = _Metric("penstock_wait_cause_seconds_total", "counter", "Noticeable waits, by their cause.")
# Not a counter: a later median of the times between two requests may find fewer pauses.
_PAUSED: Final = _Metric("penstock_pause_seconds", "gauge", "Pauses of the training in that time.")
_STEPS: Final = _Metric("penstock_step_seconds", "gauge", "Time of a step of the dataset for a batch.")
_WORKERS: Final = _Metric("penstock_workers", "gauge", "Number of workers.")
_BUSY: Final = _Metric("penstock_workers_busy_ratio", "gauge", "Share of the time in which workers worked, 0 to 1.")


def prometheus(loaders: Mapping[str, Reporting]) -> str:
    """Return the figures of loaders in the text format of Prometheus, version 0.0.4.

    Serve it under `/metrics`, with the content type "text/plain; version=0.0.4". Prometheus computes rates and shares
    of any time from the counters: `rate(penstock_wait_seconds_total[5m])` is the share of waiting.

    Args:
        loaders: the loaders, each by its name, which becomes the label "loader".

    Returns:
        The counters `penstock_batches_total`, `penstock_elapsed_seconds_total`, `penstock_wait_seconds_total`,
        `penstock_wait_cause_seconds_total` by "cause"; the gauges `penstock_pause_seconds`, `penstock_step_seconds` by
        "step", `penstock_workers` and `penstock_workers_busy_ratio`.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(64).map(lambda number: number + 1, name="add").batch(8))
        >>> batches = list(loader)
        >>> print(prometheus({"train": loader}))
        # HELP penstock_batches_total Batches delivered.
        # TYPE penstock_batches_total counter
        penstock_batches_total{loader="train"} 8.0
        ...
    """
    found: dict[_Metric, list[str]] = {}
    for name, loader in loaders.items():
        for metric, labels, value in _samples(loader.report()):
            text = ",".join(f'{key}="{_escaped(each)}"' for key, each in {"loader": name, **labels}.items())
            found.setdefault(metric, []).append(f"{metric.name}{{{text}}} {float(value)!r}\n")
    return "".join(
        f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} {metric.kind}\n{''.join(lines)}"
        for metric, lines in found.items()
    )


def _samples(report: Report) -> Iterator[tuple[_Metric, dict[str, str], float]]:
    yield _BATCHES, {}, report.batches
    yield _ELAPSED, {}, report.elapsed_seconds + report.pause_seconds
    yield _WAITED, {}, report.wait_seconds
    for cause, seconds in report.waits:
        yield _CAUSES, {"cause": cause}, seconds
    yield _PAUSED, {}, report.pause_seconds
    for step in report.steps:
        yield _STEPS, {"step": step.name}, step.seconds
    yield _WORKERS, {}, report.workers
    yield _BUSY, {}, report.busy_share


def _escaped(text: str) -> str:
    """Return the value of a label, as the format writes it."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
