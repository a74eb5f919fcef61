"""A filter that is computed once, for all epochs and ranks, and kept in a file of one bit for each element."""

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock._dataset._index_file import Found, alone, read_index
from penstock._graph._apply import Context
from penstock._graph._blocks import evaluate_block
from penstock._graph._cache_identity import code_identities
from penstock._graph._describe import chain_text
from penstock._graph._fingerprint import Fingerprint, all_details, fingerprint
from penstock._graph._nodes import Filter, Map, Node, Substitute, walk
from penstock._graph._rewrite import hold_order
from penstock._graph._verify import need_finite
from penstock._progress import Progress, counted
from penstock._workers._scan import Task, scan
from penstock.errors import GraphError, UsageError
from penstock.sampling import Bits


def filter_bits(node: Node, predicate: Callable[..., object], name: str, index: "str | os.PathLike[str]") -> Bits:
    """Return which elements of a node, in its order of epoch 0, a predicate is true of: from a file, or computed.

    Args:
        node: the dataset; it must have positions and an end, and the same elements in every epoch.
        predicate: a function of an element.
        name: the step's.
        index: the path of the file, which is written where it is missing or was made for something else.

    Raises:
        UsageError: if the file is something else, or can't be written.
        GraphError: if the dataset is none of these.
    """
    length = need_finite(node, "filter(index=…)")
    path = _path(index)
    _need_lasting_elements(node)
    # As a choice of positions stands above it: the order of epoch 0, for ever.
    step = Filter(hold_order(node), predicate, name)
    identity = _identity(step)
    found = read_index(path, identity, length)
    if found.bits is not None:
        return found.bits
    with alone(path) as writer:
        found = read_index(path, identity, length)  # another process may have been first
        if found.bits is not None:
            return found.bits
        _warn(path, found)
        bits = _compute(step, length)
        try:
            writer.write(identity, bits)
        except OSError as error:
            warnings.warn(
                f"index={path!r} can't be written ({error.strerror}), so what was computed is not kept. Make room, or "
                "name a file elsewhere.",
                stacklevel=3,
            )
    return bits


def _path(index: "str | os.PathLike[str]") -> str:
    try:
        return os.path.abspath(os.fsdecode(index))
    except TypeError:
        raise UsageError(f"index must be the path of a file; got index={index!r}") from None


def _need_lasting_elements(node: Node) -> None:
    """Raise a GraphError where an element may be another in the next epoch, of which the verdict would not hold.

    Raises:
        GraphError: there.
    """
    for step in walk(node):
        if isinstance(step, Map) and (step.form != "none" or isinstance(step.on_error, Substitute)):
            raise GraphError(
                f"filter(index=…) judges each element once for all epochs, and {chain_text(step)} gives other elements "
                "in each. Put the filter below that step, or leave index= out."
            )


def _identity(step: Filter) -> Fingerprint:
    """Return what determines the verdicts: as for a state, but for functions all that they depend on."""
    below, details = fingerprint(step.parent), all_details(step.parent)
    texts = [*code_identities(step), *details["source"], *details["order"]]
    functions = hashlib.blake2b(" ".join(texts).encode(), digest_size=8)
    return Fingerprint(below.source, below.order, functions.hexdigest(), {})


def _warn(path: str, found: Found) -> None:
    if found.unfit:
        warnings.warn(
            f"index={path!r} is computed again and replaced, since {found.unfit}. Where several datasets or predicates "
            "are in use, give each a file of its own.",
            stacklevel=4,
        )


def _compute(step: Filter, length: int) -> Bits:
    """Return the verdict on each element, computed on as many threads as there are processors."""
    packed = np.zeros(-(-length // 8), np.uint8)

    def make_task() -> Task[NDArray[np.int64]]:
        context = Context()  # one for each thread

        def kept(start: int, stop: int) -> NDArray[np.int64]:
            positions = np.arange(start, stop, dtype=np.int64)
            numbers = evaluate_block(step, np.zeros_like(positions), positions, context).kept
            return positions - start if numbers is None else numbers

        return kept

    results = scan(length, make_task, os.cpu_count() or 1)
    with (
        Progress(f"filter {step.name}", length, amount=counted) as progress,
        contextlib.closing(results),
    ):
        for start, stop, numbers in results:
            first = start // 8
            mask = np.zeros(stop - first * 8, np.bool_)
            mask[numbers + (start - first * 8)] = True
            packed[first : -(-stop // 8)] |= np.packbits(mask, bitorder="little")  # a byte may be two ranges'
            progress.advance(stop - start)
    packed.flags.writeable = False
    return Bits(packed, length)
