"""Indexed filters: `filter(…, index=path)`, computed once and kept in a file with one bit for each element."""

import contextlib
import hashlib
import os
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from penstock._dataset._index_file import Found, alone, read_index
from penstock._graph import (
    Context,
    Filter,
    Fingerprint,
    Map,
    Node,
    Substitute,
    all_details,
    chain_text,
    code_identities,
    evaluate_block,
    fingerprint,
    hold_order,
    need_finite,
    walk,
)
from penstock._progress import Progress, counted
from penstock._workers._scan import Task, scan
from penstock.errors import GraphError, UsageError
from penstock.sampling import Bits


def filter_bits(node: Node, predicate: Callable[..., object], name: str, index: "str | os.PathLike[str]") -> Bits:
    """Return a bit for each element of a node, in the order of epoch 0: the predicate's result, loaded or computed.

    Args:
        node: a dataset with positions and an end, and with the same elements in every epoch.
        predicate: a function of an element.
        name: of the step.
        index: the path of the file, which is written if it is missing or belongs to another dataset or predicate.

    Raises:
        UsageError: the file is of another kind, or can't be written.
        GraphError: the dataset isn't as described.
    """
    length = need_finite(node, "filter(index=…)")
    path = _path(index)
    _need_lasting_elements(node)
    # The bits choose positions in this order, so it must be the same in every epoch.
    step = Filter(hold_order(node), predicate, name)
    identity = _identity(step)
    found = read_index(path, identity, length)
    if found.bits is not None:
        return found.bits
    with alone(path) as writer:
        found = read_index(path, identity, length)  # another process may have written it meanwhile
        if found.bits is not None:
            return found.bits
        _warn(path, found)
        bits = _compute(step, length)
        try:
            writer.write(identity, bits)
        except OSError as error:
            warnings.warn(
                f"index={path!r} can't be written ({error.strerror}), so the computed bits are not kept. Free some "
                "space, or name a file elsewhere.",
                stacklevel=3,
            )
    return bits


def _path(index: "str | os.PathLike[str]") -> str:
    try:
        return os.path.abspath(os.fsdecode(index))
    except TypeError:
        raise UsageError(f"index must be the path of a file; got index={index!r}") from None


def _need_lasting_elements(node: Node) -> None:
    """Check that each element is the same in every epoch.

    Raises:
        GraphError: a step has other elements in each epoch.
    """
    for step in walk(node):
        if isinstance(step, Map) and (step.form != "none" or isinstance(step.on_error, Substitute)):
            raise GraphError(
                f"filter(index=…) evaluates each element once for all epochs, and {chain_text(step)} has other "
                "elements in each epoch. Put the filter below that step, or leave index= out."
            )


def _identity(step: Filter) -> Fingerprint:
    """Return the identity of the bits: the dataset's fingerprint, with the complete code of its functions."""
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
    """Return the predicate's result for each element, computed on one thread for each processor."""
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
            packed[first : -(-stop // 8)] |= np.packbits(mask, bitorder="little")  # two ranges may share a byte
            progress.advance(stop - start)
    packed.flags.writeable = False
    return Bits(packed, length)
