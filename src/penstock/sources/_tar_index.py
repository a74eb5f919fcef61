"""Files that other programs write beside tar files: the places of their records, and lists of files.

Two programs write an index, from which a scan needs no walk through all headers:
  - Energon writes `a.tar.idx`: the offsets of the first member of each record, and last that of the end mark, as
    little-endian uint64.
  - DALI's `wds2idx` writes `a.idx`: a line with the version and the number of records, and a line for each record
    with the extension, the offset of the content, the size and the name of each member.

An index that is older than its file is left alone. Whether the other ones are right is for the scan to find out.

wids writes a list of files, as JSON, with the number of records in each.
"""

import json
import os
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias, TypeGuard

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import SourceError, UsageError
from penstock.sources._local_files import LocalFile, PathLike, find_files, raise_source_error, stat_file

_STARTS: Final = np.dtype("<u8")
_DALI_VERSION: Final = b"v1.2 "  # earlier ones have no names
_PARTS: Final = 4  # of a member, in DALI's index
_HEADER: Final = 512

Starts: TypeAlias = NDArray[np.int64]
Members: TypeAlias = Mapping[int, tuple[str, int]]
"""The name and the size of members by the offset of their headers, if these are of the usual form."""


@frozen
class TarIndex:
    """An index as it was found.

    Attributes:
        path: its file.
        starts: the offsets of the records and of the end mark, from Energon's index; else none.
        members: the members, from DALI's index; else none.
    """

    path: str
    starts: Starts
    members: Members


def index_beside(path: str) -> TarIndex | None:
    """Return the index beside a tar file, or None if there is none, if it is older, or if it can't be read.

    Args:
        path: the tar file.
    """
    for name in (f"{path}.idx", f"{os.path.splitext(path)[0]}.idx"):
        try:
            if os.stat(name).st_mtime_ns < os.stat(path).st_mtime_ns:
                continue
            with open(name, "rb") as stream:
                content = stream.read()
        except OSError:
            continue
        if content.startswith(_DALI_VERSION):
            members = _members(content)
            return TarIndex(name, np.empty(0, np.int64), members) if members else None
        if name == f"{path}.idx" and len(content) >= 2 * _STARTS.itemsize and len(content) % _STARTS.itemsize == 0:
            return TarIndex(name, np.frombuffer(content, _STARTS).astype(np.int64), {})
    return None


def _members(content: bytes) -> Members | None:
    """Return the members of DALI's index; None if a name has a blank, which moves its parts, or lines are missing."""
    first, *lines = content.decode("utf-8", "surrogateescape").splitlines()
    members: dict[int, tuple[str, int]] = {}
    try:
        if len(lines) != int(first.split()[1]):
            return None
        for line in lines:
            parts = line.split(" ")
            if len(parts) % _PARTS:
                return None
            for data, size, name in zip(parts[1::_PARTS], parts[2::_PARTS], parts[3::_PARTS], strict=True):
                members[int(data) - _HEADER] = name, int(size)
    except (ValueError, IndexError):
        return None
    return members


@frozen
class ListedFile:
    """A tar file, and what a list says of it.

    Attributes:
        file: the file.
        list_path: the list, or "" for a file that was named itself.
        records: the number of records by the list; 0 for a file that was named itself.
    """

    file: LocalFile
    list_path: str = ""
    records: int = 0

    def check(self, records: int) -> None:
        """Compare the number of records in the file with the list.

        Raises:
            SourceError: they differ.
        """
        if self.list_path and records != self.records:
            raise SourceError(
                f"the number of records in {self.file.path!r} is {records}, but {self.list_path!r} has "
                f"{self.records}. Copy the file again, or pass a glob in place of the list."
            )


def find_tar_files(paths: PathLike | Sequence[PathLike]) -> list[ListedFile]:
    """Return the files of `paths`, and those of wids' lists among them, in order.

    Args:
        paths: as for `find_files`; a name that ends in `.json` is a list.

    Returns:
        At least one file.

    Raises:
        UsageError: there is no file, or a list isn't one of files of this machine.
        SourceError: a file doesn't exist.
    """
    found: list[ListedFile] = []
    for file in find_files(paths, "Tar"):
        found += _listed(file.path) if file.name.endswith(".json") else [ListedFile(file)]
    return found


def _listed(path: str) -> list[ListedFile]:
    try:
        with open(path, encoding="utf-8") as stream:
            content: object = json.load(stream)
    except OSError as error:
        raise_source_error(f"cannot read {path!r}: {error.strerror}. Check its permissions.", error)
    except ValueError:
        content = None
    shards = content.get("shardlist") if _is_object(content) and not content.get("datasets") else None
    if not _is_list(shards) or not shards:
        raise _no_list(path, "it has no list of files")
    return [_listed_file(path, shard) for shard in shards]


def _listed_file(path: str, shard: object) -> ListedFile:
    url, records = (shard.get("url"), shard.get("nsamples")) if _is_object(shard) else (None, None)
    if not isinstance(url, str) or not isinstance(records, int):
        raise _no_list(path, f"it has {shard!r} in place of a url with nsamples")
    if "://" in url:
        raise _no_list(path, f"it has {url!r}, which is no file of this machine")
    return ListedFile(stat_file(os.path.abspath(os.path.join(os.path.dirname(path), url))), path, records)


def _is_object(value: object) -> TypeGuard[dict[str, object]]:
    return isinstance(value, dict)


def _is_list(value: object) -> TypeGuard[list[object]]:
    return isinstance(value, list)


def _no_list(path: str, reason: str) -> UsageError:
    return UsageError(
        f"a path of Tar that ends in .json must be a list of files, as wids writes it; {path!r} isn't: {reason}. Name "
        "the tar files."
    )
