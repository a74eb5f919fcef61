"""The source of lines of JSON in files; records are the parsed values."""

import json
from collections.abc import Sequence

from penstock.errors import CorruptRecordError
from penstock.sources._local_files import LineScan, PathLike, RecordFiles, find_files, line_number
from penstock.sources._source import Record


class JsonLines(RecordFiles):
    r"""One JSON value on each line of one or more files; the record of a key is the parsed value.

    The first use scans the files for the starts of lines, and keeps these in a cache directory until a file's size or
    time changes. Blank lines are skipped; the last line needs no newline; CRLF and a UTF-8 byte order mark are allowed.
    The standard library's `json` parses the lines; it also accepts NaN and Infinity.

    `close`, or the end of a `with` block, closes the source's descriptors; so does dropping the source. Files must not
    change while they are read: a changed file that is opened raises SourceError.

    Args:
        paths: a path, a glob such as `"data/**/*.jsonl"` (sorted by name), or a list of these, in its order.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr, if that is a terminal or a notebook, and the scan takes more than 0.5 s.

    Raises:
        UsageError: `paths` has no file, or a folder.
        SourceError: a file can't be read; later, at a read, a file no longer exists or has changed.
        CorruptRecordError: at a read, a line isn't JSON. The message has file, line, byte and key.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "a.jsonl")
        ...     _ = path.write_text('{"text": "one"}\n\n{"text": "two"}\n')
        ...     with JsonLines(path, cache=folder) as source:
        ...         len(source), source[1]
        (2, {'text': 'two'})
    """

    _noun = "line"
    _fingerprint_prefix = "json-lines"

    def __init__(
        self, paths: PathLike | Sequence[PathLike], *, cache: PathLike | None = None, progress: bool = True
    ) -> None:
        files = find_files(paths, "JsonLines")
        super().__init__(files, [LineScan()] * len(files), cache=cache, progress=progress)

    def _parse(self, content: bytes, key: int) -> Record:
        try:
            return json.loads(content.decode())
        except (ValueError, RecursionError) as error:
            path, begin = self._place(key)
            raise CorruptRecordError(
                f"a line must be one JSON value; line {line_number(path, begin)} of {path!r} (byte {begin}, key {key} "
                f"of {self!r}) isn't: {error}. Fix or remove the line.",
                source=repr(self),
                keys=[key],
            ) from error
