"""A plan in shared memory, which worker processes load."""

import pickle
from dataclasses import replace
from typing import Final, cast

from penstock._caught import Caught
from penstock._graph import Filter, Map, Node, Stream, outermost_batch, parents_of, walk, with_parents
from penstock._memory import Region, create_region
from penstock._pickles import Pickled, dump, pickler, stream_of
from penstock._plan._plan import Plan
from penstock._processes import missing, modules_of, naming
from penstock._runtime._pickle_buffers import write
from penstock.errors import UsageError

_LOOKED_AT_BYTES: Final = 1 << 20  # of a plan, for the modules that it names


def shared(plan: Plan, *, asked: str = 'workers="processes"') -> Region:
    """Return memory with a plan for processes: they load it from there, and the data of its arrays stays there.

    Args:
        plan: the plan.
        asked: the argument by which the user requested processes.

    Raises:
        UsageError: something of it can't be pickled.
    """
    with Caught(Exception) as caught:
        parcel = _packed(plan)
        region = create_region(parcel.nbytes)
        write(parcel, region, 0)
        return region
    error = caught.taken()
    raise UsageError(
        f"{asked} sends the dataset to another process, so all of it must be picklable; got {error}{_culprit(plan)}. "
        "Use functions that are defined in a module, and open files and connections where they are first used; with "
        "cloudpickle (the extra `processes`) lambdas and local functions can be sent, too. Or use "
        'workers="threads" alone'
    ) from error


def without_streams(plan: Plan) -> Plan:
    """Return a plan for processes that read no streams: these are the consumer's, and can't be sent, maybe."""
    if not plan.program.reads_streams:
        return plan
    node = _emptied(plan.node)
    return replace(plan, node=node, program=replace(plan.streaming, node=node, batch=outermost_batch(node)))


def _emptied(node: Node) -> Node:
    if isinstance(node, Stream):
        return replace(node, iterable=())
    return with_parents(node, tuple(map(_emptied, parents_of(node))))


def _culprit(plan: Plan) -> str:
    """Return which step it is whose function can't be sent, if it is one of these."""
    for step in walk(plan.node):
        if isinstance(step, Map | Filter):
            with Caught(Exception) as caught:
                dump(step.function if isinstance(step, Map) else step.predicate, pickler().dumps)
            if caught.error is not None:
                return f", from step {step.name!r}"
    return ""


def _packed(plan: Plan) -> Pickled:
    dumps = pickler().dumps
    with Caught(Exception) as caught:
        packed = dump(plan, dumps)
        if dumps is pickle.dumps and (unknown := missing(bytes(packed.pieces[0][1]))):
            raise pickle.PicklingError(unknown)
        return packed
    error = caught.taken()
    with Caught(Exception):  # what cloudpickle would copy, with all that its code might mean, may be found by its name
        named = dump(plan)
        if not missing(bytes(named.pieces[0][1])):
            return named
    try:
        raise error
    finally:
        del error  # else its traceback holds it, and the plan


def needs_of(region: Region) -> bytes:
    """Return a pickle that names the modules of a shared plan, as far as its beginning tells them."""
    stream = stream_of(memoryview(cast("memoryview", region)))
    return naming(modules_of(bytes(stream[:_LOOKED_AT_BYTES])))
