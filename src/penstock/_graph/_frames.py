"""Windows: spans of consecutive frames of episodes, which are elements whose arrays have a leading axis of frames.

If a source can read a span of frames, only the window's frames are read; otherwise the whole episode is evaluated and
cut. A window that runs past the end of its episode is padded with the last frame.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock._graph._mask import add_mask
from penstock._graph._nodes import Element, Node, Read, Reindex, Windows
from penstock._graph._seed_position import Integers
from penstock._tree import flatten, is_array, leaf_paths, subject, unflatten
from penstock.errors import GraphError
from penstock.sampling import apply_block
from penstock.sources import can_read_spans, read_spans


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
    return [_finished(step, record, span) for record, span in zip(records, spans, strict=True)]


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
    return _finished(step, unflatten(structure, cut), span)


def _finished(step: Windows, window: Element, span: Span) -> Element:
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
