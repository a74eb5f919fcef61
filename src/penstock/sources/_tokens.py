"""The source of token files; records are windows of equal length, or whole documents."""

import hashlib
import sys
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from tokenize import TokenError
from typing import Any, BinaryIO, Final, Protocol, SupportsIndex, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import DTypeLike, NDArray

from penstock._frozen import frozen
from penstock.errors import SourceError, UsageError
from penstock.sources._arrays import add_sample
from penstock.sources._local_files import (
    LocalFile,
    OffsetIndex,
    PathLike,
    default_cache,
    find_files,
    identity_of,
    raise_source_error,
)
from penstock.sources._mapped import MappedArray, RowTable, find_mapped, map_file
from penstock.sources._source import Keys, as_key, as_keys, check_range

Tokens1D = NDArray[Any]  # integers, one axis
_SCANNED_BYTES: Final = 1 << 20  # in one step
_HEADER_BYTES: Final = 1024  # of llm.c: 256 numbers of 4 bytes, of which three are used
_HEADER_FIELDS: Final = 3
_HEADERS: Final = {(20240520, 1): "<u2", (20240801, 7): "<u4"}  # by magic number and version: the tokens' dtype


@runtime_checkable
class StoredOffsets(Protocol):
    """The offsets of documents that other files have, for the files of tokens. It is picklable, and small."""

    def load(self) -> list[NDArray[np.int64]]:
        """Return n + 1 offsets in tokens for each file, never decreasing.

        Raises:
            SourceError: the file no longer exists or has changed.
        """
        ...

    def fingerprint(self) -> str:
        """Return a str that changes with the offsets."""
        ...


Documents: TypeAlias = NDArray[Any] | Sequence[int] | Sequence[NDArray[Any]] | StoredOffsets


class Tokens:
    """Tokens in memory-mapped files, read as windows of `length`, or as documents; records are arrays of one axis.

    **Windows**: window k of a file begins at token `k * stride` and has `length` tokens. Windows never cross files;
    tokens at the end of a file that don't fill a window are dropped. To predict the next token from `n` tokens, use
    `length=n + 1, stride=n`: inputs are `window[:-1]`, targets `window[1:]`, and every token but the first is a target
    once. With a smaller stride windows overlap; with a larger one tokens between them are left out.

    **Documents**: with `separator`, a document ends with that token; the last document of a file may lack it. One scan
    of the files finds the documents, and their offsets are kept in the cache directory of `JsonLines`
    (`$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`). With `documents`, you pass the offsets.

    **llm.c**: a file that begins with the header of llm.c (`.bin` files of FineWeb, of nanoGPT's speed runs) needs no
    `dtype`: its header has the dtype and the number of tokens.

    Exactly one of `length`, `documents` and `separator` must be given. Each process maps the files at its first read,
    without keeping descriptors. Files must not be truncated while they are read.

    Args:
        paths: a path, a glob such as `"data/*.bin"` (sorted by name), or a list of these, in its order. Files that end
            in `.npy` are NumPy's, with one axis; all others are raw tokens.
        length: tokens in a window, at least 1.
        dtype: the dtype of raw tokens: any integer dtype, with its byte order, as in `"uint16"` or `">u4"`.
        stride: tokens from the start of one window to that of the next. Default: `length`.
        documents: n + 1 offsets in tokens for n documents, never decreasing: document i is
            `tokens[documents[i]:documents[i + 1]]`. For several files, a list of such arrays, one for each.
        separator: the token that ends a document.

    Raises:
        UsageError: arguments contradict each other, a dtype is missing or no integer dtype, a file has no whole number
            of tokens, or every file is shorter than one window.
        SourceError: a file doesn't exist; later, at a read, a file no longer exists or its size has changed.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.arange(10, dtype=np.uint16).tofile(pathlib.Path(folder, "a.bin"))
        ...     source = Tokens(f"{folder}/*.bin", 5, dtype="uint16", stride=4)
        ...     len(source), source[1]
        (2, array([4, 5, 6, 7, 8], dtype=uint16))
    """

    def __init__(
        self,
        paths: PathLike | Sequence[PathLike],
        length: int | None = None,
        *,
        dtype: DTypeLike | None = None,
        stride: int | None = None,
        documents: Documents | None = None,
        separator: int | None = None,
    ) -> None:
        if sum(argument is not None for argument in (length, documents, separator)) != 1:
            raise UsageError(
                "exactly one of length, documents and separator must be given; got "
                f"length={length!r}, documents={'…' if documents is not None else None}, separator={separator!r}. "
                "Pass length= for windows, or one of the others for documents."
            )
        if stride is not None and length is None:
            raise UsageError(f"stride requires length, for windows; got stride={stride} for documents. Omit it.")
        files = find_token_files(paths, dtype)
        self._parts: _Windows | _FoundDocuments | _GivenDocuments | _StoredDocuments
        if length is not None:
            self._parts = _Windows(self._cut(files), length, length if stride is None else stride)
        elif separator is not None:
            self._parts = _FoundDocuments(files, separator)
        elif isinstance(documents, StoredOffsets):
            self._parts = _StoredDocuments(files, documents)
        else:
            self._parts = _GivenDocuments(files, () if documents is None else documents)
        self._length = len(self._parts)
        self._cast: np.dtype[Any] | None = None

    def _cut(self, files: list["TokenFile"]) -> list["TokenFile"]:
        """Return the files without the tokens that belong to no window."""
        return files

    def astype(self, dtype: DTypeLike) -> "Tokens":
        """Return a source of the same records in another integer dtype, which must hold all values of the files' dtype.

        Embeddings of torch refuse uint16, and most indices of tensors are int64. The cast is a part of the read, on a
        worker, and the files stay as small as they are.

        Args:
            dtype: the dtype of the records, such as `"int64"`.

        Returns:
            A new source over the same files.

        Raises:
            UsageError: it is no integer dtype, or can't hold all values.

        Example:
            >>> import pathlib, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     np.arange(10, dtype=np.uint16).tofile(pathlib.Path(folder, "a.bin"))
            ...     Tokens(f"{folder}/a.bin", 5, dtype="uint16").astype("int64")[1]
            array([5, 6, 7, 8, 9])
        """
        wanted = np.dtype(dtype)
        own = self._parts.files[0].dtype
        if wanted.kind not in "iu" or not np.can_cast(own, wanted, "safe"):
            raise UsageError(
                f"records must be integers that hold all values of {own}; got dtype={wanted}. Pass 'int64', or a "
                "signed dtype larger than the files'."
            )
        copy = Tokens.__new__(Tokens)
        copy.__dict__.update({**self.__dict__, "_cast": wanted})
        return copy

    def lengths(self) -> NDArray[np.int64]:
        """Return the number of tokens of each record, for `pack` and `bucket`; no token is read.

        Returns:
            int64, one axis.
        """
        return self._parts.lengths()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the tokens."""
        return self._parts.files[0].dtype if self._cast is None else self._cast

    @property
    def fixed_shape(self) -> bool:
        """Whether all records have one shape: True for windows, False for documents."""
        return isinstance(self._parts, _Windows)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, key: SupportsIndex) -> Tokens1D:
        return self.read(np.array([as_key(key, self._length)]))[0]

    def read(self, keys: Sequence[int] | Keys) -> list[Tokens1D]:
        """Return copies of the windows or documents of `keys`.

        Args:
            keys: in [0, length), one axis.

        Returns:
            Arrays of one axis. Windows of one call share one block of memory.
        """
        return self._parts.read(as_keys(keys), self.dtype)

    def read_into(self, keys: Sequence[int] | Keys, out: NDArray[Any]) -> None:
        """Copy the windows of `keys` into the rows of `out`.

        Args:
            keys: in [0, length), one axis.
            out: the source's dtype, shape (`len(keys)`, `length`), C-contiguous.

        Raises:
            UsageError: `out` has another shape or dtype, or the records are documents.
        """
        if not isinstance(self._parts, _Windows):
            raise UsageError("read_into needs records of one shape; documents have different lengths. Use read.")
        self._parts.read_into(as_keys(keys), out, self.dtype)

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the token range and the file of a key, for messages."""
        number, begin, end = self._parts.find(as_key(key, self._length))
        return f"tokens [{begin}, {end}) of file {self._parts.files[number].file.name!r}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, a digest of the files' paths, sizes and times, and the given offsets of documents.

        The key of a cache has them.
        """
        return self.fingerprint(), identity_of([part.file for part in self._parts.files], ""), self._parts.given

    def fingerprint(self) -> str:
        """Return a str that changes with the files' names (without folders), sizes and dtype, and with the records."""
        digest = hashlib.blake2b(digest_size=16)
        for part in self._parts.files:
            header = " llm.c" if part.has_header else ""
            cut = f" cut {part.count}" if part.is_cut else ""
            digest.update(f"{part.file.name!r} {part.file.size} {part.dtype.str}{header}{cut}\n".encode())
        self._parts.describe_into(digest)
        if self._cast is not None:
            digest.update(f" as {self._cast.str}".encode())
        return f"tokens-{digest.hexdigest()}"

    def __repr__(self) -> str:
        count = len(self._parts.files)
        return f"Tokens({self._parts.described} in {count} {'file' if count == 1 else 'files'} of {self.dtype})"


@frozen
class DocumentScan:
    """The scan for documents that end after a separator, in tokens. The last one may lack its separator.

    Attributes:
        dtype: the tokens' dtype, as `numpy.dtype.str`.
        separator: the token that ends a document.
        begin_bytes: the start of the tokens in the file.
        end_bytes: their end; None for the end of the file.
    """

    dtype: str
    separator: int
    begin_bytes: int
    end_bytes: int | None = None

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return "finding documents"

    @property
    def kind(self) -> str:
        """The scan with its arguments."""
        end = "" if self.end_bytes is None else f" {self.end_bytes}"
        return f"documents-1 {self.dtype} {self.separator} {self.begin_bytes}{end}"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offset of each document in tokens, and the number of tokens."""
        dtype = np.dtype(self.dtype)
        stream.seek(self.begin_bytes)
        found: list[NDArray[np.int64]] = [np.zeros(1, np.int64)]
        position = 0
        left = sys.maxsize if self.end_bytes is None else self.end_bytes - self.begin_bytes
        while chunk := stream.read(min(_SCANNED_BYTES, left)):
            advance(len(chunk))
            left -= len(chunk)
            tokens = np.frombuffer(chunk, dtype, len(chunk) // dtype.itemsize)
            found.append(np.flatnonzero(tokens == self.separator).astype(np.int64) + (position + 1))
            position += len(tokens)
        offsets = np.concatenate(found)
        return offsets if offsets[-1] == position else np.append(offsets, position)


@frozen
class TokenFile:
    """A file of tokens, as it was when the source was created.

    Attributes:
        file: the file.
        begin_bytes: the start of the first token.
        dtype: the tokens' dtype, an integer one.
        count: the number of tokens.
        has_header: whether it begins with the header of llm.c.
        is_cut: whether tokens at its end are left out.
    """

    file: LocalFile
    begin_bytes: int
    dtype: np.dtype[Any]
    count: int
    has_header: bool = False
    is_cut: bool = False

    @property
    def end_bytes(self) -> int | None:
        """The end of the last token; None if it is the end of the file."""
        end = self.begin_bytes + self.count * self.dtype.itemsize
        return None if end == self.file.size else end

    def map_bytes(self) -> NDArray[np.uint8]:
        """Return the tokens' bytes, memory-mapped and read-only.

        Returns:
            uint8, one axis, of length `count * dtype.itemsize`.

        Raises:
            SourceError: the file no longer exists, or its size has changed.
        """
        path = self.file.path
        try:
            content = map_file(path)
        except OSError as error:
            raise_source_error(
                f"cannot map {path!r}: {error.strerror}. It existed when the source was created: restore it, or "
                "create the source again.",
                error,
            )
        if len(content) != self.file.size:
            raise SourceError(
                f"{path!r} changed its size from {self.file.size} to {len(content)} bytes since the source was "
                "created. Write data to another file and rename it, and create the source again."
            )
        return content[self.begin_bytes : self.begin_bytes + self.count * self.dtype.itemsize]

    def map_tokens(self) -> NDArray[Any]:
        """Return the tokens, memory-mapped and read-only: one axis, `count` long."""
        return self.map_bytes().view(self.dtype)


def find_token_files(paths: PathLike | Sequence[PathLike], dtype: DTypeLike | None) -> list[TokenFile]:
    """Return the token files of `paths`.

    Args:
        paths: a path, a glob, or a list of these.
        dtype: the dtype of raw files. If it is given, `.npy` files must have it, too.

    Returns:
        At least one file, all of one dtype.

    Raises:
        UsageError: the dtype is missing, is no integer dtype, or differs from a file's; a file has no whole number of
            tokens, or more than one axis.
    """
    wanted = None if dtype is None else np.dtype(dtype)
    found = [
        _npy_file(file, wanted) if file.path.lower().endswith(".npy") else _raw_file(file, wanted)
        for file in find_files(paths, "Tokens")
    ]
    for other in found:
        if other.dtype.kind not in "iu":
            raise UsageError(f"tokens must be integers; {other.file.path!r} has {other.dtype}. Convert them first.")
        if other.dtype != found[0].dtype:
            raise UsageError(
                f"all token files must have one dtype; {found[0].file.path!r} has {found[0].dtype}, "
                f"{other.file.path!r} has {other.dtype}. Convert one of them."
            )
    return found


def _raw_file(file: LocalFile, dtype: np.dtype[Any] | None) -> TokenFile:
    begin = _begin_of(file.path)
    own = _HEADERS.get((begin[0], begin[1])) if len(begin) == _HEADER_FIELDS else None
    if own is not None:
        return _file_with_header(file, np.dtype(own), int(begin[2]), dtype)
    if dtype is None:
        raise UsageError(f"raw tokens need a dtype; got none for {file.path!r}. Pass one, as in dtype='uint16'.")
    if dtype.itemsize == 0 or file.size % dtype.itemsize:
        raise UsageError(
            f"a file of {dtype} must have a multiple of {dtype.itemsize} bytes; {file.path!r} has {file.size}. "
            "Check dtype=, and that the file was copied completely."
        )
    return TokenFile(file, 0, dtype, file.size // dtype.itemsize)


def _begin_of(path: str) -> list[int]:
    try:
        with open(path, "rb") as stream:
            found: list[int] = np.frombuffer(stream.read(_HEADER_FIELDS * 4), "<i4").tolist()
    except OSError as error:
        raise_source_error(f"cannot read {path!r}: {error.strerror}. Check its permissions.", error)
    except ValueError:  # a part of a number
        return []
    return found


def _file_with_header(file: LocalFile, own: np.dtype[Any], count: int, dtype: np.dtype[Any] | None) -> TokenFile:
    expected = _HEADER_BYTES + count * own.itemsize
    if count < 0 or file.size != expected:
        raise UsageError(
            f"{file.path!r} has the header of llm.c for {count} tokens of {own}, so it must have {expected} bytes; it "
            f"has {file.size}. Copy it again completely."
        )
    if dtype is not None and dtype != own:
        raise UsageError(f"{file.path!r} has {own} by its header; got dtype={dtype}. Omit dtype= for files of llm.c.")
    return TokenFile(file, _HEADER_BYTES, own, count, has_header=True)


# What NumPy raises for damaged files, also for texts that are no header.
_DAMAGES: Final = (ValueError, EOFError, TypeError, OverflowError, SyntaxError, TokenError)


def _npy_file(file: LocalFile, dtype: np.dtype[Any] | None) -> TokenFile:
    try:
        tokens = np.load(file.path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise_source_error(f"cannot read {file.path!r}: {error}. Check the file.", error)
    except _DAMAGES as error:
        raise UsageError(f"{file.path!r} is not a whole .npy file: {error}. Write it again with numpy.save.") from error
    if tokens.ndim != 1:
        raise UsageError(
            f"tokens must have one axis; {file.path!r} has shape {tokens.shape}. Save them flat, or read rows with "
            "ps.read(numpy.load(path, mmap_mode='r'))."
        )
    if dtype is not None and tokens.dtype != dtype:
        raise UsageError(f"{file.path!r} has {tokens.dtype}; got dtype={dtype}. Omit dtype= for .npy files.")
    return TokenFile(file, tokens.offset, tokens.dtype, len(tokens))


def _is_integer(value: object) -> bool:
    return isinstance(value, SupportsIndex) and not isinstance(value, bool)


class _Windows:
    """Windows of one length at equal distances, copied by the native gather."""

    given: object = None

    def __init__(self, files: list[TokenFile], length: int, stride: int) -> None:
        if not _is_integer(length) or length < 1:
            raise UsageError(
                f"length must be a whole number of at least 1 token; got length={length!r}. Pass the number of tokens "
                "of a window."
            )
        if not _is_integer(stride) or stride < 1:
            raise UsageError(
                f"stride must be a whole number of at least 1 token; got stride={stride!r}. Omit it for no overlap."
            )
        self.files = files
        self._length = length
        self._stride = stride
        counts = [max(0, (file.count - length) // stride + 1) for file in files]
        self._ends = list(accumulate(counts))
        if self._ends[-1] == 0:
            longest = max(files, key=lambda file: file.count)
            raise UsageError(
                f"at least one file must have length={length} tokens; the longest, {longest.file.path!r}, has "
                f"{longest.count}. Pass a smaller length, or check dtype=."
            )
        self._table: RowTable | None = None

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def described(self) -> str:
        return f"{len(self)} windows of {self._length}"

    def find(self, key: int) -> tuple[int, int, int]:
        number = bisect_right(self._ends, key)
        begin = (key - (self._ends[number - 1] if number else 0)) * self._stride
        return number, begin, begin + self._length

    def lengths(self) -> NDArray[np.int64]:
        return np.full(len(self), self._length, np.int64)

    def read(self, keys: Keys, dtype: np.dtype[Any]) -> list[Tokens1D]:
        return list(self._block(keys).astype(dtype, copy=False))

    def read_into(self, keys: Keys, out: NDArray[Any], dtype: np.dtype[Any]) -> None:
        if out.dtype != dtype or out.shape != (len(keys), self._length) or not out.flags.c_contiguous:
            raise UsageError(
                f"out must be C-contiguous {dtype} of shape {(len(keys), self._length)}; "
                f"got {out.dtype} of shape {out.shape}"
            )
        if dtype == self.files[0].dtype:
            self._opened().gather(keys, out)
        else:
            out[...] = self._block(keys)

    def _block(self, keys: Keys) -> NDArray[Any]:
        block = np.empty((len(keys), self._length), self.files[0].dtype)
        self._opened().gather(keys, block)
        return block

    def describe_into(self, digest: "hashlib.blake2b") -> None:
        digest.update(f"windows {self._length} {self._stride}".encode())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}

    def _opened(self) -> RowTable:
        # Two threads may do this at once: both map the files, and the table of one is kept.
        table = self._table
        if table is None:
            size = self.files[0].dtype.itemsize
            pieces = [file.map_bytes() for file in self.files]
            table = RowTable(pieces, row_bytes=self._length * size, stride_bytes=self._stride * size)
            self._table = table
        return table


class _Documents:
    """Documents at offsets; a subclass supplies the offsets."""

    @property
    def given(self) -> object:
        """The offsets that the user passed, by which caches identify the documents."""
        return None

    def __init__(self, files: list[TokenFile], counts: Sequence[int]) -> None:
        self.files = files
        self._ends = list(accumulate(counts))
        self._tokens: list[Tokens1D] | None = None

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def described(self) -> str:
        return f"{len(self)} documents"

    def find(self, key: int) -> tuple[int, int, int]:
        number = bisect_right(self._ends, key)
        local = key - (self._ends[number - 1] if number else 0)
        offsets = self._offsets(number)
        return number, int(offsets[local]), int(offsets[local + 1])

    def lengths(self) -> NDArray[np.int64]:
        parts = [np.diff(self._offsets(number)).astype(np.int64) for number in range(len(self.files))]
        return np.concatenate(parts)

    def read(self, keys: Keys, dtype: np.dtype[Any]) -> list[Tokens1D]:
        check_range(keys, len(self))
        tokens = self._tokens
        if tokens is None:
            tokens = self._tokens = [file.map_tokens() for file in self.files]
        found = [self.find(key) for key in keys.tolist()]
        return [tokens[number][begin:end].astype(dtype) for number, begin, end in found]  # a copy in any case

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tokens": None}

    def _offsets(self, number: int) -> NDArray[np.int64]:
        raise NotImplementedError


class _FoundDocuments(_Documents):
    """Documents that end after a separator."""

    def __init__(self, files: list[TokenFile], separator: int) -> None:
        limits = np.iinfo(files[0].dtype)
        if not _is_integer(separator) or not limits.min <= separator <= limits.max:
            raise UsageError(
                f"separator must be a token of {files[0].dtype}, in [{limits.min}, {limits.max}]; got {separator!r}."
            )
        self._separator = separator
        scans = [DocumentScan(file.dtype.str, separator, file.begin_bytes, file.end_bytes) for file in files]
        self._index = OffsetIndex([file.file for file in files], scans, default_cache(), progress=True)
        super().__init__(files, self._index.counts)
        if len(self) == 0:
            raise UsageError(f"at least one file must have tokens; {files[0].file.path!r} has none. Check the paths.")

    def describe_into(self, digest: "hashlib.blake2b") -> None:
        digest.update(f"separator {self._separator}".encode())

    def _offsets(self, number: int) -> NDArray[np.int64]:
        return self._index[number]


class _GivenDocuments(_Documents):
    """Documents at offsets that the user passed."""

    def __init__(self, files: list[TokenFile], documents: "NDArray[Any] | Sequence[Any]") -> None:
        given = _one_for_each(files, documents)
        for file, offsets in zip(files, given, strict=True):
            _check_offsets(file, offsets)
        digest = hashlib.blake2b(digest_size=16)
        for offsets in given:
            digest.update(f"{len(offsets)}\n".encode())
            add_sample(digest, offsets)
        self._digest = digest.hexdigest()
        self._given = [find_mapped(offsets) or offsets for offsets in given]
        self._opened: list[NDArray[Any]] | None = given
        super().__init__(files, [len(offsets) - 1 for offsets in given])

    @property
    def given(self) -> object:
        return self._given

    def describe_into(self, digest: "hashlib.blake2b") -> None:
        digest.update(f"documents {self._digest}".encode())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_opened": None}

    def _offsets(self, number: int) -> NDArray[Any]:
        opened = self._opened
        if opened is None:
            opened = [part.open() if isinstance(part, MappedArray) else part for part in self._given]
            self._opened = opened
        return opened[number]


class _StoredDocuments(_Documents):
    """Documents at the offsets of other files, which each process loads."""

    def __init__(self, files: list[TokenFile], stored: StoredOffsets) -> None:
        self._stored = stored
        loaded = stored.load()
        for file, offsets in zip(files, loaded, strict=True):
            _check_offsets(file, offsets)
        self._loaded: list[NDArray[np.int64]] | None = loaded
        super().__init__(files, [len(offsets) - 1 for offsets in loaded])

    @property
    def given(self) -> object:
        return self._stored

    def describe_into(self, digest: "hashlib.blake2b") -> None:
        digest.update(f"stored {self._stored.fingerprint()}".encode())

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_loaded": None}

    def _offsets(self, number: int) -> NDArray[np.int64]:
        loaded = self._loaded
        if loaded is None:
            loaded = self._loaded = self._stored.load()
        return loaded[number]


def _one_for_each(files: list[TokenFile], documents: "NDArray[Any] | Sequence[Any]") -> list[NDArray[Any]]:
    if not isinstance(documents, np.ndarray) and any(isinstance(part, np.ndarray) for part in documents):
        given = [np.asanyarray(part) for part in documents]
    else:
        given = [np.asanyarray(documents)]
    if len(given) != len(files):
        raise UsageError(
            f"documents must be one array of offsets for each file; got {len(given)} for {len(files)} files. "
            "Pass a list of arrays, in the order of the files."
        )
    return given


def _check_offsets(file: TokenFile, offsets: NDArray[Any]) -> None:
    if offsets.ndim != 1 or len(offsets) < 2 or offsets.dtype.kind not in "iu":  # two offsets make one document
        raise UsageError(
            f"documents must be n + 1 integer offsets for n >= 1 documents of {file.file.path!r}; got {offsets.dtype} "
            f"of shape {offsets.shape}. Begin with 0 and end with the number of tokens."
        )
    if offsets[0] < 0 or offsets[-1] > file.count or bool(np.any(offsets[1:] < offsets[:-1])):
        raise UsageError(
            f"documents must be offsets in [0, {file.count}] for {file.file.path!r}, never decreasing; got "
            f"{offsets[0]} to {offsets[-1]}. They count tokens, not bytes."
        )
