"""The source of samples in tar files, in the naming of WebDataset; records are dicts with an entry for each file.

A tar file is a sequence of members: a header of 512 bytes, then the content, filled up to a multiple of 512. A sample
is a run of members that have one key, so it is one span of bytes. The index has the start of each span; a read gets
the span by one `pread`, and parses its headers again. So the index has one number for each sample, and no names.

`_next_member` parses headers for the scan and for reads. It accepts the classic format, ustar, the extended headers of
pax and the long names of GNU tar. Native code makes records whose headers have the usual form, in a tenth of the time,
and leaves the others, with those that are damaged, to `_next_member`. Only the scan verifies checksums; a file that
changed later is refused when it is opened.

Another program's index beside the file (`_tar_index.py`) saves the walk through the headers. The offsets must be those
of the walk, since blocks are made of them, and so the order of `shuffle(blocks=True)`. So an index is compared with the
headers of records at `_COMPARED` places, of the gap before the first record, and of the end. One that differs is left
alone, with a warning. If one is wrong at another place, a read there finds other members than those of one record, and
raises an error, unless the index cuts a record in two.
"""

import logging
import os
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, BinaryIO, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock._frozen import frozen
from penstock.errors import CorruptRecordError
from penstock.sources._local_files import PathLike, RecordFiles, compression_of
from penstock.sources._source import Record
from penstock.sources._tar_index import Members, Starts, TarIndex, find_tar_files, index_beside

_BLOCK: Final = 512
_MAX_EXTENSION_BYTES: Final = 1 << 20  # of an extended header or a long name; real ones are below 10 kB
_COMPARED: Final = 64  # places at which an index is compared with its file
_END: Final = -1  # instead of a header's type, for a block of zeros
_GNU_NAME, _GNU_LINK_NAME, _PAX_FOR_ALL = b"LKg"
_EXTENSION_KINDS: Final = frozenset(b"LKgx")
_FILE_KINDS: Final = frozenset(b"0\x007")  # a file, as written by old programs, or contiguous
_SKIPPED_KINDS: Final = frozenset(b"5V")  # folders and volume labels
_OTHER_KINDS: Final = {
    "1": "a hard link", "2": "a symbolic link", "3": "a device", "4": "a device", "6": "a pipe", "S": "a sparse file",
    "M": "a part of a file", "D": "a list of a folder's files",
}  # fmt: skip
_LINKED: Final = "Write files with their content, as `tar --dereference --hard-dereference` does."
_SPARSE: Final = "Write it without `tar --sparse`."
_REMEDIES: Final = {
    "1": _LINKED, "2": _LINKED, "S": _SPARSE, "M": "Write it without `tar --multi-volume`.",
    "D": "Write it without `tar --listed-incremental`.",
}  # fmt: skip
_NAME = slice(0, 100)
_SIZE = slice(124, 136)
_CHECKSUM = slice(148, 156)
_KIND: Final = 156
_MAGIC = slice(257, 263)
_PREFIX = slice(345, 500)

_Fetch = Callable[[int, int], bytes]
"""Returns the bytes at an offset, of a number; fewer only at the end."""


class Tar(RecordFiles):
    r"""Samples in one or more tar files, as WebDataset writes them; records are `{"__key__": str, "jpg": bytes, …}`.

    A member's key is its name up to the first dot after the last `/`, with its folders; the rest of the name, in lower
    case, is its field. Members of a record follow each other: `a/7.jpg` and `a/7.seg.png` are the record
    `{"__key__": "a/7", "jpg": …, "seg.png": …}`. Fields are bytes, undecoded, in the order of the members.

    Folders are left out, and so are files whose name has no dot or begins with one, and files in a folder such as
    `__meta__`. Tar files must not be compressed: a compressed file has no random access.

    The first use walks through the headers, and keeps the start of each record in a cache directory until a file's size
    or time changes. A record is read by one request. An index beside the file saves the walk, if it isn't older than
    the file: `a.tar.idx`, which Energon writes, or `a.idx`, which DALI's `wds2idx` writes. It is compared with the
    file at some places.

    `close`, or the end of a `with` block, closes the source's descriptors; so does dropping the source. Files must not
    change while they are read: a changed file that is opened raises SourceError.

    Args:
        paths: a path, a glob such as `"data/train-*.tar"` (sorted by name), or a list of these, in its order. A path
            that ends in `.json` is a list of files as wids writes it; their numbers of records are compared with it.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`. If it can't be
            written, a warning is logged, and the index stays in memory.
        progress: show progress on stderr, if that is a terminal or a notebook, and the scan takes more than 0.5 s.

    Raises:
        UsageError: `paths` has no file, a folder, or a list that wids wouldn't write.
        SourceError: a file can't be read, or has another number of records than a list says; later, at a read, a file
            no longer exists or has changed.
        CorruptRecordError: a file is no tar file, is compressed, truncated or damaged, has members after its end mark,
            a link or another special member, a field twice in a record, or members of one key in two places. The
            message has file, member and byte.

    Example:
        >>> import io, pathlib, tarfile, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "train-0.tar")
        ...     with tarfile.open(path, "w") as tar:
        ...         for name, content in {"7.jpg": b"\xff\xd8", "7.cls": b"3", "8.jpg": b"\xff", "8.cls": b"0"}.items():
        ...             member = tarfile.TarInfo(name)
        ...             member.size = len(content)
        ...             tar.addfile(member, io.BytesIO(content))
        ...     with Tar(path, cache=folder) as source:
        ...         len(source), source[0]
        (2, {'__key__': '7', 'jpg': b'\xff\xd8', 'cls': b'3'})
    """

    _fingerprint_prefix = "tar"

    def __init__(
        self, paths: PathLike | Sequence[PathLike], *, cache: PathLike | None = None, progress: bool = True
    ) -> None:
        listed = find_tar_files(paths)
        files = [found.file for found in listed]
        super().__init__(files, [_TarScan()] * len(files), cache=cache, progress=progress)
        for found, records in zip(listed, self._index.counts, strict=True):
            found.check(records)

    def _parse(self, content: bytes, key: int) -> Record:
        record = _native.tar_record(content)
        if record is not None:
            return record
        try:
            return record_of(content)
        except _DamageError as damage:
            path, begin = self._place(key)
            raise CorruptRecordError(
                f"a record of {path!r} doesn't match the index (key {key} of {self!r}): at byte "
                f"{begin + damage.offset}, {damage.reason} Restore the file, or write it under another name.",
                source=repr(self),
                keys=[key],
            ) from None


def record_of(content: bytes) -> dict[str, Any]:
    """Return the record whose members are in `content`.

    Raises:
        _DamageError: there are others, or none.
    """

    def fetch(begin: int, size: int) -> bytes:
        return content[begin : begin + size]

    record: dict[str, Any] = {}
    position = 0
    end = len(content)
    while position < end:
        member = _next_member(fetch, position, end)
        if member is None:
            break
        name, is_file, begin, data, size, position = member
        named = key_and_field(name) if is_file else None
        if named is not None:
            key, field = named
            if record.setdefault("__key__", key) != key or field in record:
                raise _DamageError(begin, f"the member {name!r} doesn't belong to the record.")
            record[field] = content[data : data + size]
    if not record:
        raise _DamageError(0, "there is no file.")
    return record


class _Member(NamedTuple):
    """One member: its headers begin at `begin`, its content at `data`; the next member begins at `next`."""

    name: str
    is_file: bool
    begin: int
    data: int
    size: int
    next: int


class _DamageError(Exception):
    """A part of a file that isn't as it must be: its offset, and the reason."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


@frozen
class _TarScan:
    """The scan for the records of a tar file: its offsets are those of the first member of each record."""

    @property
    def kind(self) -> str:
        """The scan's name and version."""
        return "tar-1"

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return "indexing tar files"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offset of each record, and that of the end mark.

        Raises:
            CorruptRecordError: the file isn't a whole tar file of records.
        """
        index = index_beside(stream.name)
        offsets = None if index is None else _by_index(stream, index)
        if offsets is not None:
            advance(stream.seek(0, os.SEEK_END))
            return offsets
        try:
            return _record_offsets(stream, advance)
        except _DamageError as damage:
            raise CorruptRecordError(
                f"cannot index {stream.name!r} as a tar file: at byte {damage.offset}, {damage.reason}"
            ) from None


def _by_index(stream: BinaryIO, index: TarIndex) -> Starts | None:
    """Return the offsets of a file by its index; None, with a warning, if the file is another one."""
    try:
        if index.members:
            _compare_members(stream, index.members)
            return _record_offsets(stream, _ignore, index.members)
        _compare_starts(stream, index.starts)
    except _DamageError as damage:
        logging.getLogger("penstock").warning(
            "the index %r isn't that of %r, so the file's headers are read: at byte %d, %s Write the index again, or "
            "remove it.",
            index.path,
            stream.name,
            damage.offset,
            damage.reason,
        )
        return None
    return index.starts


def _compare_starts(stream: BinaryIO, starts: Starts) -> None:
    """Compare offsets of records with the file.

    Raises:
        _DamageError: they differ.
    """
    size = stream.seek(0, os.SEEK_END)
    rising = np.all(starts[1:] > starts[:-1])
    if not rising or starts[0] < 0 or starts[-1] > size or np.any(starts[:-1] % _BLOCK):
        raise _DamageError(0, "the index has offsets at which the file can't have headers.")
    last = len(starts) - 2
    _compare_walk(stream, (0, starts.item(0)), [])
    for record in _compared(last):
        _compare_walk(stream, (starts.item(record), starts.item(record + 2)), starts[record : record + 2].tolist())
    _compare_walk(stream, (starts.item(last), None), [starts.item(last)], starts.item(last + 1))


def _compare_walk(stream: BinaryIO, walk: tuple[int, int | None], starts: list[int], end: int | None = None) -> None:
    """Compare the records that a walk finds with those that an index has there.

    Raises:
        _DamageError: they differ.
    """
    begin, stop = walk
    found = _record_offsets(stream, _ignore, begin=begin, stop=stop).tolist()
    if found != [*starts, stop if end is None else end]:
        raise _DamageError(begin, "the file's records begin elsewhere.")


def _compare_members(stream: BinaryIO, members: Members) -> None:
    """Compare members with the file's headers.

    Raises:
        _DamageError: they differ.
    """
    begins = list(members)
    end = stream.seek(0, os.SEEK_END)
    for number in _compared(len(begins)):
        begin = begins[number]
        found = _next_member(_fetch_from(stream), begin, end, verify=True) if 0 <= begin < end else None
        name, size = members[begin]
        if found is None or found.size != size or found.name not in (name, name[: _NAME.stop]):  # cut if it is extended
            raise _DamageError(begin, "the file has another member.")


def _compared(count: int) -> Sequence[int]:
    """Return up to `_COMPARED` numbers below `count`, spread evenly, the first and the last among them."""
    return sorted(set(np.linspace(0, count - 1, _COMPARED).astype(int).tolist())) if count > 0 else []


def _ignore(_: int) -> None:
    """Advance no progress."""


def _fetch_from(stream: BinaryIO) -> _Fetch:
    def fetch(begin: int, size: int) -> bytes:
        stream.seek(begin)
        return stream.read(size)

    return fetch


def _record_offsets(
    stream: BinaryIO,
    advance: Callable[[int], None],
    members: Members = MappingProxyType({}),
    *,
    begin: int = 0,
    stop: int | None = None,
) -> NDArray[np.int64]:
    """Walk through members, and return the offset of each record.

    Args:
        stream: the file.
        advance: is called with the size of each member.
        members: known members, whose headers aren't read.
        begin: the first member.
        stop: the end of the walk. Default: the end mark, which is checked.

    Returns:
        The offset of the first member of each record, and that at which the walk ended.

    Raises:
        _DamageError: there is no whole member, or no record.
    """
    fetch = _fetch_from(stream)
    end = stream.seek(0, os.SEEK_END)
    if not begin:
        _refuse_compressed(fetch(0, 6))
    records = _Records()
    position = begin
    while position < (end if stop is None else stop):
        member = _known_member(members, position, end) or _next_member(fetch, position, end, verify=True)
        if member is None:
            if stop is None:
                _check_end(stream, position)
            break
        advance(member.next - position)
        position = member.next
        named = key_and_field(member.name) if member.is_file else None
        if named is not None:
            records.add(member, *named)
    else:
        if stop is None:
            logging.getLogger("penstock").warning(
                "the tar file %r has no end mark after byte %d, so it may be truncated between two members",
                stream.name,
                end,
            )
    return np.array([*records.offsets, position], np.int64)


def _known_member(members: Members, begin: int, end: int) -> _Member | None:
    known = members.get(begin)
    if known is None:
        return None
    name, size = known
    data = begin + _BLOCK
    if size < 0 or data + size > end:
        raise _DamageError(begin, f"the member {name!r} would exceed the file.")
    return _Member(name, name[-1:] != "/", begin, data, size, min(data + _filled(size), end))


class _Records:
    """The starts of the records that a scan has found, and their keys."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self._keys: set[str] = set()
        self._key = ""
        self._fields: set[str] = set()  # of the last record

    def add(self, member: _Member, key: str, field: str) -> None:
        """Add a file, which begins a record if its key differs from the last one.

        Raises:
            _DamageError: the record or the field is in the file already.
        """
        if key != self._key:
            if key in self._keys:
                raise _DamageError(
                    member.begin,
                    f"the member {member.name!r} belongs to the record {key!r}, whose other members are elsewhere in "
                    "the file. Write the members of a record one after the other, as `tar --sort=name` does.",
                )
            self._keys.add(key)
            self.offsets.append(member.begin)
            self._key, self._fields = key, {"__key__"}
        if field in self._fields:
            raise _DamageError(
                member.begin,
                f"the member {member.name!r} is the second one with the field {field!r} in the record {key!r}. Fields "
                "are compared in lower case: rename one of them.",
            )
        self._fields.add(field)


def _refuse_compressed(begin: bytes) -> None:
    name = compression_of(begin)
    if name:
        raise _DamageError(0, f"it is compressed by {name}, so it has no random access. Decompress it first.")


def _check_end(stream: BinaryIO, position: int) -> None:
    stream.seek(position)
    while chunk := stream.read(1 << 20):
        if chunk.count(0) != len(chunk):
            rest = position + len(chunk) - len(chunk.lstrip(b"\0"))
            raise _DamageError(
                position,
                f"there is an end mark, but more data follows at byte {rest}. Files that were joined by `cat` must be "
                "separate, or joined by `tar --concatenate`.",
            )
        position += len(chunk)


def _next_member(fetch: _Fetch, begin: int, end: int, *, verify: bool = False) -> _Member | None:
    """Return the member whose headers begin at `begin`, or None at an end mark.

    Args:
        fetch: reads bytes.
        begin: the start of the headers.
        end: the end of all bytes, which the member must not exceed.
        verify: compare the headers' checksums.

    Raises:
        _DamageError: there is no whole member.
    """
    position, long_name, long_size = begin, "", -1
    header, kind = _read_header(fetch, position, end, verify=verify)
    while kind in _EXTENSION_KINDS:
        content = _extension(fetch, header, position, end)
        long_name, long_size = _extended(content, kind, position, (long_name, long_size))
        position += _BLOCK + _filled(len(content))
        header, kind = _read_header(fetch, position, end, verify=verify)
    if kind == _END:
        if position != begin:
            raise _DamageError(position, "there is an end mark after an extended header.")
        return None
    data = position + _BLOCK
    name = long_name or _name(header)
    if kind not in _FILE_KINDS:
        _check_skipped(name, kind, begin)
        return _Member(name, begin=begin, data=data, size=0, next=data, is_file=False)
    size = _number(header[_SIZE], position) if long_size < 0 else long_size
    if data + size > end:
        raise _DamageError(
            begin, f"the member {name!r} has {size} bytes, but {end - data} follow. The file is truncated."
        )
    following = min(data + _filled(size), end)  # a truncated fill loses nothing
    return _Member(name, name[-1:] != "/", begin, data, size, following)


def _check_skipped(name: str, kind: int, begin: int) -> None:
    if kind in _SKIPPED_KINDS:
        return
    found = _OTHER_KINDS.get(chr(kind), f"of the unknown type {chr(kind)!r}")
    remedy = _REMEDIES.get(chr(kind), "Leave it out.")
    raise _DamageError(begin, f"the member {name!r} is {found}, not a file. {remedy}")


def _filled(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK


def _read_header(fetch: _Fetch, position: int, end: int, *, verify: bool) -> tuple[bytes, int]:
    header = fetch(position, _BLOCK)
    if len(header) < _BLOCK:
        raise _DamageError(
            position, f"a header has {_BLOCK} bytes, but {end - position} follow. The file is truncated."
        )
    if header[0] == 0 and header.count(0) == _BLOCK:
        return header, _END
    if verify and _number(header[_CHECKSUM], position) not in _checksums(header):
        raise _DamageError(
            position, "there is no header with a right checksum. The file is damaged, or of another format."
        )
    return header, header[_KIND]


def _checksums(header: bytes) -> tuple[int, int]:
    # Its own bytes count as spaces. Some programs have added signed bytes.
    blank = header[: _CHECKSUM.start] + b" " * 8 + header[_CHECKSUM.stop :]
    total = sum(blank)
    return total, total - 256 * sum(byte > 127 for byte in blank)


def _extension(fetch: _Fetch, header: bytes, position: int, end: int) -> bytes:
    size = _number(header[_SIZE], position)
    if size > _MAX_EXTENSION_BYTES:
        raise _DamageError(position, f"an extended header has {size} bytes; the limit is {_MAX_EXTENSION_BYTES}.")
    content = fetch(position + _BLOCK, size)
    if len(content) != size:
        raise _DamageError(
            position,
            f"an extended header has {size} bytes, but {end - position - _BLOCK} follow. The file is truncated.",
        )
    return content


def _number(field: bytes, position: int) -> int:
    if field[0] == 0x80:  # GNU's and star's form of large numbers
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits.isdigit():
        try:
            return int(digits, 8)
        except ValueError:
            pass
    elif not digits:
        return 0
    raise _DamageError(position, f"a header has {field!r} instead of an octal number. It is damaged.")


def _name(header: bytes) -> str:
    name = _text(header[_NAME])
    if header[_MAGIC] == b"ustar\0" and header[_PREFIX.start]:
        return f"{_text(header[_PREFIX])}/{name}"
    return name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _pax(content: bytes, position: int) -> dict[str, str]:
    # Each entry is `length key=value\n`, and the length counts all of it.
    found: dict[str, str] = {}
    begin = 0
    while begin < len(content):
        digits = content[begin : begin + 10].partition(b" ")[0]
        size = int(digits) if digits.isdigit() else 0
        entry = content[begin : begin + size]
        key, equals, value = entry[len(digits) + 1 :].partition(b"=")
        if len(entry) != size or not equals or value[-1:] != b"\n":
            raise _DamageError(position + begin, "an extended header has an invalid entry. The file is damaged.")
        found[key.decode("utf-8", "surrogateescape")] = value[:-1].decode("utf-8", "surrogateescape")
        begin += size
    return found


def _extended(content: bytes, kind: int, position: int, known: tuple[str, int]) -> tuple[str, int]:
    # The name and the size of the member that follows; those in `known` if the extension doesn't set them.
    if kind == _GNU_NAME:
        return _text(content), known[1]
    if kind == _GNU_LINK_NAME:
        return known
    pax = _pax(content, position + _BLOCK)
    if kind == _PAX_FOR_ALL:
        if "path" in pax or "size" in pax:
            raise _DamageError(position, "an extended header sets the name or the size of all members.")
        return known
    if any(key.startswith("GNU.sparse.") for key in pax):
        raise _DamageError(position, f"a member is a sparse file. {_SPARSE}")
    size = pax.get("size", "")
    if size and not (size.isascii() and size.isdigit() and len(size) < 20):
        raise _DamageError(position, f"an extended header has the size {size!r}. The file is damaged.")
    return pax.get("path", known[0]), int(size) if size else known[1]


def key_and_field(name: str) -> tuple[str, str] | None:
    """Return the key and the field of a member's name, or None if it is left out."""
    begin = name.rfind("/") + 1
    dot = name.find(".", begin)
    if dot <= begin or (name.startswith("__") and name.partition("/")[0].endswith("__")):
        return None
    return name[:dot], name[dot + 1 :].lower()
