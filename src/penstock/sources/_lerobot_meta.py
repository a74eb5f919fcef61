"""The description of a LeRobot dataset: its features, tasks and episodes, and the files that have them.

Versions 2.0 and 2.1 have a Parquet file for each episode, and a video for each of its cameras. Version 3 has the rows
of many episodes in a Parquet file, and their videos one after the other in one file.
"""

import contextlib
import glob
import json
import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock.errors import CorruptRecordError, UsageError
from penstock.sources._arrow_rows import need_arrow
from penstock.sources._films import Depths, Scale
from penstock.sources._local_files import raise_source_error
from penstock.sources._table_files import reading

_INFO: Final = "meta/info.json"
_VERSIONS: Final = ("2.0", "2.1", "3.0")
_SCALE: Final = ("depth_min", "depth_max", "shift", "use_log")

Numbers = NDArray[np.int64]


@frozen
class Feature:
    """A feature of the frames.

    Attributes:
        dtype: "video", "image", or the type of the values.
        shape: of a value.
        depths: those of a video that has no colours.
    """

    dtype: str
    shape: tuple[int, ...]
    depths: Depths | None


@frozen
class Clips:
    """For each episode, the place of one camera's video: the number of its file, and of its first frame there."""

    files: Numbers
    first_frames: Numbers


@frozen
class Episodes:
    """The episodes, in the order of their numbers.

    Attributes:
        numbers: the number of each.
        lengths: their frames.
        files: the number of each one's Parquet file.
        first_rows: the row in that file at which each begins.
        clips: their videos, by camera.
        data_paths: the Parquet files.
        video_paths: the videos of all cameras.
    """

    numbers: Numbers
    lengths: Numbers
    files: Numbers
    first_rows: Numbers
    clips: Mapping[str, Clips]
    data_paths: tuple[str, ...]
    video_paths: tuple[str, ...]


@frozen
class Description:
    """The description that a dataset has of itself.

    Attributes:
        root: its folder.
        rate: frames in a second.
        features: by name.
    """

    root: str
    rate: float
    features: Mapping[str, Feature]
    _info: Mapping[str, Any]

    def tasks(self) -> Mapping[int, str]:
        """Return the tasks by their numbers.

        Raises:
            CorruptRecordError: their file is damaged.
        """
        if self._is_old:
            path = os.path.join(self.root, "meta/tasks.jsonl")
            with _parsing(path):
                return {int(line["task_index"]): str(line["task"]) for line in _json_lines(path)}
        path = os.path.join(self.root, "meta/tasks.parquet")
        with _parsing(path), reading(path, "Parquet"):
            table = need_arrow("pyarrow.parquet").read_table(path)
            numbers: list[int] = table.column("task_index").to_pylist()
            texts = next(name for name in table.column_names if name != "task_index")  # its name differs
            return dict(zip(numbers, map(str, table.column(texts).to_pylist()), strict=True))

    def episodes(self, cameras: Sequence[str]) -> Episodes:
        """Return the episodes, with the videos of some cameras.

        Raises:
            CorruptRecordError: their description is damaged.
        """
        return self._old_episodes(cameras) if self._is_old else self._new_episodes(cameras)

    @property
    def _is_old(self) -> bool:
        return str(self._info["codebase_version"]).startswith("v2")

    def _old_episodes(self, cameras: Sequence[str]) -> Episodes:
        path = os.path.join(self.root, "meta/episodes.jsonl")
        with _parsing(path):
            found = sorted((int(line["episode_index"]), int(line["length"])) for line in _json_lines(path))
        numbers, lengths = np.array(found, np.int64).reshape(-1, 2).T
        every = np.arange(len(found), dtype=np.int64)
        with _parsing(os.path.join(self.root, _INFO)):
            chunk = int(self._info["chunks_size"])
            data, video = self._pattern("data_path"), self._pattern("video_path") if cameras else str.format
            places = [{"episode_chunk": number // chunk, "episode_index": number} for number in numbers.tolist()]
            return Episodes(
                numbers,
                lengths,
                every,
                np.zeros_like(every),
                {
                    camera: Clips(every + place * len(every), np.zeros_like(every))
                    for place, camera in enumerate(cameras)
                },
                tuple(data(**place) for place in places),
                tuple(video(video_key=camera, **place) for camera in cameras for place in places),
            )

    def _new_episodes(self, cameras: Sequence[str]) -> Episodes:
        paths = sorted(glob.glob(os.path.join(glob.escape(self.root), "meta/episodes/*/*.parquet")))
        where = os.path.join(self.root, "meta/episodes")
        videos = [f"videos/{camera}/{part}" for camera in cameras for part in _VIDEO_PARTS]
        with _parsing(where), reading(where, "Parquet"):
            parquet, columns = need_arrow("pyarrow.parquet"), [*_EPISODE_PARTS, *videos]
            tables = [parquet.read_table(path, columns=columns) for path in paths]
            table = need_arrow().concat_tables(tables)
            values = {name: table.column(name).to_numpy() for name in columns}
            order = np.argsort(values["episode_index"], kind="stable")
            numbers, lengths, begins, *file = (values[name][order].astype(np.int64) for name in _EPISODE_PARTS)
            data_paths, files = _files(self._pattern("data_path"), *file)
            first_rows = begins - np.array([begins[files == number].min() for number in range(len(data_paths))])[files]
            clips: dict[str, Clips] = {}
            video_paths: tuple[str, ...] = ()
            for camera in cameras:
                chunk, file_number, seconds = (values[f"videos/{camera}/{part}"][order] for part in _VIDEO_PARTS)
                more, of_camera = _files(self._pattern("video_path"), chunk, file_number, video_key=camera)
                first_frames = np.rint(seconds * self.rate).astype(np.int64)
                clips[camera] = Clips(of_camera + len(video_paths), first_frames)
                video_paths += more
        return Episodes(numbers, lengths, files, first_rows, clips, data_paths, video_paths)

    def _pattern(self, name: str) -> Callable[..., str]:
        return os.path.join(self.root.replace("{", "{{").replace("}", "}}"), str(self._info[name])).format


_EPISODE_PARTS: Final = ("episode_index", "length", "dataset_from_index", "data/chunk_index", "data/file_index")
_VIDEO_PARTS: Final = ("chunk_index", "file_index", "from_timestamp")


def _files(
    pattern: Callable[..., str], chunks: NDArray[Any], files: NDArray[Any], **names: str
) -> tuple[tuple[str, ...], Numbers]:
    """Return the files, in order, and for each episode the number of its file."""
    pairs, numbers = np.unique(np.stack([chunks, files], axis=1).astype(np.int64), axis=0, return_inverse=True)
    paths = tuple(pattern(chunk_index=chunk, file_index=file, **names) for chunk, file in pairs.tolist())
    return paths, numbers.reshape(-1)


def is_lerobot(folder: str) -> bool:
    """Return whether a folder has the description of a LeRobot dataset."""
    return os.path.exists(os.path.join(folder, _INFO))


def describe(root: str) -> Description:
    """Return the description of a dataset.

    Args:
        root: its folder.

    Raises:
        UsageError: there is no dataset, or it has another version.
        SourceError: the description can't be read.
        CorruptRecordError: the description is damaged.
    """
    path = os.path.join(root, _INFO)
    if not os.path.exists(path):
        raise UsageError(
            f"LeRobot reads the folder of a dataset, which has {_INFO}; {root!r} has none. Check the path."
        )
    with _parsing(path):
        with open(path, encoding="utf-8") as stream:
            info: dict[str, Any] = json.load(stream)
        version = str(info["codebase_version"])
        features = {str(name): _feature(value) for name, value in info["features"].items()}
        rate = float(info["fps"])
    if version.removeprefix("v") not in _VERSIONS:
        raise UsageError(
            f"a LeRobot dataset must have one of the versions {', '.join(_VERSIONS)}; {root!r} has {version!r}. "
            "Convert it by LeRobot."
        )
    return Description(root, rate, features, info)


def _feature(value: Mapping[str, Any]) -> Feature:
    details: Mapping[str, Any] = value.get("info") or value.get("video_info") or {}
    is_depth = bool(details.get("video.is_depth_map") or details.get("is_depth_map"))
    depths = Depths(_scale(details)) if is_depth else None
    return Feature(str(value["dtype"]), tuple(map(int, value["shape"])), depths)


def _scale(details: Mapping[str, Any]) -> Scale | None:
    """Return the scale of the codes of depths; None if a description has none.

    Raises:
        ValueError: it isn't whole, or there is no such scale.
    """
    found = [details.get(f"video.{name}") for name in _SCALE]
    if found == [None] * len(_SCALE):
        return None
    *metres, is_logarithmic = found
    if None in found or not isinstance(is_logarithmic, bool):
        raise ValueError(f"a scale of depths needs {', '.join(_SCALE)}; got {found}")
    least, greatest, shift = (float(cast("float", value)) for value in metres)
    scale = Scale(least, greatest, shift, is_logarithmic)
    if not (0 <= least < greatest < math.inf) or (is_logarithmic and not 0 < least + shift < math.inf):
        raise ValueError(f"a scale of depths needs depth_min < depth_max and a positive depth_min + shift; got {found}")
    return scale


def _json_lines(path: str) -> list[Any]:
    with open(path, encoding="utf-8") as stream:
        return [json.loads(line) for line in stream if line.strip()]


@contextlib.contextmanager
def _parsing(path: str) -> Generator[None]:
    """Raise the errors of a description as those of its file.

    Raises:
        SourceError: it can't be read.
        CorruptRecordError: it isn't as LeRobot writes it.
    """
    try:
        yield
    except CorruptRecordError:
        raise
    except OSError as error:
        raise_source_error(f"cannot read {path!r}: {error.strerror}. Check the dataset's files.", error)
    except (ValueError, TypeError, LookupError, AttributeError, StopIteration) as error:
        raise CorruptRecordError(
            f"{path!r} must be as LeRobot writes it: {type(error).__name__}: {error}. It is damaged, or was changed: "
            "restore it."
        ) from error
