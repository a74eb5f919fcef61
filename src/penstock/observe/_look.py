"""A batch as its rows, each with its leaves and the record that it comes from: what the model saw at a step.

A batch has no rows of its own: they are cut out of its leaves. An array has one entry for each row if its length is the
number of rows, and so has a list of leaves; a leaf of another length belongs to the batch as a whole.
"""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock._caught import Caught
from penstock._graph import (
    Colours,
    Element,
    Origin,
    RowStages,
    block_lines,
    encoded_kind,
    escaped,
    image_tag,
    leaf_texts,
    pixels_of,
    value_text,
)
from penstock._printable import printable
from penstock._tree import describe_difference, flatten, is_array, is_container, leaf_paths, subject
from penstock.observe._live import cut
from penstock.observe._measured import step_text
from penstock.observe._page import whole_page
from penstock.observe._sounds import RATE, sound_kind, sound_tag

Decode: TypeAlias = Callable[[list[int]], object]
"""Returns the text of some integers, such as the method `decode` of a tokenizer."""

_CHARACTERS: Final = 2000  # of a text in a page
_LINES: Final = 3  # of a text on a terminal
_PICTURE_ROWS: Final = 12  # lines of a terminal
_MOST_LEAVES: Final = 64  # of a row that are shown
_COLUMNS: Final = 60  # of a value in a difference
_LEAST_ROOM: Final = 8  # columns
_INDENT: Final = 2
_STYLE: Final = """\
.penstock-look { font: 13px/1.45 system-ui, sans-serif; overflow-x: auto; }
.penstock-look table { border-collapse: collapse; }
.penstock-look :is(td, th) { padding: 4px 14px 4px 0; text-align: left; vertical-align: top; font-weight: 400; }
.penstock-look :is(td, tr + tr th) { min-width: 110px; }
.penstock-look td { max-width: 420px; overflow-wrap: anywhere; white-space: pre-wrap; }
.penstock-look tr + tr { border-top: 1px solid #8884; }
.penstock-look th { opacity: 0.7; }
.penstock-look img { height: 96px !important; }
@media (max-width: 560px) {
  .penstock-look :is(table, tbody, tr, td, th) { display: block; }
  .penstock-look tr:first-child, .penstock-look td:empty { display: none; }
  .penstock-look td { padding: 0 0 6px 10px; max-width: none; }
  .penstock-look td::before { content: attr(data-leaf) " "; display: block; opacity: 0.7; }
}
"""


class Row(NamedTuple):
    """A row of a batch."""

    name: str
    """Its number, and its record with epoch and position; "" where there is nothing to say."""
    leaves: dict[str, object]
    """The leaves, by their paths."""


class Look:
    """The batch of a step, as the model saw it: its rows, each with its record; made by `Loader.look`.

    `print` it, show it in a notebook, or write it as a page. Pictures, texts, masks and numbers are shown as such, and
    large arrays by dtype, shape and range. A page has a player for an encoded sound, and for samples beside a leaf
    named "sampling_rate".

    Attributes:
        step: the number of the batch.
        batch: the batch, on the host.
        origins: the record of each row.

    Example:
        >>> import penstock as ps
        >>> loader = ps.Loader(ps.range(8).map(lambda number: {"n": number, "half": number / 2}).batch(2))
        >>> print(loader.look(1))
        step 1, epoch 0: 2 rows
        <BLANKLINE>
        row 0, key 2, epoch 0, position 2
          ['n']     2
          ['half']  1.0
        row 1, key 3, epoch 0, position 3
          ['n']     3
          ['half']  1.5
    """

    def __init__(
        self,
        step: int,
        batch: Element,
        origins: Sequence[Origin],
        *,
        is_batched: bool = True,
        decode: Decode | None = None,
        stages: RowStages | None = None,
    ) -> None:
        """Make one of a batch that was computed.

        Args:
            step: the number of the batch.
            batch: the batch.
            origins: the record of each row; rows of padding have none.
            is_batched: whether the leaves have a leading axis of rows; else the batch is one row.
            decode: returns the text of the integers in a one-dimensional array of a row.
            stages: the row that the batch is, after each step of the dataset; None to show the batch as it is.
        """
        self.step: int = step
        self.batch: Element = batch
        self.origins: tuple[Origin, ...] = tuple(origins)
        self._is_batched = is_batched
        self._decode = decode
        self._stages = stages

    # ------------------------------------------------------------------ rows

    def _rows(self) -> list[Row]:
        """Return the rows, and last what belongs to the batch as a whole; or a row after each step."""
        if self._stages is not None:
            return [Row(f"after {step_text(node)}", _leaves_of(element)) for node, element in self._stages.stages]
        if not self._is_batched:
            return [Row(_record_text(self.origins[0]) if self.origins else "", _leaves_of(self.batch))]
        count = self._count()
        leaves = _leaves_of(self.batch, lambda part: _is_list_of_rows(part, count))
        of_rows = {path: leaf for path, leaf in leaves.items() if _has_rows(leaf, count)}
        found = [
            Row(
                f"row {row}, {'padding' if origin is None else _record_text(origin)}",
                {path: _entry(leaf, row) for path, leaf in of_rows.items()},
            )
            for row, origin in zip_longest(range(count), self.origins[:count])
        ]
        whole = {path: leaf for path, leaf in leaves.items() if path not in of_rows}
        return [*found, Row("the batch as a whole", whole)] if whole else found

    def _count(self) -> int:
        """Return the number of rows: that of the records, and those of padding."""
        least = len(self.origins)
        arrays = [leaf for leaf in _leaves_of(self.batch).values() if is_array(leaf) and leaf.ndim]
        lengths = [len(array) for array in arrays if len(array) >= least]
        return least if least in lengths else max(lengths, key=lengths.count, default=least)

    def _title(self) -> str:
        epochs = sorted({origin.epoch for origin in self.origins})
        epoch = f", epoch {' and '.join(map(str, epochs))}" if epochs else ""
        if self._stages is not None:
            return f"step {self.step:,}, row {self._stages.row}, {_record_text(self.origins[0])}"
        count = self._count() if self._is_batched else 0
        rows = f": {count:,} row{'' if count == 1 else 's'}" if self._is_batched else ""
        return f"step {self.step:,}{epoch}{rows}"

    # ------------------------------------------------------------------ as text and as a page

    def text(self, *, columns: int = 120, colours: Colours | None = None, rows: int | None = None) -> str:
        """Return the rows as lines for a terminal.

        Args:
            columns: the most characters in a line.
            colours: "true" or "256" draws pictures with these colours of the terminal; None describes them.
            rows: the number of rows to show; None for all.
        """
        found = self._rows()
        shown = found if rows is None else found[:rows]
        lines = [self._title(), ""]
        for row in shown:
            indent = " " * _INDENT if row.name else ""
            lines += [cut(row.name, columns)] if row.name else []
            leaves = list(row.leaves.items())[:_MOST_LEAVES]
            width = max((len(path) for path, _ in leaves), default=0)
            for path, leaf in leaves:
                name = f"{indent}{path:<{width}}" + ("  " if width else "")
                lines += _wrapped(name, printable(self._leaf_text(row, path, leaf)), columns)
                lines += [] if colours is None else _picture_lines(leaf, columns, colours)
            if len(leaves) < len(row.leaves):
                lines.append(f"{indent}… {len(row.leaves) - len(leaves):,} more leaves")
        if len(shown) < len(found):
            lines.append(f"… {len(found) - len(shown):,} more rows")
        return "\n".join(line.rstrip() for line in lines)

    def _leaf_text(self, row: Row, path: str, leaf: object) -> str:
        if self._decode is None or not (is_array(leaf) and leaf.ndim == 1 and leaf.dtype.kind in "iu" and leaf.size):
            return _text(leaf)
        try:
            return str(self._decode(leaf.tolist()))
        except Exception as error:
            error.add_note(f"while decoding {subject(path)} of {row.name or 'the element'}, of step {self.step}")
            raise

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return str(self)

    def html(self, path: str | Path | None = None) -> str:
        """Return the rows as HTML, with pictures; and write them as a page, if there is a path.

        The page needs no other file and no network.

        Args:
            path: of the page's file; an existing one is replaced. None, the default, writes none.

        Raises:
            OSError: the file can't be written.
        """
        if path is not None:
            Path(path).write_text(page_of([self]), encoding="utf-8")
        return self._fragment()

    def _fragment(self) -> str:
        rows = self._rows()
        paths = list(dict.fromkeys(path for row in rows for path in list(row.leaves)[:_MOST_LEAVES]))
        heads = "".join(f"<th>{escaped(path or 'element')}</th>" for path in paths)
        lines = "".join(
            f"<tr><th>{escaped(row.name)}</th>{''.join(self._cell(row, path) for path in paths)}</tr>" for row in rows
        )
        left = max((len(row.leaves) for row in rows), default=0) - _MOST_LEAVES
        more = f"; the first {_MOST_LEAVES} leaves, and {left:,} more leaves" if left > 0 else ""
        return (
            f'<style>{_STYLE}</style><div class="penstock-look"><p>{escaped(self._title())}{more}</p>'
            f"<table><tr><th></th>{heads}</tr>{lines}</table></div>"
        )

    def _cell(self, row: Row, path: str) -> str:
        if path not in row.leaves:
            return "<td></td>"
        leaf = row.leaves[path]
        text = self._leaf_text(row, path, leaf)
        text = text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"
        rate = row.leaves.get(f"{path.rpartition('[')[0]}[{RATE!r}]")
        picture = image_tag(_mask_as_grey(leaf), channels_first=True) or sound_tag(leaf, rate)
        name = escaped(path or "element")
        return f'<td data-leaf="{name}">{picture}{"<br>" if picture else ""}{escaped(text)}</td>'

    def _repr_html_(self) -> str:
        return self.html()

    # ------------------------------------------------------------------ comparison

    def difference(self, other: "Look") -> str:
        """Return where this batch first differs from another one, and how; "" if the two are equal.

        Example:
            >>> import penstock as ps
            >>> loader = ps.Loader(ps.range(8).batch(4))
            >>> loader.look(0).difference(loader.look(1))
            'row 0 of the element: 0 and 4'
        """
        (ours, structure), (theirs, other_structure) = flatten(self.batch), flatten(other.batch)
        found = describe_difference(structure, other_structure, ("the first", "the second"))
        if found:
            return found
        for path, one, two in zip(leaf_paths(structure), ours, theirs, strict=True):
            found = _difference(subject(path), _as_array(one), _as_array(two), has_rows=self._is_batched)
            if found:
                return found
        return ""

    def in_both(self, other: "Look") -> list[tuple[int, int]]:
        """Return the rows of this batch and of another one that come from the same record."""
        places: dict[tuple[str, int], int] = {}
        for row, origin in enumerate(other.origins):
            places.setdefault((origin.component, origin.key), row)
        pairs = ((row, places.get((origin.component, origin.key))) for row, origin in enumerate(self.origins))
        return [(row, found) for row, found in pairs if found is not None]


def page_of(looks: Sequence[Look], notes: Sequence[str] = ()) -> str:
    """Return a page of batches, with notes above them."""
    listed = "".join(f"<p>{escaped(note)}</p>" for note in notes)
    return whole_page("penstock look", listed + "".join(look.html() for look in looks))


def _wrapped(name: str, text: str, columns: int) -> list[str]:
    """Return a name and a text beside it, as a few lines."""
    room = max(columns - len(name), _LEAST_ROOM)
    parts = [text[start : start + room] for start in range(0, len(text), room)] or [""]
    if len(parts) > _LINES:
        parts = [*parts[: _LINES - 1], f"{parts[_LINES - 1][: room - 1]}…"]
    return [(name if number == 0 else " " * len(name)) + part for number, part in enumerate(parts)]


def _picture_lines(leaf: object, columns: int, colours: Colours) -> list[str]:
    pixels = pixels_of(_mask_as_grey(leaf), channels_first=True)
    if pixels is None:
        return []
    room = min(columns - 2 * _INDENT, 4 * _PICTURE_ROWS)
    return [" " * 2 * _INDENT + line for line in block_lines(pixels, max(room, 1), _PICTURE_ROWS, colours)]


def _record_text(origin: Origin) -> str:
    part = f" of {origin.component!r}" if origin.component else ""
    piece = f", piece {origin.ordinal}" if origin.ordinal else ""
    return f"{origin.record}{part}, epoch {origin.epoch}, position {origin.position}{piece}"


def _leaves_of(element: Element, is_leaf: Callable[[object], bool] | None = None) -> dict[str, object]:
    leaves, structure = flatten(element, is_leaf)
    return dict(zip(leaf_paths(structure), map(_as_array, leaves), strict=True))


def _as_array(leaf: object) -> object:
    """Return an array of a framework, or a scalar of NumPy, as an array of NumPy; other leaves as they are."""
    if is_array(leaf):
        return leaf
    with Caught(Exception):  # a dtype that NumPy lacks, memory of a device, or a nested tensor, which has no shape
        if hasattr(leaf, "__array__") and hasattr(leaf, "shape"):
            array: NDArray[Any] = np.asarray(leaf)
            return array
    return leaf


def _entry(leaf: object, row: int) -> object:
    """Return the part of a leaf that is a row's."""
    entry: object = leaf[row] if is_array(leaf) else cast("list[object]", leaf)[row]
    return _as_array(entry)


def _is_list_of_rows(part: object, count: int) -> bool:
    """Return whether a list has an entry for each row, and is not a structure of arrays that have rows."""
    if not isinstance(part, list):
        return False
    entries = cast("list[object]", part)
    inside = (leaf for entry in entries for leaf in flatten(entry)[0])
    return len(entries) == count and not all(_has_rows(_as_array(leaf), count) for leaf in inside)


def _has_rows(leaf: object, count: int) -> bool:
    if isinstance(leaf, list):
        return len(cast("list[object]", leaf)) == count
    return is_array(leaf) and leaf.ndim > 0 and len(leaf) == count


def _mask_as_grey(leaf: object) -> object:
    return leaf.astype(np.uint8) * 255 if is_array(leaf) and leaf.dtype == np.bool_ and leaf.ndim > 1 else leaf


def _text(leaf: object) -> str:
    """Return the value of a leaf if it is short, else its kind, and the range of its values."""
    if isinstance(leaf, str):
        return leaf
    if isinstance(leaf, bytes):
        kind = encoded_kind(leaf) or sound_kind(leaf)
        return f"{kind.upper() or 'bytes'}, {len(leaf):,} bytes"
    if is_container(leaf):
        return ", ".join(f"{path}: {_text(each)}" for path, each in _leaves_of(leaf).items())
    short = value_text(leaf)
    return short or f"{leaf_texts(leaf)[0][1]}{_range_text(leaf)}"


def _range_text(leaf: object) -> str:
    if not (is_array(leaf) and leaf.size):
        return ""
    if leaf.dtype.kind == "b":
        return f", {int(leaf.sum()):,} of {leaf.size:,} true"
    if leaf.dtype.kind in "iu":
        return f", {int(leaf.min()):,} to {int(leaf.max()):,}"
    if leaf.dtype.kind != "f":
        return ""
    if np.isnan(leaf).all():
        return ", all NaN"
    return f", {float(np.nanmin(leaf)):.4g} to {float(np.nanmax(leaf)):.4g}"


def _difference(name: str, one: object, two: object, *, has_rows: bool) -> str:
    """Return where two leaves first differ, and how; "" if they are equal."""
    if not (is_array(one) and is_array(two)):
        with Caught(Exception):  # a type of the user's may refuse the comparison
            if type(one) is type(two) and bool(one == two):
                return ""
        return f"{name}: {cut(_text(one), _COLUMNS)} and {cut(_text(two), _COLUMNS)}"
    if one.dtype != two.dtype or one.shape != two.shape:
        return f"{name}: {leaf_texts(one)[0][1]} and {leaf_texts(two)[0][1]}"
    if one.tobytes() == two.tobytes():
        return ""
    differs = _differs(one, two)
    if not differs.any():  # equal objects in other places
        return ""
    if not has_rows or not one.ndim:
        return f"{name}: {_unlike(one, two, int(differs.sum()))}"
    row = int(np.flatnonzero(differs.reshape(len(differs), -1).any(axis=1))[0])
    return f"row {row} of {name}: {_unlike(one[row], two[row], int(differs[row].sum()))}"


def _differs(one: NDArray[Any], two: NDArray[Any]) -> NDArray[np.bool_]:
    """Return where the bytes of two arrays differ, by value."""
    if one.dtype == np.object_:
        pairs = zip(map(_as_array, one.flat), map(_as_array, two.flat), strict=True)
        unlike = [_difference("", *pair, has_rows=False) != "" for pair in pairs]
        return np.array(unlike, np.bool_).reshape(one.shape)
    if one.dtype.hasobject:
        return np.asarray(one != two, np.bool_)
    sizes = (*one.shape, one.dtype.itemsize)
    raw = [np.frombuffer(each.tobytes(), np.uint8).reshape(sizes) for each in (one, two)]
    differs: NDArray[np.bool_] = (raw[0] != raw[1]).any(axis=-1)
    return differs


def _unlike(one: object, two: object, count: int) -> str:
    short = value_text(one), value_text(two)
    if all(short):
        return f"{short[0]} and {short[1]}"
    return f"{count:,} of {np.size(cast('NDArray[Any]', one)):,} values differ"
