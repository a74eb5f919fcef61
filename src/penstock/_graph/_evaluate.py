"""The definition of an indexable dataset: `element_at` computes one element in plain Python.

`elements` in `penstock._streaming` is the definition of a dataset that is read in order. Blocks, jobs and streams are
faster ways to the same elements, byte for byte; `tests/equivalence` compares them over random graphs. So the definition
is short and slow on purpose: it computes nothing ahead, shares nothing between elements, and has no arrays of positions
but where a table is looked up.

The functions of single steps below it are shared with blocks:

- *Windows* are spans of consecutive frames of episodes, which are elements whose arrays have a leading axis of frames.
  If a source can read a span of frames, only the window's frames are read; otherwise the whole episode is evaluated and
  cut. A window that runs past the end of its episode is padded with the last frame.
- *Caches*: a store that fails costs time, and never an element. The store's key is the parent's position. So the parent
  must have the same order in every epoch and no random step; the verb `cache` checks both.
- *Masks* are bool leaves that are true where an element has data and not padding.
"""

import contextlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeGuard, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock._caught import raised_by_handler
from penstock._graph._apply import Context, Location, apply_one, flat_elements, whereabouts
from penstock._graph._coordinates import locate, row_seed_position, seed_position
from penstock._graph._inputs import Integers
from penstock._graph._length import length, rows_per_batch
from penstock._graph._nodes import (
    Batch,
    Cache,
    Chain,
    Element,
    Filter,
    FlatMap,
    Fold,
    Group,
    Map,
    Merge,
    Mix,
    Node,
    Read,
    Reindex,
    Stream,
    StreamingMix,
    Unbatch,
    Windows,
    Zip,
)
from penstock._storage import MISSING, Missing
from penstock._storage import Cache as ElementStore
from penstock._tree import flatten, is_array, leaf_paths, subject, unflatten
from penstock.batching import split_rows
from penstock.errors import GraphError, InternalError
from penstock.sampling import apply_block
from penstock.sources import can_read_spans, read_records, read_spans


def element_at(node: Node, epoch: int, position: int, context: Context) -> Element:
    """Return the element at `position` of `epoch` of an indexable node: the definition."""
    match node:
        case Read(source=source):
            return read_records(source, np.array([position], np.int64))[0]
        case Reindex(parent=parent, sampler=sampler):
            return element_at(parent, *sampler(epoch, position), context)
        case Map(parent=parent):
            element = element_at(parent, epoch, position, context)
            return apply_one(node, element, location_of(parent, epoch, position), context, element_at)
        case Batch(parent=parent):
            start, stop = node.size * position, min(node.size * (position + 1), length(parent) or 0)
            rows = [element_at(parent, epoch, row, context) for row in range(start, stop)]
            return merge_rows(node, rows, node.size)
        case Unbatch(parent=parent):
            known = rows_per_batch(parent)
            if known is None:
                raise InternalError("rows of batches that are read in order have no positions")
            batch, row = divmod(position, known.size)
            rows = split_rows(element_at(parent, epoch, batch, context))
            check_made(node, batch, len(rows))
            return rows[row]
        case FlatMap(parent=parent, counts=counts) if counts is not None:
            number, ordinal = counts.locate_one(position)
            location = location_of(parent, epoch, number)
            made = flat_elements(node, element_at(parent, epoch, number, context), location, context, element_at)
            check_made(node, number, len(made))
            return made[ordinal]
        case Windows():
            return _window(node, epoch, position, context)
        case Group(parent=parent, grouping=grouping):
            group = np.array([position], np.int64)
            members = grouping.members(group)[1].tolist()
            return grouping.merge(group, [element_at(parent, epoch, member, context) for member in members])[0]
        case Cache(parent=parent):
            return cached(node, [position], lambda _: [element_at(parent, epoch, position, context)])[0]
        case Mix(parts=parts, rule=rule):
            number, part_epoch, part_position = rule(epoch, position)
            return element_at(parts[number], part_epoch, part_position, context)
        case Zip(parts=parts):
            return zipped_element(node, [element_at(part, epoch, position, context) for part in parts])
        case Filter() | Stream() | StreamingMix() | Chain() | FlatMap() | Fold():
            raise InternalError(f"a {type(node).__name__} node has no positions")
        case _:
            assert_never(node)


def _window(step: Windows, epoch: int, position: int, context: Context) -> Element:
    read = reads_spans(step)
    if read is not None:
        return read_windows(step, read, np.array([epoch], np.int64), np.array([position], np.int64))[0]
    span = Span(*step.table.locate_one(position))
    return cut_window(step, element_at(step.parent, epoch, span.episode, context), span)


def zipped_element(step: Zip, elements: list[Element]) -> Element:
    """Return one element of each part as one element."""
    return dict(zip(step.names, elements, strict=True)) if step.as_dict else tuple(elements)


def location_of(node: Node, epoch: int, position: int) -> Location:
    """Return the location of the element at (epoch, position) of an indexable node."""
    _, part, key = locate(node, epoch, position)
    return Location(epoch, position, seed_position(node, epoch, position), key, part=part)


def row_location(batch: Location, row: int) -> Location:
    """Return the location of one row of a batch."""
    return replace(batch, seed=row_seed_position(batch.seed, row))


def keeps(step: Filter, element: Element, location: Location) -> bool:
    """Return whether the predicate is true for the element. An error gets a note with the element's location."""
    try:
        return bool(step.predicate(element))
    except Exception as error:
        error.add_note(whereabouts(step, location))
        raise


def merge_rows(step: Batch, rows: list[Element], size: int, merge: Merge | None = None) -> Element:
    """Return the rows merged into one batch, padded to `size` and masked as the step says.

    Args:
        step: the batch.
        rows: at least one.
        size: the number of rows of a full batch, of one rank.
        merge: a faster function with the results of the step's.
    """
    count = len(rows)
    if step.remainder == "pad":
        rows = rows + [rows[-1]] * (size - count)
    return with_mask(step, (merge or step.merge)(rows), count, len(rows))


def check_made(step: Unbatch | FlatMap, parent: int, found: int) -> None:
    """Raise a GraphError if an input was split into another number of elements than the step's positions assume.

    Args:
        step: the step.
        parent: the input's position in the parent.
        found: the number of elements.
    """
    if isinstance(step, FlatMap):
        expected = found if step.counts is None else int(step.counts.counts[parent])
        if found != expected:
            raise GraphError(
                f"step {step.name!r} made {found} elements of the one at position {parent}, where counts= says "
                f"{expected}. Give the counts that the function makes, or leave counts= out and read in order."
            )
        return
    known = rows_per_batch(step.parent)
    expected = found if known is None else min(known.size, known.total - known.size * parent)
    if found != expected:
        raise GraphError(
            f"unbatch() found {found} rows in batch {parent} instead of {expected}: "
            "a function above batch() must keep the number of rows"
        )


class Span(NamedTuple):
    """Frames [start, stop) of an episode."""

    episode: int
    start: int
    stop: int


def reads_spans(step: Windows) -> Read | None:
    """Return the source's node if the windows are cut from its records and it can read spans of frames; else None."""
    node: Node = step.parent
    while isinstance(node, Reindex):
        node = node.parent
    return node if isinstance(node, Read) and can_read_spans(node.source) else None


def read_windows(step: Windows, read: Read, epochs: Integers, positions: Integers) -> list[Element]:
    """Return a block of windows of a source that `reads_spans` returned."""
    keys, starts, stops = step.table.locate(positions)
    node, episodes = step.parent, keys
    while isinstance(node, Reindex):
        epochs, keys = apply_block(node.sampler, epochs, keys)
        node = node.parent
    records = read_spans(read.source, keys, starts, stops)
    spans = map(Span, episodes.tolist(), starts.tolist(), stops.tolist())
    return [_finished_window(step, record, span) for record, span in zip(records, spans, strict=True)]


def cut_window(step: Windows, episode: Element, span: Span) -> Element:
    """Return a window cut out of an episode; its arrays are copies."""
    leaves, structure = flatten(episode)
    frames = int(step.table.lengths[span.episode])
    cut = list(leaves)
    for index, leaf in enumerate(leaves):
        array = _frames_of(leaf)
        if array is not None:
            _check_frames(array, frames, leaf_paths(structure)[index], span.episode)
            # A view would keep the whole episode in memory, and share frames with overlapping windows.
            cut[index] = array[span.start : span.stop].copy()
    return _finished_window(step, unflatten(structure, cut), span)


def _finished_window(step: Windows, window: Element, span: Span) -> Element:
    """Return a window with its frames checked, padded to the table's length, and with the step's mask."""
    frames, total = span.stop - span.start, step.table.length
    leaves, structure = flatten(window)
    padded = list(leaves)
    for index, leaf in enumerate(leaves):
        array = _frames_of(leaf)
        if array is not None:
            _check_frames(array, frames, leaf_paths(structure)[index], span.episode)
            padded[index] = array if frames == total else np.concatenate([array, *[array[-1:]] * (total - frames)])
    window = unflatten(structure, padded)
    return window if step.mask is None else add_mask(window, step.mask, frames, total, "window")


def _frames_of(leaf: object) -> NDArray[Any] | None:
    """Return a leaf as an array of frames, or None for a leaf of the whole episode: a number, text, None."""
    if is_array(leaf):
        return leaf
    has_frames = hasattr(type(leaf), "__array__") and not isinstance(leaf, np.generic)
    return np.asarray(leaf) if has_frames else None


def _check_frames(array: NDArray[Any], expected: int, path: str, episode: int) -> None:
    if not array.ndim or len(array) != expected:
        raise GraphError(
            f"windows() cuts every array along its first axis, the frames; {subject(path)} at position {episode} has "
            f"shape {array.shape}, where {expected} frames were expected. Give the episodes' lengths, and add arrays "
            "that don't hold frames in a map above windows()."
        )


def cached(step: Cache, positions: Sequence[int], compute: Callable[[list[int]], list[Element]]) -> list[Element]:
    """Return elements from a cache's store, and compute and store the others.

    Args:
        step: the cache.
        positions: of the elements, in the parent.
        compute: returns the elements that the store doesn't hold, given their numbers in `positions`.
    """
    store: ElementStore = step.store
    elements = [_from_store(step, partial(store.get, position)) for position in positions]
    absent = [number for number, element in enumerate(elements) if element is MISSING]
    if absent:
        for number, element in zip(absent, compute(absent), strict=True):
            elements[number] = element
            _from_store(step, partial(store.put, positions[number], element))
    return elements


def _from_store(step: Cache, method: Callable[[], Element | Missing]) -> Element | Missing:
    """Return the result of a method of the store, or `MISSING` if it failed."""
    try:
        return method()
    except Exception as error:
        if raised_by_handler(error):
            raise
        _warn_of_store(step, error)
        return MISSING


def _warn_of_store(step: Cache, error: Exception) -> None:
    """Warn that the store failed and elements are computed again; Python shows the same warning once."""
    with contextlib.suppress(Warning):  # where warnings are errors, this one would lose the element
        warnings.warn(f"{step.verb} can't use its store: {type(error).__name__}", RuntimeWarning, stacklevel=2)


def add_mask(element: Element, name: str, data: int, total: int, what: str) -> Element:
    """Return the element with a bool leaf `name` of shape (total,) that is true for the first `data`.

    Args:
        element: a dict.
        name: the key of the new leaf.
        data: the number of rows or frames of data.
        total: the number of rows or frames with padding.
        what: the noun for the element in messages, such as "batch".

    Raises:
        GraphError: the element is not a dict, or already has that key.
    """
    if not _is_dict(element) or name in element:
        found = f"a dict that has {name!r} already" if _is_dict(element) else f"a {type(element).__name__}"
        raise GraphError(f"mask={name!r} must name a new leaf of a dict; the {what} is {found}")
    return {**element, name: np.arange(total) < data}


def with_mask(step: Batch, batch: Element, data_rows: int, rows: int) -> Element:
    """Return the batch with the step's mask, if it has one: true for the first `data_rows` rows."""
    return batch if step.mask is None else add_mask(batch, step.mask, data_rows, rows, "batch")


def _is_dict(element: object) -> TypeGuard[dict[Any, Any]]:
    return isinstance(element, dict)
