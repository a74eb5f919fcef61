"""The source of rows in CSV files; records are dicts of their fields.

The quoting is that of the standard library's `csv`, which parses both in the scan and at a read, so the two can't
differ. The scan passes lines to the parser one by one, and the parser takes as many as a row has: the position in the
file before and after are the row's bounds. Lines are passed as Latin-1, which keeps each byte; only a read decodes
UTF-8, in which no part of another character looks like a quote, a comma or a newline.

The parser limits the length of a field, for all of the process. Rows may be longer here, so `_LongFields` raises the
limit while a parser runs that needs it, and restores it.
"""

import csv
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import CorruptRecordError, UsageError
from penstock.sources._local_files import (
    BYTE_ORDER_MARK,
    PathLike,
    RecordFiles,
    compression_of,
    find_files,
    line_number,
    raise_source_error,
)
from penstock.sources._source import Record, different_names

Convert: TypeAlias = Callable[[str], Any]

_SHORT_ROW: Final = 1 << 12  # in bytes: shorter than any limit of Python's `csv` that has a use
_LONGEST_ROW: Final = 1 << 26  # in bytes: a quote that is never closed must not take the rest of the file
_MAGIC_BYTES: Final = 6
_REPORTED: Final = 1 << 12  # rows between two reports of progress
_TRUTHS: Final[Mapping[str, bool]] = {"true": True, "false": False, "1": True, "0": False}


class Csv(RecordFiles):
    r"""The rows of one or more CSV files; records are `{name: field}`, as str or as `types` converts them.

    The first row of each file has the names, unless `names` are passed. Fields may be quoted, and then have commas,
    doubled quotes and newlines, as in Python's `csv`. Blank lines are skipped; a UTF-8 byte order mark and CRLF are
    allowed. Each row must have a field for each name.

    The first use scans the files for the starts of rows, and keeps these in a cache directory until a file's size or
    time changes. A record is read by one request and parsed by `csv`. Files must not be compressed.

    `close`, or the end of a `with` block, closes the source's descriptors; so does dropping the source. Files must not
    change while they are read: a changed file that is opened raises SourceError.

    Args:
        paths: a path, a glob such as `"data/**/*.csv"` (sorted by name), or a list of these, in its order.
        types: for names, the conversion of their fields: `int`, `float`, `bool` or `numpy.bool_` (of true, false, 1 and
            0, in any case), another NumPy scalar type such as `numpy.float32`, or your function of a str. It must be
            picklable for processes; its exception is raised unchanged. The fields of other names stay str.
        names: the names of the fields, for files without a row of names.
        delimiter: the character between fields, such as `"\t"` or `";"`.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr, if that is a terminal or a notebook, and the scan takes more than 0.5 s.

    Raises:
        UsageError: `paths` has no file, or a folder; names repeat, or differ between files; `types` has another name.
        SourceError: a file can't be read; later, at a read, a file no longer exists or has changed.
        CorruptRecordError: a file is compressed or has no row of names; a row has another number of fields, more than
            64 MB, or a quote that isn't closed; at a read, a field isn't UTF-8 or can't be converted. The message has
            file, line and, at a read, the key.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.csv")
        ...     _ = path.write_text('text,label\n"one, two",3\n"two\nlines",4\n')
        ...     with Csv(path, {"label": int}, cache=folder) as source:
        ...         len(source), source[1]
        (2, {'text': 'two\nlines', 'label': 4})
    """

    _noun = "row"
    _fingerprint_prefix = "csv"

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        types: Mapping[str, Convert] | None = None,
        *,
        names: Sequence[str] | None = None,
        delimiter: str = ",",
        cache: PathLike | None = None,
        progress: bool = True,
    ) -> None:
        _check_delimiter(delimiter)
        files = find_files(paths, "Csv")
        if names is None:
            self._names = _common_names([file.path for file in files], delimiter)
        else:
            self._names = different_names("names", names)
            _check_names(self._names, "names")
        self._types = {} if types is None else dict(types)
        _check_types(self._types, self._names)
        self._delimiter = delimiter
        scan = _CsvScan(delimiter, len(self._names), has_names=names is None)
        super().__init__(files, [scan] * len(files), cache=cache, progress=progress)

    def fingerprint(self) -> str:
        """Return a str that changes with the names (without folders) and sizes of the files, and with the types."""
        types = ",".join(f"{name}:{_described(convert)}" for name, convert in sorted(self._types.items()))
        return f"{super().fingerprint()}-{self._delimiter}-{','.join(self._names)}-{types}"

    def _parse(self, content: bytes, key: int) -> Record:
        try:
            row = _row_of(content, self._delimiter)
            _check_width(row, len(self._names))
        except _DamageError as damage:
            raise self._corrupt(str(damage), key) from None
        record: dict[str, Any] = dict(zip(self._names, row, strict=True))
        for name, convert in self._types.items():
            record[name] = self._converted(record[name], name, convert, key)
        return record

    def _converted(self, field: str, name: str, convert: Convert, key: int) -> object:
        if convert is bool or convert is np.bool_:
            truth = _TRUTHS.get(field.strip().lower())
            if truth is None:
                raise self._corrupt(f"the field {name!r} is {field!r}, not one of true, false, 1 and 0. Fix it.", key)
            return truth if convert is bool else np.bool_(truth)
        try:
            return convert(field)
        except (ValueError, OverflowError) as error:
            if not _is_number(convert):
                raise
            raise self._corrupt(
                f"the field {name!r} is {field!r}, no {convert.__name__} ({error}). Fix it, or pass a function in "
                "types= that converts it.",
                key,
            ) from None

    def _corrupt(self, reason: str, key: int) -> CorruptRecordError:
        path, begin = self._place(key)
        return CorruptRecordError(
            f"the row at line {line_number(path, begin)} of {path!r} (byte {begin}, key {key} of {self!r}) can't be "
            f"read: {reason}",
            source=repr(self),
            keys=[key],
        )


class _DamageError(Exception):
    """The reason why a row can't be read."""


def _is_number(convert: Convert) -> bool:
    return isinstance(convert, type) and issubclass(convert, (int, float, np.number))


def _check_delimiter(delimiter: str) -> None:
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '\r\n"':
        raise UsageError(
            f"delimiter must be one ASCII character other than a quote and a newline; got {delimiter!r}. Pass "
            r"',', ';' or '\t'."
        )


def _check_names(names: Sequence[str], place: str) -> None:
    if not names or len(set(names)) < len(names):
        raise UsageError(
            f"the names of a row's fields must differ; got {list(names)} from {place}. Pass names= of your own, and "
            "remove the row of names from the file."
        )


def _check_types(types: Mapping[str, Convert], names: Sequence[str]) -> None:
    for name, convert in types.items():
        if name not in names:
            raise UsageError(f"types must be for the names {list(names)}; got one for {name!r}. Correct the name.")
        if not callable(convert):
            raise UsageError(f"types must be functions of a str, such as int; got {convert!r} for {name!r}.")


def _described(convert: Convert) -> str:
    return f"{convert.__module__}.{getattr(convert, '__qualname__', type(convert).__qualname__)}"


def _common_names(paths: Sequence[str], delimiter: str) -> tuple[str, ...]:
    common = _names_of(paths[0], delimiter)
    for path in paths[1:]:
        names = _names_of(path, delimiter)
        if names != common:
            raise UsageError(
                f"all files must have the same row of names; {paths[0]!r} has {list(common)}, {path!r} has "
                f"{list(names)}. Read them as two sources, or rewrite one."
            )
    return common


def _names_of(path: str, delimiter: str) -> tuple[str, ...]:
    try:
        with open(path, "rb") as stream:
            lines = _Lines(stream)
            with _LONG_FIELDS:
                row = next(filter(None, _rows(lines, delimiter)), None) or list[str]()
        names = tuple(name.encode("latin-1").decode() for name in row)
    except OSError as error:
        raise_source_error(f"cannot read {path!r}: {error.strerror}. Check its permissions.", error)
    except UnicodeDecodeError as error:
        raise CorruptRecordError(f"cannot index {path!r} as CSV: its names aren't UTF-8: {error}. {_CONVERT}") from None
    except _DamageError as damage:
        raise CorruptRecordError(f"cannot index {path!r} as CSV: {damage}") from None
    if not names:
        raise CorruptRecordError(
            f"cannot index {path!r} as CSV: there is no row of names. Remove the file from paths=, or pass names=."
        )
    _check_names(names, repr(path))
    return names


_CONVERT: Final = "Convert the file to UTF-8, as `iconv -t UTF-8` does."


class _Lines:
    """The lines of a file, which a parser takes one by one: `position` is the end of the last one.

    The caller sets `begin` before each row, so that a row has a limit.
    """

    def __init__(self, stream: BinaryIO) -> None:
        begin = stream.read(_MAGIC_BYTES)
        self._stream = stream
        self.position = self.begin = len(BYTE_ORDER_MARK) if begin.startswith(BYTE_ORDER_MARK) else 0
        self.number = 0
        stream.seek(self.position)
        compression = compression_of(begin)
        if compression:
            raise _DamageError(f"it is compressed by {compression}, so it has no random access. Decompress it first.")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._stream.readline(_LONGEST_ROW + 1)
        if not line:
            raise StopIteration
        self.number += 1
        self.position += len(line)
        if self.position - self.begin > _LONGEST_ROW:
            raise _DamageError(
                f"the row at byte {self.begin}, which reaches line {self.number}, has more than {_LONGEST_ROW:,} "
                "bytes. Close its quote, or keep such long texts in files of their own."
            )
        return line.decode("latin-1")


def _rows(lines: _Lines, delimiter: str) -> Iterator[list[str]]:
    parser = csv.reader(lines, delimiter=delimiter)
    while True:
        lines.begin, number = lines.position, lines.number + 1
        try:
            row = next(parser, None)
        except csv.Error as error:
            raise _DamageError(f"line {number} (byte {lines.begin}) is no row: {_reason(error)}") from None
        if row is None:
            return
        yield row


class _LongFields:
    """Raises the limit of a field while some of our parsers run, and then restores it.

    Other parsers of the process take longer fields meanwhile, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._parsers = 0
        self._usual = 0

    def __enter__(self) -> None:
        with self._lock:
            if self._parsers == 0:
                self._usual = csv.field_size_limit()
                csv.field_size_limit(max(self._usual, _LONGEST_ROW))
            self._parsers += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._parsers -= 1
            if self._parsers == 0:
                csv.field_size_limit(self._usual)


_LONG_FIELDS: Final = _LongFields()


def _row_of(content: bytes, delimiter: str) -> list[str]:
    try:
        if len(content) <= min(_SHORT_ROW, csv.field_size_limit()):
            return next(csv.reader((content.decode(),), delimiter=delimiter))
        with _LONG_FIELDS:
            return next(csv.reader((content.decode(),), delimiter=delimiter))
    except UnicodeDecodeError as error:
        raise _DamageError(f"it isn't UTF-8: {error}. {_CONVERT}") from None
    except csv.Error as error:
        raise _DamageError(_reason(error)) from None


def _reason(error: csv.Error) -> str:
    """Return the reason why a line is no row, and the remedy."""
    if "new-line character" in str(error):  # the rest of that text advises on an argument of `open`
        return (
            "it has a carriage return that no newline follows, outside of quotes. Quote the field, or end all lines by "
            "newlines, as `mac2unix` does."
        )
    return f"{error}. Fix the line."


def _check_width(row: Sequence[str], wanted: int, place: str = "") -> None:
    if len(row) != wanted:
        raise _DamageError(
            f"{place}it has {len(row)} fields, and there are {wanted} names. Fix the row, or check delimiter=."
        )


@frozen
class _CsvScan:
    """The scan for the rows of a CSV file: its offsets are those of the rows after the names."""

    delimiter: str
    width: int
    has_names: bool

    @property
    def kind(self) -> str:
        """The scan with its arguments."""
        return f"csv-1 {self.delimiter!r} {self.width} {self.has_names}"

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return "indexing CSV files"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offset of each row, and the file's size.

        Raises:
            CorruptRecordError: the file isn't whole rows of as many fields as there are names.
        """
        try:
            with _LONG_FIELDS:
                return np.array(self._offsets(stream, advance), np.int64)
        except _DamageError as damage:
            raise CorruptRecordError(f"cannot index {stream.name!r} as CSV: {damage}") from None

    def _offsets(self, stream: BinaryIO, advance: Callable[[int], None]) -> list[int]:
        lines = _Lines(stream)
        offsets: list[int] = []
        begin = reported = 0
        number = 1
        for row in _rows(lines, self.delimiter):
            if row:
                _check_width(row, self.width, f"at line {number} (byte {lines.begin}), ")
                begin = lines.begin
                offsets.append(begin)
            number = lines.number + 1
            if len(offsets) % _REPORTED == 0:
                advance(lines.position - reported)
                reported = lines.position
        advance(lines.position - reported)
        self._check_end(stream, begin, lines.position)
        return [*offsets[self.has_names :], lines.position]

    def _check_end(self, stream: BinaryIO, begin: int, end: int) -> None:
        # The parser takes the end of the file for a missing quote; only a strict one refuses it.
        stream.seek(begin)
        last = stream.read(end - begin).decode("latin-1")
        try:
            next(csv.reader((last,), delimiter=self.delimiter, strict=True), None)
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise _DamageError(
                    f"the row at byte {begin} has a quote that isn't closed at the end of the file. The file is "
                    "truncated: write it again."
                ) from None
