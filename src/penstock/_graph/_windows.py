"""The split `windows`: spans of consecutive frames of episodes, elements whose arrays have a leading axis of frames.

If a source can read a span of frames, only the window's frames are read; otherwise the whole episode is evaluated and
cut. A window that runs past the end of its episode is padded with the last frame.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._graph._apply import Context, ElementAt, Locations
from penstock._graph._fingerprint import array_text
from penstock._graph._gather import add_mask
from penstock._graph._length import length
from penstock._graph._nodes import Element, Integers, Node, Read, Reindex, Split
from penstock._graph._splitting import Splitting, copied_or
from penstock._tree import IMMUTABLE, flatten, is_array, leaf_paths, subject, unflatten
from penstock.errors import GraphError, InternalError
from penstock.sampling import WindowTable, apply_block
from penstock.sources import can_read_spans, read_spans


@frozen
class Windows(Splitting):
    """Spans of consecutive frames of each element, an episode; its leaves have a leading axis of frames.

    The table maps a position to an episode and a span. A window that runs past the end of its episode is padded with
    the episode's last frame; `mask` names a bool leaf of shape (frames,) that is true for frames of data.
    """

    table: WindowTable
    mask: str | None = None

    @property
    def text(self) -> str:
        stride = "" if self.table.stride == self.table.length else f", stride={self.table.stride}"
        return f"windows({self.table.length}{stride})"

    @property
    def order_text(self) -> str:
        table = self.table
        return f"windows {table.length} {table.stride} {table.partial} {array_text(table.lengths)}"

    @property
    def key_text(self) -> str:
        return "" if self.mask is None else f"mask {self.mask!r}"

    @property
    def is_by_position(self) -> bool:
        return True

    def count(self, parent: Node) -> int | None:
        return None if length(parent) is None else len(self.table)

    def locate(self, parent: Node, positions: Integers) -> tuple[Integers, Integers]:
        del parent
        episodes, starts, _ = self.table.locate(positions)
        return episodes, starts // self.table.stride

    def locate_one(self, parent: Node, position: int) -> tuple[int, int]:
        del parent
        episode, start, _ = self.table.locate_one(position)
        return episode, start // self.table.stride

    def piece_at(self, step: Split, epoch: int, position: int, context: Context, element_at: ElementAt) -> Element:
        if self.reads_pieces(step):
            return self.read(step, np.array([epoch], np.int64), np.array([position], np.int64))[0]
        span = Span(*self.table.locate_one(position))
        return _cut_window(self, element_at(step.parent, epoch, span.episode, context), span)

    def prepared(
        self,
        step: Split,
        elements: list[Element],
        positions: Integers,
        locations: Locations,
        context: Context,
        element_at: ElementAt,
    ) -> list[Element]:
        del step, positions, locations, context, element_at
        return elements

    def taken(
        self,
        prepared: dict[int, Element],
        wanted: list[tuple[int, int]],
        positions: Integers,
        again: Callable[[int], Element],
    ) -> list[Element]:
        """Return windows of prepared episodes; what a window has of them besides frames is a copy, too."""
        spans = map(Span, *(column.tolist() for column in self.table.locate(positions)))
        windows = [_cut_window(self, prepared[number], span) for (number, _), span in zip(wanted, spans, strict=True)]
        shared = [place for place, window in enumerate(windows) if not _has_own_leaves(window)]
        for place in shared:
            windows[place] = copied_or(windows[place], partial(again, place))
        return windows

    def reads_pieces(self, step: Split) -> bool:
        return _reader(step.parent) is not None

    def read(self, step: Split, epochs: Integers, positions: Integers) -> list[Element]:
        keys, starts, stops = self.table.locate(positions)
        node, episodes = step.parent, keys
        while isinstance(node, Reindex):
            epochs, keys = apply_block(node.sampler, epochs, keys)
            node = node.parent
        if not isinstance(node, Read):
            raise InternalError("windows are read from a source")
        records = read_spans(node.source, keys, starts, stops)
        spans = map(Span, episodes.tolist(), starts.tolist(), stops.tolist())
        return [_finished_window(self, record, span) for record, span in zip(records, spans, strict=True)]


class Span(NamedTuple):
    """Frames [start, stop) of an episode."""

    episode: int
    start: int
    stop: int


def _reader(parent: Node) -> Read | None:
    """Return the source's node if episodes are its records and it can read spans of frames; else None."""
    node = parent
    while isinstance(node, Reindex):
        node = node.parent
    return node if isinstance(node, Read) and can_read_spans(node.source) else None


def _cut_window(step: Windows, episode: Element, span: Span) -> Element:
    """Return a window cut out of an episode; its arrays are copies."""
    leaves, structure = flatten(episode)
    frames = int(step.table.lengths[span.episode])
    cut, has_frames = list(leaves), False
    for index, leaf in enumerate(leaves):
        array = _frames_of(leaf)
        if array is not None:
            has_frames = True
            _check_frames(array, frames, leaf_paths(structure)[index], span.episode)
            # A view would keep the whole episode in memory, and share frames with overlapping windows.
            cut[index] = array[span.start : span.stop].copy()
    if not has_frames:
        raise _without_frames(episode, span)
    return _finished_window(step, unflatten(structure, cut), span)


def _has_own_leaves(window: Element) -> bool:
    """Return whether a window that was cut shares no leaf with its episode that can be changed."""
    return all(type(leaf) in IMMUTABLE or (is_array(leaf) and not leaf.dtype.hasobject) for leaf in flatten(window)[0])


def _finished_window(step: Windows, window: Element, span: Span) -> Element:
    """Return a window with its frames checked, padded to the table's length, and with the step's mask."""
    frames, total = span.stop - span.start, step.table.length
    leaves, structure = flatten(window)
    padded, has_frames = list(leaves), False
    for index, leaf in enumerate(leaves):
        array = _frames_of(leaf)
        if array is not None:
            has_frames = True
            _check_frames(array, frames, leaf_paths(structure)[index], span.episode)
            padded[index] = array if frames == total else np.concatenate([array, *[array[-1:]] * (total - frames)])
    if frames != total and not has_frames:
        raise _without_frames(window, span)
    window = unflatten(structure, padded)
    return window if step.mask is None else add_mask(window, step.mask, frames, total, "window")


def _frames_of(leaf: object) -> NDArray[Any] | None:
    """Return a leaf as an array of frames, or None for a leaf of the whole episode: a number, text, None."""
    if is_array(leaf):
        return leaf
    has_frames = hasattr(type(leaf), "__array__") and not isinstance(leaf, np.generic)
    return np.asarray(leaf) if has_frames else None


def _without_frames(element: Element, span: Span) -> GraphError:
    """Return the error for an element without an array: a list of frames would be in each window as a whole."""
    return GraphError(
        f"windows() cuts arrays along their first axis, the frames; the element at position {span.episode}, a "
        f"{type(element).__qualname__}, has none, and would be in each window as a whole. Convert what holds its "
        "frames, such as lists, to arrays in a map below windows()."
    )


def _check_frames(array: NDArray[Any], expected: int, path: str, episode: int) -> None:
    if not array.ndim or len(array) != expected:
        raise GraphError(
            f"windows() cuts every array along its first axis, the frames; {subject(path)} at position {episode} has "
            f"shape {array.shape}, where {expected} frames were expected. Give the episodes' lengths, and add arrays "
            "that don't hold frames in a map above windows(). If the episode replaces one that failed "
            "(on_error=Substitute()), its length must be the same; the log and loader.replaced() have that error."
        )
