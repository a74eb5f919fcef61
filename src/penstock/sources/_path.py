"""The source of a path: the format is chosen by the names of the files that are there, and by how they begin."""

import contextlib
import json
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from penstock._frozen import frozen
from penstock._os import local_path
from penstock.errors import UsageError
from penstock.sources._array_record import ArrayRecord
from penstock.sources._arrays import Arrays
from penstock.sources._arrow import Arrow
from penstock.sources._bagz import Bagz
from penstock.sources._csv import Csv
from penstock.sources._files import IMAGE_EXTENSIONS, Files, ImageFolder
from penstock.sources._hdf5 import HDF5
from penstock.sources._json_lines import JsonLines
from penstock.sources._lance import Lance
from penstock.sources._lerobot import LeRobot
from penstock.sources._lerobot_meta import is_lerobot
from penstock.sources._litdata import LitData
from penstock.sources._litdata_index import is_litdata
from penstock.sources._lmdb import Lmdb
from penstock.sources._local_files import PathLike, compression_of, find_files, raise_source_error
from penstock.sources._mds import MDS
from penstock.sources._megatron import Megatron
from penstock.sources._parquet import Parquet
from penstock.sources._source import Source
from penstock.sources._sqlite import Sqlite, only_table
from penstock.sources._tar import Tar
from penstock.sources._tf_record import TFRecord
from penstock.sources._zarr import Zarr, is_zarr

_BEGIN_BYTES: Final = 512
_COMPRESSED: Final = (".gz", ".zst", ".bz2", ".xz")
_SHOWN: Final = 3  # names of files in a message
_LEFT_BY_WRITE: Final = ["description.json", "manifest.json"]  # before its shards, and after them
_PART: Final = re.compile(r"-\d+-of-\d+$")  # as in train.tfrecord-00003-of-00010


@frozen
class _Format:
    """A format of files: the suffixes of their names, the bytes at an offset, and the function that opens them."""

    name: str
    suffixes: tuple[str, ...]
    magic: bytes
    offset: int
    open: Callable[[Sequence[str]], Source]


def _arrays(paths: Sequence[str]) -> Source:
    return Arrays.open(_one(paths))


def _table(paths: Sequence[str]) -> Source:
    return Sqlite(_one(paths), only_table(_one(paths)))


def _tokens(paths: Sequence[str]) -> Source:
    return Megatron([os.path.splitext(path)[0] for path in paths])


def _values(paths: Sequence[str]) -> Source:
    return Lmdb(_one(paths))


def _one(paths: Sequence[str]) -> str:
    if len(paths) > 1:
        raise UsageError(
            f"a path of this format must be one file; got {len(paths)}, {paths[0]!r} first. Read each, and join the "
            "datasets by ps.concatenate."
        )
    return paths[0]


_FORMATS: Final = (
    _Format("ArrayRecord", (".array_record", ".arrayrecord"), b"", 0, ArrayRecord),
    _Format("Arrays.open", (".npy",), b"\x93NUMPY", 0, _arrays),
    _Format("Arrays.open of an archive", (".npz",), b"PK\x03\x04", 0, _arrays),
    _Format("Arrow", (".arrow", ".feather"), b"ARROW1", 0, Arrow),
    _Format("Bagz", (".bagz", ".bag"), b"", 0, Bagz),
    _Format("Csv", (".csv",), b"", 0, Csv),
    _Format("Csv with tabs", (".tsv",), b"", 0, partial(Csv, delimiter="\t")),
    _Format("HDF5", (".h5", ".hdf5"), b"\x89HDF\r\n\x1a\n", 0, HDF5),
    _Format("JsonLines", (".jsonl", ".ndjson"), b"", 0, JsonLines),
    _Format("Lmdb", ("data.mdb", ".lmdb"), b"\xde\xc0\xef\xbe", 16, _values),
    _Format("Megatron", (".idx",), b"MMIDIDX\0\0", 0, _tokens),
    _Format("Parquet", (".parquet",), b"PAR1", 0, Parquet),
    _Format("Sqlite", (".db", ".sqlite", ".sqlite3"), b"SQLite format 3\0", 0, _table),
    _Format("TFRecord", (".tfrecord", ".tfrecords", ".tfrec"), b"", 0, TFRecord),
    _Format("Tar", (".tar",), b"ustar", 257, Tar),
)
_KNOWN: Final = ", ".join(suffix for known in _FORMATS for suffix in known.suffixes)
_REMEDY: Final = (
    f"Known are files that end in {_KNOWN} or begin like one, and folders of one of these, of images, of images in "
    "class folders, of MDS shards, of LitData chunks, of Zarr arrays, of Lance, or of LeRobot. Name the source for "
    "others, as in ps.read(ps.sources.Tokens(path, 1025, dtype='uint16')), or in ps.read(ps.sources.Files(folder, "
    "'*.txt')), whose records are whole files; or load the file yourself, and pass a list or arrays."
)


def source_of_path(path: PathLike) -> Source:
    """Return the source of a file, of the files of a glob, or of a folder.

    Args:
        path: a file, a glob, or a folder.

    Returns:
        The source, of one format.

    Raises:
        UsageError: the format is unknown, or there are several.
        SourceError: a file can't be read.
    """
    given = os.fspath(path)
    local_path(given)
    if os.path.isdir(given):
        return _source_of_folder(given)
    paths = _without_indexes([file.path for file in find_files(given, "ps.read")])
    return _common([(found, _format_of(found)) for found in paths], given).open(paths)


def _source_of_folder(folder: str) -> Source:
    try:
        listed = os.listdir(folder)
    except OSError as error:
        raise_source_error(f"cannot list {folder!r}: {error.strerror}. Check its permissions.", error)
    written = _source_of_library(folder, listed)
    if written is not None:
        return written
    names = sorted((name for name in listed if not name.startswith(".")), key=os.fsencode)
    _need_no_compressed(names, folder)
    _need_written(names, folder)
    paths = _without_indexes([os.path.join(folder, name) for name in names])
    known = [(path, found) for path in paths if (found := _named(path)) is not None]
    if known:
        chosen = _common(known, folder)
        _need_no_image(names, folder, chosen)
        return chosen.open([path for path, _ in known])
    if names == _LEFT_BY_WRITE:
        return list[object]()
    if any(map(_is_image, names)):
        return Files(folder)
    if _first_image(names, folder) is not None:
        return ImageFolder(folder)
    raise UsageError(f"the format of the folder {folder!r} is unknown: it has {_listed(names)}. {_REMEDY}")


def _source_of_library(folder: str, listed: Sequence[str]) -> Source | None:
    """Return the source of a folder that one library wrote as a whole, or None."""
    if "index.json" in listed:
        return LitData(folder) if is_litdata(folder) else MDS(folder)
    if "_versions" in listed:
        return Lance(folder)
    if is_zarr(listed):
        return Zarr(folder)
    return LeRobot(folder) if is_lerobot(folder) else None


def _without_indexes(paths: Sequence[str]) -> list[str]:
    """Return the paths that aren't the indexes of tar files among them, `a.idx` or `a.tar.idx`, which `Tar` finds."""
    tars = {path.removesuffix(".tar") for path in paths if path.endswith(".tar")}
    indexes = {stem + suffix for stem in tars for suffix in (".idx", ".tar.idx")}
    return [path for path in paths if path not in indexes]


def _common(found: Sequence[tuple[str, _Format]], given: str) -> _Format:
    first_path, first = found[0]
    for path, other in found:
        if other is not first:
            raise UsageError(
                f"a path must have files of one format; {given!r} has {os.path.basename(first_path)!r} "
                f"({first.name}) and {os.path.basename(path)!r} ({other.name}). Pass a glob of one of them, such as "
                f"{os.path.join(os.path.dirname(path), '*' + other.suffixes[0])!r}."
            )
    return first


def _need_no_image(names: Sequence[str], folder: str, chosen: _Format) -> None:
    """Check that a folder with files of a format has no images beside or below them, whose labels these may be.

    Raises:
        UsageError: it has one.
    """
    image = _first_image(names, folder)
    if image is not None:
        raise UsageError(
            f"a path must have files of one format; {folder!r} has the image {image!r} beside files for {chosen.name}. "
            f"Pass a glob of these, such as {os.path.join(folder, '*' + chosen.suffixes[0])!r}, or "
            "ps.sources.Files(folder, pattern) or ps.sources.ImageFolder(folder) for the images."
        )


def _first_image(names: Sequence[str], folder: str) -> str | None:
    """Return an image with one of these names in a folder, or of a folder with one."""
    beside = next(filter(_is_image, names), None)
    if beside is not None:
        return beside
    with os.scandir(folder) as entries:  # which knows the folders without a look at each file
        folders = {entry.name for entry in entries if entry.is_dir()}
    for name in filter(folders.__contains__, names):
        with contextlib.suppress(OSError):  # it can't be read
            image = min(filter(_is_image, os.listdir(os.path.join(folder, name))), default=None)
            if image is not None:
                return os.path.join(name, image)
    return None


def _need_no_compressed(names: Sequence[str], folder: str) -> None:
    """Check that a folder has no compressed files of a format, which would be left out.

    Raises:
        UsageError: it has one.
    """
    for name in names:
        stem, suffix = os.path.splitext(name)
        known = _named(stem) if suffix.lower() in _COMPRESSED else None
        if known is not None:
            raise UsageError(
                f"a folder must have files with random access; {folder!r} has {name!r}, which is compressed. "
                "Decompress it first, move it elsewhere, or pass a glob of the other files, such as "
                f"{os.path.join(folder, '*' + known.suffixes[0])!r}."
            )


def _need_written(names: Sequence[str], folder: str) -> None:
    """Check that a folder in which `write` has begun shards has all of them.

    Raises:
        UsageError: it hasn't.
    """
    description, manifest = _LEFT_BY_WRITE
    if manifest in names or description not in names:
        return
    content: object = None
    with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, description), "rb") as stream:
        content = json.load(stream)
    if isinstance(content, dict) and "elements_per_shard" in content:
        raise UsageError(
            f"a folder of write must have all shards; {folder!r} has no {manifest}, which write adds after the last "
            "one. Call write again to add those that are missing, or pass a glob of the shards that are there."
        )


def _named(path: str) -> _Format | None:
    name = _PART.sub("", os.path.basename(path)).lower()
    return next((known for known in _FORMATS if name.endswith(known.suffixes)), None)


def _format_of(path: str) -> _Format:
    named = _named(path)
    if named is not None:
        return named
    try:
        with open(path, "rb") as stream:
            begin = stream.read(_BEGIN_BYTES)
    except OSError as error:
        raise_source_error(f"cannot read {path!r}: {error.strerror}. Check its permissions.", error)
    for known in _FORMATS:
        if known.magic and begin[known.offset :].startswith(known.magic):
            return known
    compression = compression_of(begin)
    if compression:
        raise UsageError(
            f"{path!r} is compressed by {compression}, so it has no random access. Decompress it first, and pass the "
            "file inside."
        )
    raise UsageError(f"the format of {path!r} is unknown: it begins with {begin[:8]!r}. {_REMEDY}")


def _is_image(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in IMAGE_EXTENSIONS


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:_SHOWN])) or "no files"
    return shown + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
