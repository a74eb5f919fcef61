"""The choice of a loader's workers where the caller leaves it open: first from known facts, then from measurements."""

import logging
import sys
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, Literal

from penstock._graph import Map, Node, PerWorker, awaits, walk
from penstock._plan._choose import (
    Choice,
    Cost,
    Room,
    Workers,
    choose_kind,
    choose_number,
    worth_processes,
    worth_workers,
)
from penstock._plan._plan import Plan
from penstock._runtime._autotune._measure import measure
from penstock._runtime._autotune._processors import usable_processors
from penstock._runtime._autotune._sendable import copy_of, obstacle
from penstock._runtime._batches import StepRange, Unit, rows_of
from penstock._streaming import count_positions

_logger: Final = logging.getLogger("penstock")


def chosen(plan: Plan, num_workers: int | Literal["auto"], workers: Workers) -> Plan:
    """Return a plan with the place and the number of workers that suit it, and why; tell of it in one line.

    Args:
        plan: its place and number of workers are fixed as far as the caller has given them.
        num_workers: how many there are to be; "auto" to choose that too.
        workers: what they are to be; "auto" to choose.
    """
    if num_workers == 0 or (num_workers != "auto" and workers != "auto"):
        return plan
    choice = _number(plan, workers) if num_workers == "auto" else _kind(plan, num_workers)
    decided = replace(plan, place=choice.place, num_workers=choice.num_workers, why=choice.why)
    _logger.info("%s: %s", decided.workers_text, choice.why)
    return decided


def _kind(plan: Plan, num_workers: int) -> Choice:
    if not _may_be_threads(plan.node) and not obstacle(plan):
        return Choice("processes", num_workers, "globals=True seeds generators that all threads share")
    room = _room(plan, _holds_no_lock() or obstacle(plan))
    if room.obstacle or room.processors == 1 or not _is_measurable(plan):
        return choose_kind(num_workers, None, room)
    threads = _may_be_threads(plan.node)
    cost = measure(copy_of(plan), enough_seconds=worth_processes(room), stacking=False, threads=threads)
    return choose_kind(num_workers, cost, room)


def _number(plan: Plan, workers: Workers) -> Choice:
    if not plan.program.worker_inputs:
        only_read = "everything is computed in one thread, in order"
        return Choice("inline", 0, "a stream isn't read to see" if plan.program.uses_workers else only_read)
    room = _room(plan, (_holds_no_lock() or obstacle(plan)) if workers == "auto" else "")
    may_be_threads = _may_be_threads(plan.node)
    cost: Cost | None = None
    if _is_measurable(plan):
        compares = may_be_threads and workers != "processes" and room.processors > 1
        measured = copy_of(plan) if plan.isolated or not room.obstacle else plan
        cost = measure(measured, enough_seconds=worth_workers(room), stacking=True, threads=compares)
    choice = choose_number(workers, cost, room)
    if choice.place == "threads" and not may_be_threads:
        return Choice("inline", 0, "globals=True seeds generators that all threads share")
    return choice


def _room(plan: Plan, why_not: str = "") -> Room:
    program, processors = plan.program, usable_processors()
    if not program.is_indexed:
        rows = sum(map(count_positions, program.worker_inputs)) // plan.shard.count
        return Room(max(plan.batch_size // plan.shard.count, 1), rows, processors, why_not)
    if not plan.length:  # a step above the batch may leave nothing of what there is
        return Room(1, 0, processors, why_not)
    first = StepRange(Unit(0, 0, 0, plan.batch_size), 1, 1).first
    rows = rows_of(plan.batches, plan.shard, first).total
    return Room(max(rows, 1), plan.batches.total // plan.shard.count, processors, why_not)


def _holds_no_lock() -> str:
    has_lock = getattr(sys, "_is_gil_enabled", None)
    return "this Python has no GIL" if has_lock is not None and not has_lock() else ""


def _is_measurable(plan: Plan) -> bool:
    """Return whether rows may be computed to see what they cost.

    Not those of streams, which come once; nor those of async sources, whose records are requested at once where they
    are read ahead; nor those for which each worker makes something of its own first, which may be large.
    """
    has_positions = bool(plan.program.worker_inputs)
    return has_positions and not awaits(plan.node) and not any(_makes_its_own(step) for step in walk(plan.node))


def _makes_its_own(step: Node) -> bool:
    step_fields: Any = fields(step) if is_dataclass(step) else ()
    return any(isinstance(getattr(step, field.name), PerWorker) for field in step_fields)


def _may_be_threads(node: Node) -> bool:
    """Return whether two threads may compute at once: none of the steps seeds generators that all threads share."""
    return not any(isinstance(step, Map) and step.form == "globals" for step in walk(node))
