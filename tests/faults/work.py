"""Random datasets whose functions take time, as real ones do, over elements of a byte to some megabytes.

They are the random graphs of the equivalence tests. Each of their functions works or waits before it returns its
result, so their definition doesn't change.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Final, Literal

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import penstock as ps
from penstock._dataset import Dataset
from penstock._graph._flat_map import FlatMap
from penstock._graph._gather import Batch, is_batch
from penstock._graph._length import length
from penstock._graph._nodes import Filter, Gather, Map, Node, Read, Split, parents_of, walk
from penstock._graph._rewrite import with_parents
from penstock.errors import GraphError
from tests.equivalence.asynchronous import Awaited
from tests.equivalence.definition import epoch_of
from tests.equivalence.functions import (
    add_one,
    fails_sometimes,
    flat_sum,
    jitter,
    keeps_two_of_three,
    totals,
    with_origin,
)
from tests.equivalence.graphs import REMAINDERS, batched, indexable, ordered
from tests.equivalence.joins import in_order, joined, uniform
from tests.equivalence.mixtures import grouped, ordered_mixtures, tables
from tests.faults.chance import Chance
from tests.faults.drawing import drawn
from tests.faults.pace import EPOCH_SECONDS, SECONDS, Pace, at_once, is_hurried, pace_for, paced

_EPOCH_BYTES: Final = 48 << 20
_BYTES: Final = (1, 1, 64, 1 << 12, 1 << 16, 1 << 20, 4 << 20)
_ROWS: Final = (1, 2, 3, 5, 8, 16, 64, 200, 512)
_MAX_ELEMENTS: Final = 1_024
_PASSES: Final = (1, 1, 4, 10)
_ENOUGH: Final = 5  # batches of a dataset, if a few draws give one of so many
_DRAWS: Final = 8
_MAX_READS: Final = 20_000
_MAX_AWAITED_READS: Final = 2_000
_ASSUMED_ROWS: Final = 8  # of a planned group
_ASSUMED_ELEMENTS: Final = 200  # of a dataset without a length
_KEYS_PER_READ: Final = (1, 1, 3)


class SlowlyAwaited(Awaited):
    """The records of a source, each of which takes time."""

    def __init__(self, source: Any, keys_per_read: int, seconds: float) -> None:
        super().__init__(source, keys_per_read)
        self._seconds = seconds

    async def read(self, keys: NDArray[np.int64]) -> list[Any]:
        """Return the records."""
        if not is_hurried():
            await asyncio.sleep(self._seconds * (1 + int(keys[0]) % 3))
        return await super().read(keys)


@dataclass(frozen=True)
class Payload:
    """The bytes of each element, at most `size`, in a form.

    It is one row of bytes; an image that is a view in another order of axes; every other float of an array; or as many
    bytes as each element's content says.
    """

    size: int
    form: Literal["bytes", "image", "strided", "ragged"]

    def of(self, element: Any) -> NDArray[Any]:
        """Return the bytes of an element."""
        start = flat_sum(element)
        match self.form:
            case "bytes":
                return np.arange(start, start + self.size, dtype=np.int64).astype(np.uint8)
            case "image":
                side = max(int((self.size // 3) ** 0.5), 1)
                numbers = np.arange(start, start + 3 * side * side, dtype=np.int64).astype(np.uint8)
                return numbers.reshape(3, side, side).transpose(1, 2, 0)
            case "strided":
                return np.arange(start, start + max(self.size // 4, 1), dtype=np.float32)[::2]
            case "ragged":
                return np.arange(start % (self.size + 1), dtype=np.uint8)


def weighed(payload: Payload, element: Any) -> Any:
    """Return an element with bytes that depend on it."""
    return {"element": element, "payload": payload.of(element)}


def summed(elements: list[Any]) -> Any:
    """Merge a batch into its first element, each element's sum, and all payloads one after the other."""
    payloads = [np.ravel(each["payload"]).view(np.uint8) for each in elements if "payload" in each]
    return {
        "first": uniform(_without_payload(elements[0])),
        "sums": np.array([flat_sum(_without_payload(each)) for each in elements]),
        "payloads": np.concatenate(payloads) if payloads else np.zeros(0, np.uint8),
    }


def _without_payload(element: Any) -> Any:
    return {key: value for key, value in element.items() if key != "payload"}


_BASES: Final[dict[str, st.SearchStrategy[Any]]] = {
    "indexable": indexable(),
    "batched": batched(),
    "joined": joined(),
    "tables": tables(),
    "ordered": ordered(),
    "in order": in_order(),
    "grouped": grouped(),
    "mixtures": ordered_mixtures().map(lambda mixture: mixture.dataset),
}
TORCH_KIND: Final = "torch's loader, working"
WORKING_KINDS: Final = (*(f"{name}, working" for name in _BASES), TORCH_KIND)


@st.composite
def heavier(draw: st.DrawFn, base: st.SearchStrategy[ps.Dataset[Any]]) -> ps.Dataset[Any]:
    """Draw a dataset; in most cases add bytes to its elements, and batch them."""
    dataset = draw(base)
    known = length(dataset.node)
    if draw(st.integers(0, 3)) == 0 or known == 0:
        return dataset
    rows = draw(st.sampled_from(_ROWS))
    if known is not None and known < 3 * rows:
        dataset = dataset.repeat(min(-(-3 * rows // known), max(_MAX_ELEMENTS // known, 1)))
        known = length(dataset.node)
    if known is None:
        passes = draw(st.sampled_from(_PASSES))  # so that chunks end at many positions
        with suppress(GraphError):  # a limit, or several parts that are read in order, below
            dataset = dataset.repeat(passes)
    if draw(st.booleans()):
        dataset = dataset.map(uniform, name="made uniform")
    most = _EPOCH_BYTES // (known or _ASSUMED_ELEMENTS)
    size = draw(st.sampled_from([size for size in _BYTES if size <= most]))
    form: Any = draw(st.sampled_from(["bytes", "bytes", "image", "strided", "ragged"]))
    dataset = dataset.map(partial(weighed, Payload(size, form)), name="weighed")
    dataset = draw(changed(dataset, "row"))
    merge = summed if form == "ragged" else draw(st.sampled_from([None, None, summed, totals]))
    dataset = dataset.batch(rows, remainder=draw(REMAINDERS), merge=merge)
    for number in range(draw(st.integers(0, 2))):
        dataset = draw(changed(dataset, f"batch {number}"))
    if merge is None and draw(st.integers(0, 5)) == 0:
        dataset = dataset.unbatch()
    return dataset


@st.composite
def changed(draw: st.DrawFn, dataset: ps.Dataset[Any], name: str) -> ps.Dataset[Any]:
    """Draw a step over elements or batches, or no step."""
    is_indexable = length(dataset.node) is not None
    match draw(st.integers(0, 9)):
        case 0:
            return dataset.map(add_one, name=f"add one, {name}")
        case 1:
            return dataset.random_map(jitter, name=f"jitter, {name}")
        case 2:
            return dataset.map_with_origin(with_origin, name=f"with origin, {name}")
        case 3:
            return dataset.shuffle() if is_indexable else dataset.window_shuffle(draw(st.integers(2, 40)))
        case 4:
            return dataset.filter(keeps_two_of_three, name=f"filter, {name}")
        case 5:
            on_error: Any = ps.Substitute(attempts=64) if is_indexable else "skip"
            return dataset.map(fails_sometimes, name=f"fails, {name}", on_error=on_error)
        case _:
            return dataset


def working_dataset(kind: str, chance: Chance) -> ps.Dataset[Any]:
    """Return a random dataset of one of `WORKING_KINDS`, other than torch's, whose functions take time."""
    base = _BASES[kind.removesuffix(", working")]
    is_awaited = chance.is_one_in(4)
    draws = 1
    while not _is_suitable(dataset := drawn(heavier(base), chance.between(0, 1 << 62)), is_awaited, draws < _DRAWS):
        draws += 1
    own = sum(_holds_own_function(node) for node in walk(dataset.node))
    elements = max((length(node) or _ASSUMED_ELEMENTS for node in walk(dataset.node)), default=1)
    most = EPOCH_SECONDS / (max(own, 1) * elements)
    pace = pace_for(chance, max(own, 1) * elements)
    awaited = (chance.one_of(_KEYS_PER_READ), min(chance.one_of(SECONDS), 10 * most)) if is_awaited else None
    return Dataset(_paced(dataset.node, pace, awaited))


def _is_suitable(dataset: ps.Dataset[Any], is_awaited: bool, is_choosy: bool) -> bool:  # noqa: FBT001 - two of one kind
    """Return whether the definition takes no minutes and, if `is_choosy`, whether there are enough batches."""
    if _reads(dataset.node) > (_MAX_AWAITED_READS if is_awaited else _MAX_READS):
        return False
    return not is_choosy or _ENOUGH <= _batches(dataset) <= _MAX_ELEMENTS


def _reads(node: Node) -> int:
    """Estimate the reads of the definition for an epoch: it computes a batch again for each of its rows."""
    known = length(node)
    if known is not None:
        return known * _reads_of_one(node)
    return sum(map(_reads, parents_of(node))) or _ASSUMED_ELEMENTS


def _reads_of_one(node: Node) -> int:
    below = max(map(_reads_of_one, parents_of(node)), default=1)
    return below * (node.value.size if is_batch(node) else _ASSUMED_ROWS if isinstance(node, Gather) else 1)


def _batches(dataset: ps.Dataset[Any]) -> int:
    known = length(dataset.node)
    if known is not None:
        return known
    found = 0
    with at_once(), suppress(ValueError):
        for _ in islice(epoch_of(dataset, 0), _MAX_ELEMENTS + 1):
            found += 1
    return found


def _paced(node: Node, pace: Pace, awaited: tuple[int, float] | None) -> Node:
    """Return the graph so that the tests' own functions, and maybe its sources, take time."""
    if isinstance(node, Read) and awaited is not None:
        return replace(node, source=ps.sources.as_source(SlowlyAwaited(node.source, *awaited)))
    node = with_parents(node, tuple(_paced(parent, pace, awaited) for parent in parents_of(node)))
    if not _holds_own_function(node):
        return node
    match node:
        case Map():
            return replace(node, function=partial(paced, pace, node.function))
        case Split(value=FlatMap() as value):
            return replace(node, value=replace(value, function=partial(paced, pace, value.function)))
        case Filter():
            return replace(node, predicate=partial(paced, pace, node.predicate))
        case Gather(value=Batch() as batch):
            return replace(node, value=replace(batch, merge=partial(paced, pace, batch.merge)))
        case _:
            return node


def _holds_own_function(node: Node) -> bool:
    match node:
        case Map() | Split(value=FlatMap()) | Filter():
            return True
        case Gather(value=Batch(merge=merge)):
            return isinstance(merge, partial) or getattr(merge, "__module__", "").startswith("tests.")
        case _:
            return False
