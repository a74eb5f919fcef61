"""Files of samples as MDS and LitData have them: the number of samples, their offsets, and the samples.

A file begins with uint32 numbers, little-endian: how many samples there are, the offset of each, and that of the end.
MDS calls the file a shard, LitData a chunk. A file that is compressed is decompressed as a whole, into `Samples`.
"""

import os
from collections.abc import Callable
from pickle import PickleBuffer
from typing import BinaryIO, Final

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import CorruptRecordError
from penstock.sources._decompress import Codec, decompressed
from penstock.sources._encoded import DamageError

NUMBER: Final = np.dtype("<u4")


@frozen
class Samples:
    """Samples that were decompressed together.

    Attributes:
        content: has the samples, one after the other.
        offsets: the place of each sample in the content, and the end of the last one.
    """

    content: bytes | memoryview
    offsets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __reduce__(self) -> tuple[type["Samples"], tuple[PickleBuffer, NDArray[np.int64]]]:
        return Samples, (PickleBuffer(self.content), self.offsets)

    def __getitem__(self, sample: int) -> bytes:
        """Return the bytes of a sample in [0, number of samples)."""
        return bytes(self.content[self.offsets.item(sample) : self.offsets.item(sample + 1)])


def head_bytes(samples: int) -> int:
    """Return the size of the numbers at the beginning of a file, in bytes."""
    return (samples + 2) * NUMBER.itemsize


def offsets_in(begin: bytes, samples: int, end: int) -> NDArray[np.int64]:
    """Return the offset of each sample of a file, and its end.

    Args:
        begin: the bytes at its beginning, as many as the numbers have.
        samples: how many samples it has, by the index.
        end: the size of the file in bytes.

    Raises:
        DamageError: the offsets aren't those of the file.
    """
    if len(begin) < head_bytes(samples):
        raise DamageError(f"it has {end} bytes, too few for the offsets of {samples} samples")
    numbers = np.frombuffer(begin, NUMBER)
    if numbers[0] != samples:
        raise DamageError(f"it has {numbers[0]} samples, and index.json says {samples}")
    offsets = numbers[1:].astype(np.int64)
    if offsets[0] < len(begin) or offsets[-1] != end or bool(np.any(offsets[1:] < offsets[:-1])):
        raise DamageError(f"its offsets, from {offsets[0]} to {offsets[-1]}, don't cover {end} bytes")
    return offsets


def decompressed_samples(content: bytes, codec: Codec, samples: int, size: int) -> Samples:
    """Return the samples of a file that is compressed as a whole.

    Args:
        content: the compressed file.
        codec: its format.
        samples: how many samples it has, by the index.
        size: what it has when it is decompressed, in bytes, by the index.

    Raises:
        DamageError: it has another size or other samples.
        ValueError: it can't be decompressed.
        ImportError: the system lacks the codec's library.
    """
    whole = decompressed(content, codec, size)
    if len(whole) != size:
        raise DamageError(f"it has {len(whole)} bytes when it is decompressed, and index.json says {size}")
    return Samples(whole, offsets_in(whole[: head_bytes(samples)], samples, len(whole)))


@frozen
class SampleScan:
    """The scan for the samples of a file: the offsets at its beginning.

    Attributes:
        name: the scan's name and version.
        noun: what the file is called, such as "MDS shard".
        samples: how many samples it has, by the index.
    """

    name: str
    noun: str
    samples: int

    @property
    def kind(self) -> str:
        """The scan with the number that it has checked."""
        return f"{self.name} {self.samples}"

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return f"indexing {self.noun}s"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the offset of each sample, and the file's size.

        Raises:
            CorruptRecordError: the offsets aren't those of the file.
        """
        end = stream.seek(0, os.SEEK_END)
        stream.seek(0)
        try:
            offsets = offsets_in(stream.read(min(end, head_bytes(self.samples))), self.samples, end)
        except DamageError as damage:
            raise CorruptRecordError(
                f"cannot index {stream.name!r} as a file of {self.noun}s: {damage}. Restore the file, or write it "
                "again."
            ) from None
        advance(end)
        return offsets


@frozen
class NumberScan:
    """The scan of a file whose samples are decoded together, which reads nothing: the offsets are their numbers.

    Attributes:
        name: the scan's name and version.
        noun: what the file is called, such as "MDS shard".
        samples: how many samples it has, by the index.
    """

    name: str
    noun: str
    samples: int

    @property
    def kind(self) -> str:
        """The scan with its number."""
        return f"{self.name} {self.samples}"

    @property
    def label(self) -> str:
        """The name of the work, for progress."""
        return f"indexing {self.noun}s"

    def __call__(self, stream: BinaryIO, advance: Callable[[int], None], /) -> NDArray[np.int64]:
        """Return the number of each sample, and how many there are."""
        advance(stream.seek(0, os.SEEK_END))
        return np.arange(self.samples + 1)


def text_in_index(value: object) -> str:
    """Return a text of an index.

    Raises:
        DamageError: it is no text, or can't be part of a path.
    """
    if not isinstance(value, str) or "\0" in value:
        raise DamageError(f"a text is {value!r}")
    return value


def count_in_index(value: object) -> int:
    """Return a number of an index.

    Raises:
        DamageError: it is no number, or below 0.
    """
    if not isinstance(value, int) or value < 0:
        raise DamageError(f"a number is {value!r}")
    return value
