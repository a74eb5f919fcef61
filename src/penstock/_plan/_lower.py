"""Lowering a dataset to a plan: a function from values to values, which checks every argument of a loader."""

import sys
from typing import Final

from penstock._graph import Batch, Map, Node, Reindex, length, need_count, outermost_batch, parse_bytes, walk
from penstock._plan._plan import Limits, Place, Plan, Shard
from penstock._plan._program import Batches, Streaming
from penstock._plan._ranks import check_ranks
from penstock.errors import UsageError

_MAX_SECONDS: Final = 1_000_000  # beyond it, waiting for it would be refused by the system
_NO_LIMITS: Final = Limits()
_OWNERS_LIMITS: Final = (
    "worker_init",
    "start_method",
    "worker_threads",
    "timeout",
)  # of the loader that starts the workers


def lower(  # noqa: PLR0913 - the loader's arguments, once each
    node: Node,
    *,
    place: Place,
    num_workers: int,
    shard: Shard | None,
    prefetch: int,
    memory: int | None,
    copy: bool,
    limits: Limits,
    ordered: bool = True,
    isolated: object = False,
) -> Plan:
    """Return how a dataset will run, or raise the error that says why it can't."""
    shard = Shard(0, 1) if shard is None else _checked_shard(shard)
    _check_limits(limits)
    prefetch = need_count("prefetch", prefetch, 1)
    if limits.num_batch_workers is not None:
        need_count("num_batch_workers", limits.num_batch_workers, 1)
    need_count("read_ahead", limits.read_ahead, 1)
    if limits.worker_threads is not None:
        need_count("worker_threads", limits.worker_threads, 1)
    if limits.timeout is not None:
        _check_timeout(limits.timeout, place)
    program = program_of(node)
    _check_flag("ordered", ordered)
    _check_flag("copy", copy)
    is_isolated = _checked_isolated(isolated)
    if is_isolated or place == "processes":
        _check_start_method(limits)
    if shard.count > 1:
        check_ranks(node, program, shard)
    return Plan(node, program, place, num_workers, shard, prefetch, memory, copy, limits, ordered, isolated=is_isolated)


def program_of(node: Node) -> Batches | Streaming:
    """Return which part of a dataset depends on the position alone."""
    return _batches(node) if length(node) is not None else Streaming(node, outermost_batch(node))


def choose_place(num_workers: object, workers: object) -> tuple[Place, int]:
    """Return where tasks run and by how many workers, from a loader's arguments; as far as "auto" leaves it open."""
    if workers not in ("auto", "threads", "processes"):
        raise UsageError(
            'workers must be "auto", "threads" or "processes", or a Loader whose workers compute for this one too; '
            f"got workers={workers!r}"
        )
    if num_workers == "auto":
        return ("inline", 0) if workers == "auto" else ("processes" if workers == "processes" else "threads", 1)
    count = need_count("num_workers", num_workers)
    if not count:
        return "inline", 0
    return ("processes", count) if workers == "processes" else ("threads", count)


def share_place(owner: Plan, num_workers: object, limits: Limits, *, isolated: object) -> tuple[Place, int]:
    """Return where tasks run and by how many workers, for a loader that takes another one's.

    Args:
        owner: the plan of the loader that has them.
        num_workers: what was said beside it, which must be nothing, as of the next two.
        limits: of which some are for the owner to say.
        isolated: likewise.
    """
    _check_limits(limits)
    if num_workers != 0:
        raise UsageError(
            f"workers=loader takes the workers of that loader ({owner.workers_text}), however many; got "
            f"num_workers={num_workers!r} beside it. Leave num_workers out"
        )
    if isolated or owner.isolated:
        whose = "this loader" if isolated else "that loader"
        raise UsageError(
            f"workers=loader takes workers of this process; {whose} has isolated=True, whose workers belong to its "
            "helper process. Leave isolated=True out, or give each loader its own workers"
        )
    said = [name for name in _OWNERS_LIMITS if getattr(limits, name) != getattr(_NO_LIMITS, name)]
    if said:
        raise UsageError(
            f"the workers of workers=loader were started as that loader's limits say; got {', '.join(said)} beside it. "
            "Give them to that loader; num_batch_workers and read_ahead may differ"
        )
    return owner.place, owner.num_workers


def parse_memory(memory: int | str | None) -> int | None:
    """Return a number of bytes from a loader's `memory`, such as 1_000_000 or "2GiB"."""
    return None if memory is None else parse_bytes("memory", memory)


def _checked_shard(shard: object) -> Shard:
    if not isinstance(shard, Shard):
        raise UsageError(f"shard must be a ps.Shard(rank, count); got shard={shard!r}")
    count, rank = need_count("count", shard.count, 1), need_count("rank", shard.rank)
    if rank >= count:
        raise UsageError(f"rank must be in [0, count); got rank={rank}, count={count}")
    return Shard(rank, count, shard.uneven)


def check_threads(plan: Plan) -> None:
    """Raise where threads were chosen, by the caller or by what there is, for a step that needs a process of its own.

    Raises:
        UsageError: then.
    """
    if plan.place != "threads":
        return
    for step in walk(plan.node):
        if isinstance(step, Map) and step.form == "globals":
            raise UsageError(
                f"step {step.name!r} uses globals=True, which seeds generators that all threads share; use "
                'workers="processes" or num_workers=0, or take the rng that random_map hands over'
            )


def _check_limits(limits: object) -> None:
    if not isinstance(limits, Limits):
        raise UsageError(f"limits must be a ps.Limits(…); got limits={limits!r}. Write ps.Limits(timeout=60), say")
    if limits.worker_init is not None and not callable(limits.worker_init):
        raise UsageError(
            "worker_init must be a function that takes the worker's number, or None; got "
            f"worker_init={limits.worker_init!r}"
        )


def _check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False; got {name}={value!r}")


def _checked_isolated(isolated: object) -> bool:
    _check_flag("isolated", isolated)
    if isolated and sys.platform != "linux":
        raise UsageError(
            "isolated=True needs Linux, whose shared memory has no name and ends with its last user; this is "
            f"{sys.platform}. Use num_workers alone"
        )
    return bool(isolated)


def _check_timeout(timeout: object, place: Place) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= _MAX_SECONDS:
        raise UsageError(
            f"timeout must be a number of seconds above 0, at most {_MAX_SECONDS:,}, or None; got timeout={timeout!r}"
        )
    if place == "inline":
        raise UsageError(
            f"timeout={timeout} needs workers; these are none, and nothing can watch the calling thread while it "
            "computes a batch. Use num_workers above 0, or timeout=None"
        )


def _check_start_method(limits: Limits) -> None:
    if limits.start_method not in (None, "spawn", "forkserver"):
        raise UsageError(
            f"start_method must be 'forkserver', 'spawn' or None; got start_method={limits.start_method!r}. A process "
            "that is forked from the program would inherit locks that its threads hold"
        )


def _batches(node: Node) -> Batches:
    above: list[Map | Reindex] = []
    step = node
    while isinstance(step, Map | Reindex):
        above.append(step)
        step = step.parent
    if not isinstance(step, Batch):
        return Batches(node, length(node) or 0, None, (), can_recut=True)
    can_recut = not any(isinstance(other, Reindex) for other in above)
    return Batches(step.parent, length(step.parent) or 0, step, tuple(above), can_recut)
