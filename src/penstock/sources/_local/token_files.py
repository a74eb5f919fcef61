"""Files of tokens: raw integers, or a `.npy` of one axis, memory-mapped at the first read."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from penstock._frozen import frozen
from penstock.errors import SourceError, UsageError
from penstock.sources._gather import map_file
from penstock.sources._local.files import LocalFile, PathLike, find_files, raise_source_error


@frozen
class TokenFile:
    """A file of tokens at the time of its listing.

    Attributes:
        file: the file.
        begin_bytes: the start of the first token.
        dtype: the tokens' dtype, an integer one.
        count: the number of tokens.
    """

    file: LocalFile
    begin_bytes: int
    dtype: np.dtype[Any]
    count: int

    def map_bytes(self) -> NDArray[np.uint8]:
        """Return the tokens' bytes, memory-mapped and read-only.

        Returns:
            uint8, one axis, `count * dtype.itemsize` long.

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
        dtype: the dtype of raw files; that of a `.npy` file must equal it if it is given.

    Returns:
        At least one file, all of one dtype.

    Raises:
        UsageError: the dtype is missing, is no integer dtype, or differs from a file's; a file has no whole number of
            tokens, or more than one axis.
    """
    wanted = None if dtype is None else np.dtype(dtype)
    found = [
        _npy_file(file, wanted) if file.path.endswith(".npy") else _raw_file(file, wanted)
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
    if dtype is None:
        raise UsageError(f"raw tokens need a dtype; got none for {file.path!r}. Pass one, as in dtype='uint16'.")
    if dtype.itemsize == 0 or file.size % dtype.itemsize:
        raise UsageError(
            f"a file of {dtype} must have a multiple of {dtype.itemsize} bytes; {file.path!r} has {file.size}. "
            "Check dtype=, and that the file was copied completely."
        )
    return TokenFile(file, 0, dtype, file.size // dtype.itemsize)


def _npy_file(file: LocalFile, dtype: np.dtype[Any] | None) -> TokenFile:
    try:
        tokens = np.load(file.path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise_source_error(f"cannot read {file.path!r}: {error}. Check the file.", error)
    except ValueError as error:
        raise UsageError(f"{file.path!r} is not a whole .npy file: {error}. Write it again with numpy.save.") from error
    if tokens.ndim != 1:
        raise UsageError(
            f"tokens must have one axis; {file.path!r} has shape {tokens.shape}. Save them flat, or read rows with "
            "ps.read(numpy.load(path, mmap_mode='r'))."
        )
    if dtype is not None and tokens.dtype != dtype:
        raise UsageError(f"{file.path!r} has {tokens.dtype}; got dtype={dtype}. Omit dtype= for .npy files.")
    return TokenFile(file, tokens.offset, tokens.dtype, len(tokens))
