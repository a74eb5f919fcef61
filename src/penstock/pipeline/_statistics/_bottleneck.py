"""The bottleneck of a pipeline, found from how its stages spent their time.

The rules, in this order:

1. No stage has put out an item yet: no bottleneck.
2. The consumer waits less than a tenth of the time: the sink is the bottleneck if its queue is at least half full,
   since no other stage then matters to the consumer; else there is none, since the pipeline just keeps pace.
3. The consumer waits: the stage that is busy for most of its time. Of several, the busiest; if others come within a
   tenth of it, the one whose queue holds items while the next stage waits for some.
4. No stage is busy for most of its time, and every stage after the source waits for items: the source.
5. Otherwise none: the time goes into something that belongs to no stage, such as too few threads for all of them.

A stage without a queue of its own runs together with the stage before it, call by call. The rules treat the two as one
stage, and then name the busier of them.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from penstock._frozen import frozen
from penstock.pipeline._statistics._stage_report import StageReport

HARDLY: Final = 0.1
"""A share of the time that is negligible."""

MOSTLY: Final = 0.5
"""A share that is most of the time, or of the room in a queue."""


def bottleneck_of(stages: Sequence[StageReport]) -> StageReport | None:
    """Return the stage that limits the pipeline, or None.

    Args:
        stages: in the order in which items pass them, the sink last.
    """
    if not any(stage.items for stage in stages):
        return None
    sink = stages[-1]
    if _is_seen(sink) and sink.wait_input_share < HARDLY:
        return sink if _is_full(stages) else None
    groups = _groups(stages)
    limiting = _limiting(groups)
    if limiting is not None:
        return max(limiting.stages, key=lambda stage: stage.busy_share)
    below = [group.stages[0] for group in groups[1:]]
    is_starved = (below or _is_seen(sink)) and all(stage.wait_input_share >= MOSTLY for stage in below)
    return groups[0].stages[0] if groups and is_starved else None


def gain_of(stages: Sequence[StageReport], bottleneck: StageReport) -> tuple[float, str]:
    """Return by how many times the pipeline could be faster without the bottleneck, at most, and the next bottleneck.

    The next bottleneck is the next busiest stage, as its name in quotes, or the consumer, which counts as busy while it
    doesn't wait.
    """
    sink, busy_share = stages[-1], bottleneck.busy_share
    bounds = [(1 - sink.wait_input_share if _is_seen(sink) else 0.0, "the consumer")]
    for group in _groups(stages):
        others = [stage for stage in group.stages if stage is not bottleneck]
        if others:
            share = min(sum(stage.busy_share for stage in others), 1.0)
            bounds.append((share, f"'{max(others, key=lambda stage: stage.busy_share).name}'"))
        if len(others) < len(group.stages):
            busy_share = group.busy_share
    if not busy_share:  # a source that was not timed
        busy_share = 1 - bottleneck.wait_output_share
    share, name = max(bounds)
    return (busy_share / share if share else inf), name


@frozen
class _Group:
    """Stages that run together, the first of them with a queue of its own."""

    stages: tuple[StageReport, ...]
    is_fed: bool
    starves_next: bool

    @property
    def busy_share(self) -> float:
        return min(sum(stage.busy_share for stage in self.stages), 1.0)


def _groups(stages: Sequence[StageReport]) -> list[_Group]:
    """Return the stages before the sink as groups that run together."""
    parts: list[list[StageReport]] = []
    for stage in stages[:-1]:
        if parts and not _is_seen(stage):
            parts[-1].append(stage)
        else:
            parts.append([stage])
    takers = [part[0] for part in parts[1:]] + [stages[-1]]
    return [
        _Group(tuple(part), _is_fed(part[0]), taker.wait_input_share >= HARDLY)
        for part, taker in zip(parts, takers, strict=False)  # a sink alone has no group before it
    ]


def _limiting(groups: Sequence[_Group]) -> _Group | None:
    busiest = max((group.busy_share for group in groups), default=0.0)
    if busiest < MOSTLY:
        return None
    near = [group for group in groups if group.busy_share > busiest - HARDLY]
    return max(near, key=lambda group: (group.is_fed and group.starves_next, group.busy_share))


def _is_seen(stage: StageReport) -> bool:
    """Return whether the stage has a queue of its own, into which it looked or at which it waited."""
    return stage.queue_fill is not None or stage.wait_input_seconds > 0 or stage.wait_output_seconds > 0


def _is_fed(stage: StageReport) -> bool:
    """Return whether the stage mostly finds items in its queue; a source, without a queue, counts as fed."""
    return stage.queue_found_share is None or stage.queue_found_share >= MOSTLY


def _is_full(stages: Sequence[StageReport]) -> bool:
    return stages[-1].queue_fill is not None and stages[-1].queue_fill >= MOSTLY
