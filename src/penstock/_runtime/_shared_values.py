"""Values in shared memory: results that processes pickle for each other, and the plan that worker processes load.

A pickle is written with the data of its arrays beside it, so a reader can use the arrays in place.
"""

import pickle
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby
from mmap import mmap
from typing import TYPE_CHECKING, cast

import numpy as np

from penstock._caught import Caught
from penstock._graph import Element, Filter, Map, Node, Stream, outermost_batch, parents_of, walk, with_parents
from penstock._independent import have_own_objects
from penstock._memory import Lease, Region, create_region
from penstock._pickles import Apart, Part, Pickled, dump, load, pickler, stream_of
from penstock._plan import Plan
from penstock._processes import missing, modules_of, naming, unimportable
from penstock._runtime._policy import SCANNED_BYTES
from penstock.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray


def joined(pickles: list[Pickled]) -> tuple[Pickled, list[slice]]:
    """Join pickles to one; return it, and the place of each in it. None is aligned: readers copy the arrays."""
    pieces: list[tuple[int, bytes | memoryview]] = []
    places: list[slice] = []
    end = 0
    for pickled in pickles:
        start, end = end, end + pickled.nbytes
        pieces += ((start + offset, piece) for offset, piece in pickled.pieces)
        places.append(slice(start, end))
    return Pickled(end, pieces), places


def write(pickled: Pickled, region: "Region | NDArray[np.uint8]", start_bytes: int) -> None:
    """Write a pickle into memory; large pieces are copied without the GIL."""
    memory = np.frombuffer(cast("memoryview", region), np.uint8)
    for offset, piece in pickled.pieces:
        start = start_bytes + offset
        memory[start : start + len(piece)] = np.frombuffer(piece, np.uint8)


def in_parts(pickled: Pickled, least_bytes: int) -> tuple[Part, ...]:
    """Return a pickle as arrays that lie apart: buffers of `least_bytes` as they are, and copies of all else."""
    parts: list[Part] = []
    for is_large, group in groupby(pickled.pieces, lambda piece: piece[0] > 0 and len(piece[1]) >= least_bytes):
        pieces = list(group)
        if is_large:
            parts.extend(Part(start, np.frombuffer(piece, np.uint8)) for start, piece in pieces)
            continue
        first, (last, piece) = pieces[0][0], pieces[-1]
        copied = np.empty(last + len(piece) - first, np.uint8)
        write(Pickled(copied.nbytes, pieces), copied, -first)
        parts.append(Part(first, copied))
    return tuple(parts)


def apart(elements: list[Element]) -> list[Element] | Apart:
    """Return elements that are pickled together so that the reader gets a list of which no two share memory."""
    return elements if len(elements) < 2 or have_own_objects(elements) else Apart(elements)


def read(memory: Region | Lease | mmap, place: slice, copied_bytes: int) -> object:
    """Return the value of a pickle; arrays larger than `copied_bytes` are views of the memory, and keep it."""
    return load(memoryview(cast("memoryview", memory))[place], copied_bytes=copied_bytes)


def shared(plan: Plan, *, asked: str = 'workers="processes"') -> Region:
    """Return memory with a plan for processes, which load it from there; the data of its arrays stays there.

    Args:
        plan: the plan.
        asked: the argument by which the user requested processes.

    Raises:
        UsageError: a part of the plan can't be pickled.
    """
    pickled = packed(plan, plan.node, asked=asked, otherwise='. Or use workers="threads" alone')
    region = create_region(pickled.nbytes)
    write(pickled, region, 0)
    return region


def packed(value: object, node: Node, *, asked: str, otherwise: str = "") -> Pickled:
    """Return the pickle of a value for another process.

    Args:
        value: the value.
        node: the dataset in it.
        asked: the argument or call by which the user requested another process.
        otherwise: another remedy, at the end of the error's text.

    Raises:
        UsageError: a part of the value can't be pickled.
    """
    with Caught(Exception) as caught:
        pickled = _packed(value)
        if not (why := unimportable(bytes(stream_of(memoryview(pickled.pieces[0][1]))[:SCANNED_BYTES]))):
            return pickled
        raise UsageError(f"{asked} sends the dataset to another process, but {why}{otherwise}")
    if isinstance(caught.error, UsageError):
        raise caught.taken()
    error = caught.taken()
    raise UsageError(
        f"{asked} sends the dataset to another process, so all of it must be picklable; got {error}{_culprit(node)}. "
        "Use functions that are defined in a module, and open files and connections where they are first used; with "
        f"cloudpickle (the extra `processes`) lambdas and local functions can be sent, too{otherwise}"
    ) from error


def without_streams(plan: Plan) -> Plan:
    """Return a plan without its streams: processes don't read them, and it may be impossible to pickle them."""
    if not plan.program.reads_streams:
        return plan
    node = _emptied(plan.node)
    return replace(plan, node=node, program=replace(plan.streaming, node=node, batch=outermost_batch(node)))


def _emptied(node: Node) -> Node:
    if isinstance(node, Stream):
        return replace(node, iterable=())
    return with_parents(node, tuple(map(_emptied, parents_of(node))))


def _culprit(node: Node) -> str:
    """Name the step whose function can't be pickled, if there is one."""
    for step in walk(node):
        if isinstance(step, Map | Filter):
            with Caught(Exception) as caught:
                dump(step.function if isinstance(step, Map) else step.predicate, pickler().dumps)
            if caught.error is not None:
                return f", from step {step.name!r}"
    return ""


def _packed(value: object) -> Pickled:
    dumps = pickler().dumps
    with Caught(Exception) as caught:
        made = dump(value) if dumps is pickle.dumps else dump(value, dumps)
        if dumps is pickle.dumps and (unknown := missing(bytes(made.pieces[0][1]))):
            raise pickle.PicklingError(unknown)
        return made
    error = caught.taken()
    # Pickle by name what cloudpickle would copy together with everything that its code refers to.
    with Caught(Exception):
        named = dump(value)
        if not missing(bytes(named.pieces[0][1])):
            return named
    try:
        raise error
    finally:
        del error  # otherwise its traceback would keep it and the value


def needs_of(region: Region, modules: Iterable[str] = ()) -> bytes:
    """Return a pickle that names the modules of a shared plan, as far as its beginning names them, and further ones."""
    stream = stream_of(memoryview(cast("memoryview", region)))
    return naming((*modules_of(bytes(stream[:SCANNED_BYTES])), *modules))
