"""Frames of video files by their numbers, decoded by PyAV.

A frame is decoded from the key frame before it on. So a read takes the frames of one file in order, and a decoder
continues where it stands, unless a later key frame may be before the frame. `Films` keeps decoders that no read uses,
with their files open. Its guarantees:
  - A frame depends on its file and number alone, not on the reads before it.
  - A decoder is used by one read at a time; reads in other threads get others. At most `_MAX_IDLE` are kept.
  - A forked child begins without decoders, since it would share the positions in their files.

A frame's number is its time in frames of the video's constant rate, to the nearest one.
"""

import contextlib
import math
import threading
from collections.abc import Collection, Generator, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from types import ModuleType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from penstock._optional import need
from penstock._os import renewed_after_fork
from penstock.errors import CorruptRecordError
from penstock.sources._local_files import LocalFile
from penstock.sources._table_files import check_unchanged

_MAX_IDLE: Final = 8  # decoders; one of a large video takes some 20 MB
_STEPS_BACK: Final = (0, 16, 256)  # frames before a wanted one, from where its key frame is looked for
_PAST: Final = 0.4  # of a frame: a key frame with a rounded time is found, and never the next frame

Frame = NDArray[np.uint8]


class Films:
    """Frames of videos with one constant rate.

    Args:
        files: the videos.
        rate: frames in a second.
    """

    def __init__(self, files: Sequence[LocalFile], rate: float) -> None:
        self.files = tuple(files)
        self._rate = rate
        self.renew_after_fork()
        renewed_after_fork(self)

    def __reduce__(self) -> tuple[type["Films"], tuple[Sequence[LocalFile], float]]:
        return Films, (self.files, self._rate)

    def renew_after_fork(self) -> None:
        """Begin without decoders."""
        self._lock = threading.Lock()  # guards `_idle`
        self._idle: list[tuple[int, _Decoder]] = []  # with the number of the file; the last used one is the last

    def read(self, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], Frame]:
        """Return frames by the numbers of their file and of the frame.

        Args:
            wanted: both numbers of each frame.

        Returns:
            uint8 of shape (height, width, 3), red, green and blue.

        Raises:
            SourceError: a file doesn't exist any more, or has changed.
            CorruptRecordError: a file can't be decoded, or has no such frame.
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
        return _Decoder(self.files[file], self._rate)


class _Decoder:
    """An open video, and the frame at which its decoder stands."""

    def __init__(self, file: LocalFile, rate: float) -> None:
        check_unchanged(file)
        self._path = file.path
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
            CorruptRecordError: it can't be decoded, or there is none.
        """
        with self._decoding(f"frame {number}"):
            if self._frame is None or not self._number <= number <= self._number + self._reach + 1:
                self._find_key_before(number)
            while self._number < number:
                self._next(number)
            if self._number != number:
                raise self._lacking(number)
            found: Any = self._frame
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
