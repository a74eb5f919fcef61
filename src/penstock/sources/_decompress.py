"""Decompression of bytes in memory, by the system's zlib and zstd."""

from typing import Literal, TypeAlias

from penstock import _native

Codec: TypeAlias = Literal["gzip", "zstd"]


def decompressed(content: bytes, codec: Codec, max_bytes: int) -> bytes:
    """Return the decompressed form of `content`.

    Args:
        content: one or more whole frames of zstd, or members of gzip.
        codec: the format.
        max_bytes: the most that the result may have. No memory is allocated for a frame that says that it has more.

    Raises:
        ValueError: the content isn't of this format, or its result is larger.
        ImportError: the system lacks the library.
    """
    return _native.decompressed(content, codec, max_bytes)
