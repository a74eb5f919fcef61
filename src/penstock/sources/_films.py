"""Frames of video files by their numbers, decoded by PyAV.

A frame is decoded from the key frame before it on. So a read takes the frames of one file in order, and a decoder
continues where it stands, unless a later key frame may be before the frame. `Films` keeps decoders that no read uses,
with their files open. Its guarantees:
  - A frame depends on its file and number alone, not on the reads before it.
  - A decoder is used by one read at a time; reads in other threads get others. At most `_MAX_IDLE` are kept.
  - A forked child begins without decoders, since it would share the positions in their files.

A frame's number is its time in frames of the video's constant rate, to the nearest one.

A video has colours, or depths. LeRobot stores a depth as a code of 12 bits, whose scale is in the description of the
dataset (`Scale`), since encoders have no numbers of more bits. A frame of depths is read from the decoder's memory as
it is: PyAV's conversion to other formats changes the numbers.
"""

import contextlib
import math
import threading
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._optional import need
from penstock._os import renewed_after_fork
from penstock.errors import CorruptRecordError
from penstock.sources._local_files import LocalFile
from penstock.sources._table_files import check_unchanged

_MAX_IDLE: Final = 8  # decoders; one of a large video takes some 20 MB
_STEPS_BACK: Final = (0, 16, 256)  # frames before a wanted one, from where its key frame is looked for
_PAST: Final = 0.4  # of a frame: a key frame with a rounded time is found, and never the next frame

_GREATEST_CODE: Final = 4095  # of a depth
_CODE: Final = np.dtype("<u2")

Frame = NDArray[Any]
_Picture = Any  # a frame of PyAV, which has no types


@frozen
class Scale:
    """The scale of the codes of depths.

    Attributes:
        least: the depth of code 0, in metres.
        greatest: the depth of code 4,095, in metres.
        shift: is added to depths before their logarithm is taken, in metres.
        is_logarithmic: whether codes are proportional to logarithms.
    """

    least: float
    greatest: float
    shift: float
    is_logarithmic: bool

    def depths(self) -> NDArray[np.float32]:
        """Return the depth of each code."""
        least, greatest, count = self.least, self.greatest, _GREATEST_CODE + 1
        if not self.is_logarithmic:
            return np.linspace(least, greatest, count).astype(np.float32)
        logarithms = np.linspace(math.log(least + self.shift), math.log(greatest + self.shift), count)
        return (np.exp(logarithms) - self.shift).clip(least, greatest).astype(np.float32)


class Depths:
    """The depths in the frames of a video.

    Args:
        scale: of their codes; None if the stored numbers are returned.

    Attributes:
        scale: the argument.
    """

    def __init__(self, scale: Scale | None) -> None:
        self.scale = scale

    def __reduce__(self) -> tuple[type["Depths"], tuple[Scale | None]]:
        return Depths, (self.scale,)

    def __repr__(self) -> str:
        return f"Depths({self.scale})"

    def of(self, frame: "_Picture", path: str) -> Frame:
        """Return the depths of a decoded frame.

        Raises:
            CorruptRecordError: the frame has no depths.
        """
        kind = frame.format
        if not kind.name.startswith("gray") or kind.is_big_endian or kind.components[0].bits <= 8:
            raise CorruptRecordError(
                f"{path!r} must have depths of 9 to 16 bits, in a format such as 'gray12le', as its description says; "
                f"it has frames of {kind.name!r}. Name the other columns, or write it again."
            )
        plane = frame.planes[0]
        lines = np.frombuffer(plane, _CODE).reshape(-1, plane.line_size // _CODE.itemsize)
        codes = lines[: frame.height, : frame.width, np.newaxis]
        if self.scale is None:
            return codes.astype(np.uint16)
        if codes.max() > _GREATEST_CODE:
            raise CorruptRecordError(
                f"{path!r} must have depths of 12 bits, as its description says; it has {codes.max()}. Write it again."
            )
        return self._depths[codes]

    @cached_property
    def _depths(self) -> NDArray[np.float32]:
        return np.empty(0, np.float32) if self.scale is None else self.scale.depths()


class Films:
    """Frames of videos with one constant rate.

    Args:
        files: the videos.
        rate: frames in a second.
        depths: the depths of those videos that have no colours, by the numbers of their files.
    """

    def __init__(self, files: Sequence[LocalFile], rate: float, depths: Mapping[int, Depths]) -> None:
        self.files = tuple(files)
        self._rate = rate
        self._depths = depths
        self.renew_after_fork()
        renewed_after_fork(self)

    def __reduce__(self) -> tuple[type["Films"], tuple[Sequence[LocalFile], float, Mapping[int, Depths]]]:
        return Films, (self.files, self._rate, self._depths)

    def renew_after_fork(self) -> None:
        """Begin without decoders."""
        self._lock = threading.Lock()  # guards `_idle`
        self._idle: list[tuple[int, _Decoder]] = []  # with the number of the file; the last used one is the last

    def read(self, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], Frame]:
        """Return frames by the numbers of their file and of the frame.

        Args:
            wanted: both numbers of each frame.

        Returns:
            uint8 of shape (height, width, 3), red, green and blue; or depths of shape (height, width, 1).

        Raises:
            SourceError: a file doesn't exist any more, or has changed.
            CorruptRecordError: a file can't be decoded, or has no such frame, or no depths.
        """
        found: dict[tuple[int, int], Frame] = {}
        for file, places in groupby(sorted(set(wanted)), itemgetter(0)):
            decoder = self._taken(file)
            for place in places:
                found[place] = decoder.frame(place[1])
            with self._lock:
                self._idle.append((file, decoder))
                del self._idle[:-_MAX_IDLE]
        return found

    def _taken(self, file: int) -> "_Decoder":
        with self._lock:
            for place in reversed(range(len(self._idle))):
                if self._idle[place][0] == file:
                    return self._idle.pop(place)[1]
        return _Decoder(self.files[file], self._rate, self._depths.get(file))


class _Decoder:
    """An open video, and the frame at which its decoder stands."""

    def __init__(self, file: LocalFile, rate: float, depths: Depths | None) -> None:
        check_unchanged(file)
        self._path = file.path
        self._depths = depths
        with self._decoding("its beginning"):
            self._container: Any = _av().open(file.path)
            self._stream: Any = self._container.streams.video[0]
        # Threads of the decoder would outnumber the processors, as every worker has decoders.
        self._stream.codec_context.thread_type = "NONE"
        self._stream.codec_context.thread_count = 1
        self._scale = float(self._stream.time_base) * rate
        self._frames: Iterator[Any] = iter(())
        self._frame: Any = None
        self._number = -1  # of `_frame`
        self._key = 0  # the key frame before `_frame`
        self._reach = 0  # as many frames, at least, are between two key frames

    def frame(self, number: int) -> Frame:
        """Return a frame.

        Raises:
            CorruptRecordError: it can't be decoded, there is none, or it has no depths.
        """
        with self._decoding(f"frame {number}"):
            if self._frame is None or not self._number <= number <= self._number + self._reach + 1:
                self._find_key_before(number)
            while self._number < number:
                self._next(number)
            if self._number != number:
                raise self._lacking(number)
            found: Any = self._frame
            if self._depths is not None:
                return self._depths.of(found, self._path)
            pixels: Frame = found.to_ndarray(format="rgb24")
        return pixels

    def _find_key_before(self, number: int) -> None:
        for back in (*_STEPS_BACK, number):
            begin = max(0, number - back)
            self._container.seek(math.floor((begin + _PAST) / self._scale), stream=self._stream)
            self._frames = self._container.decode(self._stream)
            self._next(number)
            while not self._frame.key_frame:  # it may lack what it refers to
                self._next(number)
            if self._number <= number or not begin:
                return

    def _next(self, number: int) -> None:
        frame = next(self._frames, None)
        if frame is None or frame.pts is None:
            self._frame = None
            raise self._lacking(number)
        self._frame, self._number = frame, round(frame.pts * self._scale)
        if frame.key_frame:
            self._key = self._number
        self._reach = max(self._reach, self._number - self._key)

    def _lacking(self, number: int) -> CorruptRecordError:
        return CorruptRecordError(
            f"{self._path!r} must have frame {number}, at {number * float(self._stream.time_base) / self._scale:.3f} "
            "s; it has none. The video is truncated, or has another rate: write it again."
        )

    @contextlib.contextmanager
    def _decoding(self, what: str) -> Generator[None]:
        """Raise the errors of PyAV as those of a file.

        Raises:
            CorruptRecordError: the file can't be decoded.
        """
        try:
            yield
        except (_av().FFmpegError, IndexError) as error:
            raise CorruptRecordError(
                f"{self._path!r} can't be decoded at {what}: {error}. It is no video, truncated or damaged: write it "
                "again."
            ) from error


def _av() -> ModuleType:
    return need("av", "PyAV", extra="lerobot")
