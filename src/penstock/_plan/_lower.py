"""Lowering a dataset to a plan: a function from values to values, which checks every argument of a loader.

`Ranks` says for which numbers of ranks a dataset's batches can be cut, and whether all ranks end on the same step.
"""

import sys
from dataclasses import replace
from numbers import Real
from typing import Final, Literal, TypeAlias

from penstock._frozen import frozen
from penstock._graph import (
    Batch,
    Combine,
    Filter,
    Fold,
    Gather,
    Map,
    Node,
    Reindex,
    Split,
    Substitute,
    chain_text,
    is_batch,
    is_endless,
    length,
    need_count,
    outermost_batch,
    parents_of,
    parse_bytes,
    refuse,
    verb_text,
    walk,
)
from penstock._plan._plan import Limits, Place, Plan, Shard
from penstock._plan._program import Batches, Streaming
from penstock.errors import UsageError

_MAX_SECONDS: Final = 1_000_000  # the system refuses much longer waits
_NO_LIMITS: Final = Limits()
# Only the loader that starts the workers may set these.
_OWNERS_LIMITS: Final = ("worker_init", "start_method", "worker_threads", "timeout")
Ending: TypeAlias = Literal["positions", "limit", "endless", "uneven"]


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
    remote: str = "",
) -> Plan:
    """Check all arguments of a loader, and return its plan; `remote` is as in `Plan`."""
    shard = Shard(0, 1) if shard is None else _checked_shard(shard)
    _check_limits(limits)
    prefetch = need_count("prefetch", prefetch, 1, "Pass num_workers=0 to compute no batch ahead")
    if limits.num_batch_workers is not None:
        need_count("num_batch_workers", limits.num_batch_workers, 1)
    need_count("read_ahead", limits.read_ahead, 1)
    if limits.worker_threads is not None:
        need_count("worker_threads", limits.worker_threads, 1)
    if limits.timeout is not None:
        seconds = _checked_timeout(limits.timeout, has_workers=place != "inline" or bool(remote))
        limits = replace(limits, timeout=seconds)
    program = program_of(node)
    _check_flag("ordered", ordered)
    _check_flag("copy", copy)
    is_isolated = _checked_isolated(isolated)
    if is_isolated or place == "processes" or remote:
        _check_start_method(limits)
    if shard.count > 1:
        check_ranks(node, program, shard)
    plan = Plan(node, program, place, num_workers, shard, prefetch, memory, copy, limits, ordered)
    return replace(plan, isolated=is_isolated, remote=remote)


def program_of(node: Node) -> Batches | Streaming:
    """Return the program of a dataset: `Batches` if it has positions, else `Streaming`."""
    return _batches(node) if length(node) is not None else Streaming(node, outermost_batch(node))


def choose_place(num_workers: object, workers: object) -> tuple[Place, int]:
    """Return the place and the number of workers of a loader's arguments; for "auto", provisional ones."""
    if workers not in ("auto", "threads", "processes"):
        raise UsageError(
            'workers must be "auto", "threads", "processes" or "ray", or a Loader or a pool that has workers already '
            f"(num_workers=0 computes in the caller's thread); got workers={workers!r}"
        )
    if num_workers == "auto":
        return ("inline", 0) if workers == "auto" else ("processes" if workers == "processes" else "threads", 1)
    count = need_count("num_workers", num_workers, 0, "Pass 0 to compute in the caller's thread")
    if not count:
        return "inline", 0
    return ("processes", count) if workers == "processes" else ("threads", count)


def share_place(owner: Plan, num_workers: object, limits: Limits, *, isolated: object) -> tuple[Place, int]:
    """Return the place and the number of workers of a loader that uses the workers of another one.

    Args:
        owner: the plan of the loader that owns the workers.
        num_workers: the argument beside `workers=loader`, which must be left out.
        limits: the limits; some of them only the owner may set.
        isolated: the argument beside `workers=loader`, which must be left out.
    """
    _check_limits(limits)
    if num_workers != 0:
        raise UsageError(
            f"workers=loader takes the workers of that loader ({owner.workers_text}), however many; got "
            f"num_workers={num_workers!r} beside it. Leave num_workers out"
        )
    if owner.remote:
        raise UsageError(
            f"workers=loader takes workers of this program; that loader has {owner.remote}. Give this one the pool "
            "itself: workers=pool"
        )
    if isolated or owner.isolated:
        whose = "this loader" if isolated else "that loader"
        raise UsageError(
            f"workers=loader takes workers of this process; {whose} has isolated=True, whose workers belong to its "
            "helper process. Leave isolated=True out, or give each loader its own workers"
        )
    given = [name for name in _OWNERS_LIMITS if getattr(limits, name) != getattr(_NO_LIMITS, name)]
    if given:
        raise UsageError(
            f"workers=loader takes workers that have the limits of that loader; got {', '.join(given)} beside it. "
            "Give them to that loader; num_batch_workers and read_ahead may differ"
        )
    return owner.place, owner.num_workers


def check_pool(plan: Plan, num_workers: object) -> None:
    """Check that the processes of a pool can compute the batches of a plan.

    Args:
        plan: the plan, which names the pool.
        num_workers: the argument beside `workers=pool`, which must be left out.
    """
    if num_workers != 0:
        raise UsageError(
            f"workers=pool takes the workers of the pool ({plan.remote}); got num_workers={num_workers!r} beside it. "
            "Leave num_workers out"
        )
    if plan.isolated:
        raise UsageError("workers=pool computes in other processes already; leave isolated=True out")
    if not plan.is_indexed and not plan.streaming.worker_inputs:
        refuse(
            plan.node,
            "workers=pool computes elements anywhere by their positions, and all of this dataset can only be read in "
            "order. Leave workers= out.",
        )


def parse_memory(memory: int | str | None) -> int | None:
    """Return a number of bytes from a loader's `memory`, such as 1_000_000 or "2GiB"."""
    return None if memory is None else parse_bytes("memory", memory)


def _checked_shard(shard: object) -> Shard:
    if not isinstance(shard, Shard):
        raise UsageError(f"shard must be a ps.Shard(rank, count); got shard={shard!r}")
    count, rank = need_count("count", shard.count, 1), need_count("rank", shard.rank)
    if rank >= count:
        raise UsageError(f"rank must be in [0, count); got rank={rank}, count={count}. Ranks count from 0")
    return Shard(rank, count, shard.uneven)


def check_threads(plan: Plan) -> None:
    """Check that no step needs processes, if the workers are threads.

    Raises:
        UsageError: a step seeds generators that all threads share.
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


def _checked_timeout(timeout: object, *, has_workers: bool) -> float:
    seconds = timeout if isinstance(timeout, int | float) else float(timeout) if isinstance(timeout, Real) else 0
    if isinstance(timeout, bool) or not 0 < seconds <= _MAX_SECONDS:
        raise UsageError(
            f"timeout must be a number of seconds above 0, at most {_MAX_SECONDS:,}, or None; got timeout={timeout!r}"
        )
    if not has_workers:
        raise UsageError(
            f"timeout={timeout} needs workers; these are none, and nothing can watch the calling thread while it "
            "computes a batch. Use num_workers above 0, or timeout=None"
        )
    return seconds


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
    if not is_batch(step):
        return Batches(node, length(node) or 0, None, (), can_recut=True)
    can_recut = not any(isinstance(other, Reindex) for other in above)
    return Batches(step.parent, length(step.parent) or 0, step, tuple(above), can_recut)


@frozen
class Ranks:
    """The facts about a dataset that decide how many ranks can share it, and how they end."""

    sizes: tuple[int, ...]
    """The rows of the global batches, each of which is divided; empty without a batch."""
    ending: Ending
    """Why all ranks end on the same step: known positions, a limit, or endless data; "uneven" if they may not."""
    short: int = 0
    """The rows of a last batch that must be divided although it isn't full; 0 for none."""
    uncut: str = ""
    """The name of a step above the batch that can't be divided among ranks; empty if there is none."""
    unlike: str = ""
    """The steps of the parts of a zip that can't be divided among ranks; empty if there is none."""

    def accepts(self, count: int, *, uneven: bool = False) -> bool:
        """Return whether the dataset can run on `count` ranks."""
        if count == 1:
            return True
        if not self.sizes or self.uncut or self.unlike or any(size % count for size in self.sizes):
            return False
        return not 0 < self.short < count and (uneven or self.ending != "uneven")


def ranks_of(node: Node, program: Batches | Streaming) -> Ranks:
    """Return the facts about a dataset that matter for ranks."""
    batch = program.batch
    sizes = () if batch is None else batch.value.rows
    uncut = _replacing(node, batch)
    if program.is_indexed:
        return Ranks(sizes, "positions", _short_rows(program.batches), uncut)
    ending: Ending = "endless" if is_endless(node) else "limit" if program.even_limit is not None else "uneven"
    return Ranks(sizes, ending, uncut=uncut, unlike=_unlike_parts(node))


def _replacing(node: Node, batch: Gather[Batch] | Fold | None) -> str:
    """Return the name of a step above the batch that replaces whole batches; empty if there is none."""
    while batch is not None and node is not batch:
        if isinstance(node, Map) and isinstance(node.on_error, Substitute):
            return node.name
        (node,) = parents_of(node)
    return ""


def _unlike_parts(node: Node) -> str:
    """Return the steps of the parts of a zip that is read in order, if they aren't the same in all parts; or "".

    Each rank would count the elements that these steps give of its own share, and so pair others than one rank does.
    """
    for step in walk(node):
        if isinstance(step, Combine) and not step.value.takes_one and length(step) is None:
            parts = zip(step.names, step.parts, strict=True)
            steps = {name: ", ".join(_counting(part)) or "none" for name, part in parts}
            if len(set(steps.values())) > 1:
                return str(steps)
    return ""


def _counting(part: Node) -> list[str]:
    """Return the steps of a part after which elements have no positions, in the order of the elements' way.

    A zip within it changes no number, and all its parts have the same steps, so those of its first part count.
    """
    found: list[str] = []
    waiting = [part]
    while waiting:
        step = waiting.pop()
        if isinstance(step, Combine) and not step.value.takes_one:
            waiting.append(step.parts[0])
            continue
        if length(step) is None and _counts(step):
            found.append(verb_text(step))
        waiting.extend(parents_of(step))
    return found[::-1]


def _counts(step: Node) -> bool:
    return isinstance(step, Filter | Fold | Split | Gather | Combine) or (
        isinstance(step, Map) and step.on_error == "skip"
    )


def _short_rows(program: Batches) -> int:
    batch = program.batch
    if batch is None or batch.value.remainder != "keep" or is_endless(batch.parent):
        return 0
    return program.rest


def sharing_remedy(node: Node) -> str:
    """Return what to change in a dataset that has no global batch, so that ranks can share it."""
    while isinstance(node, Map | Reindex):
        node = node.parent
    if verb_text(node).startswith("bucket("):
        batch = 'one number of rows= for all buckets, and remainder="drop"'
    else:
        batch = "batch(n)"
    return f"Use {batch}, or shard(i, count) for a fixed split"


def check_ranks(node: Node, program: Batches | Streaming, shard: Shard) -> None:
    """Raise an error with the reason if a dataset can't run on so many ranks."""
    ranks = ranks_of(node, program)
    if ranks.accepts(shard.count, uneven=shard.uneven):
        return
    if not ranks.sizes:
        refuse(node, f"shard= cuts global batches, and there is none. {sharing_remedy(node)}.")
    if ranks.unlike:
        refuse(
            node,
            "all parts of a zip that is read in order must leave out, add and reorder elements by the same steps, "
            f"since each rank pairs the elements of its own share; got {ranks.unlike}. Use these steps above zip.",
        )
    batch = program.batch
    if isinstance(batch, Fold):
        batch.value.check_ranks(shard.count)
    elif batch is not None and batch.value.size % shard.count:
        raise UsageError(
            f"a global batch must divide by the number of ranks; got batch({batch.value.size}) on {shard.count} ranks. "
            f"Use batch({-(-batch.value.size // shard.count) * shard.count}), or another multiple of {shard.count}"
        )
    if ranks.ending == "uneven" and not shard.uneven:
        refuse(
            node,
            "how many batches each rank gets is only known after reading, so ranks may end on different steps. Use "
            "limit(n) after the batch, or repeat(); or say Shard(rank, count, uneven=True) if the training loop copes "
            "with that.",
        )
    if batch is not None and 0 < ranks.short < shard.count:
        raise UsageError(
            f"the last batch of {chain_text(batch)} has {ranks.short} rows for {shard.count} ranks, so some "
            'would end a step early. Use remainder="drop" or remainder="pad".'
        )
    refuse(
        node,
        f"on_error=Substitute(…) of step {ranks.uncut!r} is above batch(), where it can't be cut into ranks. "
        "Use it before batch().",
    )
