"""The source of the frames of a LeRobot dataset; records are dicts of features, with windows by differences of time.

The rows of an episode are decoded at once, from a Parquet file, and kept as arrays. So a window of a hundred actions
is one slice. Frames of videos are decoded for each record (`_films.py`).
"""

import contextlib
import copy
import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, SupportsIndex, cast

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._os import local_path
from penstock.errors import CorruptRecordError, UsageError
from penstock.sources._films import Films, Frame
from penstock.sources._kept_blocks import DECODED_BYTES, KeptBlocks, Waste, check_decoded_bytes
from penstock.sources._lerobot_meta import Clips, Description, Episodes, Feature, describe
from penstock.sources._local_files import PathLike, digest_of, identity_of, stat_file
from penstock.sources._parquet import Parquet
from penstock.sources._shared_blocks import SharedBlocks
from penstock.sources._source import Keys, Record, as_key, as_keys, check_range, different_names
from penstock.sources._table_files import missing_column

_TASK: Final = "task"
_TASK_INDEX: Final = "task_index"
_MASK: Final = "_is_pad"  # added to the name of a window
_EPISODE_INDEX: Final = "episode_index"
_LARGEST_ERROR: Final = 1e-4  # of a difference of time, in seconds, as in LeRobot

Values = NDArray[Any] | list[Any]


class LeRobot:
    """The frames of a LeRobot dataset of version 2 or 3; records are dicts with the value of each feature.

    Numbers are NumPy scalars and arrays, as they are stored. A frame of a video is an array of uint8 of shape
    `(height, width, 3)`. A frame of depths is an array of float32 of shape `(height, width, 1)`, in metres; if the
    description has no scale of them, the stored numbers, as uint16. An image that is stored by itself stays encoded, as
    bytes. `"task"` is the task's text.

    `deltas` makes a window of a feature: the values at the frame's time plus each of these differences, stacked, and
    beside it `NAME_is_pad`, which is true where the time is outside of the episode, and the first or the last value
    stands in its place. This is LeRobot's `delta_timestamps`.

    A read decodes the rows of the frame's episode, and keeps those of the last episodes, up to `decoded_bytes`. A
    random frame of a video costs the decoding of all frames from the key frame before it on: LeRobot makes every second
    frame a key frame, other programs one of 250. Frames of one batch are decoded in the order of the files.

    The first use reads the footers of the Parquet files, and keeps them in a cache directory. Files must not change
    while they are read: a changed file raises SourceError.

    Args:
        root: the folder of the dataset, which has `meta/info.json`.
        deltas: for each feature with a window, differences of time in seconds, which must be whole numbers of frames.
        columns: the features to read, in the order of the records; without a camera, its videos aren't opened. Default:
            all, and `"task"`.
        episodes: the numbers of the episodes to read, in their order. Default: all.
        cache: the directory for the index. Default: `$XDG_CACHE_HOME/penstock`, or `~/.cache/penstock`.
        decoded_bytes: how much of the episodes' rows is kept, in bytes; one is always kept. Worker processes keep them
            together. Default: 256 MiB.

    Raises:
        UsageError: there is no such dataset, version, feature or episode; a difference isn't a whole number of frames.
        SourceError: a file can't be read; later, at a read, a file no longer exists or has changed.
        CorruptRecordError: a file is damaged, or differs from the description.
        MissingDependencyError: pyarrow or PyAV isn't installed; the extra `lerobot` installs both.

    Example:
        >>> import json, pathlib, tempfile
        >>> import pyarrow, pyarrow.parquet
        >>> features = {"action": {"dtype": "float32", "shape": [1]}, "episode_index": {"dtype": "int64", "shape": [1]}}
        >>> table = pyarrow.table({"action": [0.0, 0.5, 1.0], "episode_index": [0, 0, 0]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder)
        ...     (path / "meta").mkdir()
        ...     info = {"codebase_version": "v2.1", "fps": 10, "features": features, "chunks_size": 1000}
        ...     info["data_path"] = "{episode_index}.parquet"
        ...     _ = (path / "meta/info.json").write_text(json.dumps(info))
        ...     _ = (path / "meta/episodes.jsonl").write_text('{"episode_index": 0, "length": 3}')
        ...     pyarrow.parquet.write_table(table, path / "0.parquet")
        ...     source = LeRobot(folder, deltas={"action": [0, 0.1]}, columns=["action"], cache=folder)
        ...     len(source), source[2]["action"].tolist(), source[2]["action_is_pad"].tolist(), source.describe_key(2)
        (3, [1.0, 1.0], [False, True], 'frame 2 of episode 0')
    """

    def __init__(
        self,
        root: PathLike,
        *,
        deltas: Mapping[str, Sequence[float]] | None = None,
        columns: Sequence[str] | None = None,
        episodes: Sequence[int] | None = None,
        cache: PathLike | None = None,
        decoded_bytes: int = DECODED_BYTES,
    ) -> None:
        check_decoded_bytes(decoded_bytes)
        described = describe(local_path(root))
        self._name = os.path.basename(described.root)
        self._names = _chosen_columns(described, columns)
        self._deltas = _chosen_deltas(described, self._names, deltas or {})
        self._features = described.features
        cameras = [name for name in self._names if _is_video(described.features, name)]
        found = described.episodes(cameras)
        chosen = _chosen_episodes(found, episodes, self._name)
        self._tasks: Mapping[int, str] = described.tasks() if _TASK in self._names else {}
        self._table, first_rows = _table_of(found, chosen, self._table_columns(), cache)
        self._numbers = found.numbers[chosen]
        self._first_rows = first_rows
        self._starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(found.lengths[chosen])])
        self._clips, videos = _used_clips(found, chosen)
        depths = {camera: of for camera in cameras if (of := described.features[camera].depths) is not None}
        by_file = {file: depths[camera] for camera in depths for file in self._clips[camera].files.tolist()}
        self._films = Films([stat_file(path) for path in videos], described.rate, by_file)
        text = f"{self._names} {self._numbers.tolist()} {[(name, d.tolist()) for name, d in self._deltas.items()]}"
        text += f" {depths}" if depths else ""
        self._digest = digest_of(self._films.files, f"{self._table.fingerprint()} {text}")
        self._decoded_bytes = decoded_bytes
        used: list[int] = np.unique(found.files[chosen]).tolist()
        tables = [stat_file(found.data_paths[number]) for number in used]
        self._identity = identity_of(tables, f"LeRobot {text} {self._features} {self._tasks}")
        self._shared = SharedBlocks(len(self._numbers), decoded_bytes, self._identity)
        self._begin()

    def _begin(self) -> None:
        """Begin without rows, as every process does."""
        self._kept = KeptBlocks[dict[str, Values]](self._decoded_bytes, self._shared)
        self._waste = Waste("episode", self._decoded_bytes)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, key: SupportsIndex) -> Record:
        return self.read(np.array([as_key(key, len(self))]))[0]

    def read(self, keys: Sequence[int] | Keys) -> list[Record]:
        """Return the frame of each key; all frames of one video are decoded together.

        Args:
            keys: in [0, length), one axis.

        Returns:
            A dict for each key.
        """
        checked = as_keys(keys)
        check_range(checked, len(self))
        self._waste.returned += len(checked)
        places = np.searchsorted(self._starts, checked, side="right") - 1
        offsets = checked - self._starts[places]
        frames = [self._window(*at) for at in zip(places.tolist(), offsets.tolist(), strict=True)]
        pictures = self._films.read(list(chain.from_iterable(self._pictured(frame) for frame in frames)))
        return [self._record(frame, pictures) for frame in frames]

    @property
    def blocks(self) -> NDArray[np.int64]:
        """The key at which each episode begins, and the length: int64, one axis."""
        return self._starts

    def describe_key(self, key: SupportsIndex) -> str:
        """Return the frame and the episode of a key, for messages."""
        checked = as_key(key, len(self))
        place = int(np.searchsorted(self._starts, checked, side="right")) - 1
        return f"frame {checked - self._starts[place]} of episode {self._numbers[place]}"

    def _identity_parts(self) -> object:
        """Return the fingerprint, and a digest of the files' paths, sizes and times: the key of a cache has them."""
        return self.fingerprint(), self._identity, identity_of(self._films.files, "")

    def fingerprint(self) -> str:
        """Return a str that changes with the names and sizes of the files, with the features and the windows."""
        return f"lerobot-{self._digest}"

    def __repr__(self) -> str:
        return f"LeRobot({len(self)} frames of {len(self._numbers)} episodes of {self._name!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None, "_waste": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def _window(self, place: int, offset: int) -> "_Window":
        """Return where a frame's values are."""
        last = int(self._starts[place + 1] - self._starts[place]) - 1
        return _Window(
            place, offset, {name: np.clip(offset + deltas, 0, last) for name, deltas in self._deltas.items()}
        )

    def _pictured(self, frame: "_Window") -> list[tuple[int, int]]:
        """Return the file and the number of each frame of a video that a record has."""
        found: list[tuple[int, int]] = []
        for name, clips in self._clips.items():
            file, first = clips.files.item(frame.place), clips.first_frames.item(frame.place)
            found += [(file, first + offset) for offset in frame.offsets(name)]
        return found

    def _record(self, frame: "_Window", pictures: Mapping[tuple[int, int], Frame]) -> Record:
        rows = self._kept.get(frame.place)
        if rows is None:
            rows = self._kept.opened(frame.place, self._read_episode)
        record: dict[str, Any] = {}
        for name in self._names:
            within = frame.within.get(name)
            if name in self._clips:
                clips = self._clips[name]
                file, first = clips.files.item(frame.place), clips.first_frames.item(frame.place)
                shown = [pictures[file, first + offset] for offset in frame.offsets(name)]
                record[name] = shown[0].copy() if within is None else np.stack(shown)
            else:
                record[name] = _taken(rows[name], frame.offset, within)
            if within is not None:
                record[name + _MASK] = within != frame.offset + self._deltas[name]
        return record

    def _table_columns(self) -> list[str]:
        stored = [name for name in self._names if name != _TASK and not _is_video(self._features, name)]
        needed = [_EPISODE_INDEX, *([_TASK_INDEX] if _TASK in self._names else [])]
        return list(dict.fromkeys([*stored, *needed]))

    def _read_episode(self, place: int) -> tuple[dict[str, Values], int]:
        """Return the columns of an episode, and their size in bytes.

        Raises:
            CorruptRecordError: the file has other rows than the description says.
        """
        begin, count = self._first_rows.item(place), int(self._starts[place + 1] - self._starts[place])
        rows = self._table.read(range(begin, begin + count))
        number = self._numbers.item(place)
        if any(row[_EPISODE_INDEX] != number for row in rows):
            raise CorruptRecordError(
                f"{self._table.describe_key(begin)} must begin episode {number} of {count} frames, as the description "
                f"of {self._name!r} says; it has other rows. Restore the dataset."
            )
        self._waste.add(count, self)
        columns = {name: self._column(name, rows, begin) for name in self._names if name not in self._clips}
        return columns, sum(map(_bytes_of, columns.values()))

    def _column(self, name: str, rows: Sequence[Record], begin: int) -> Values:
        """Return the values of a column.

        Raises:
            CorruptRecordError: a task or an image is missing.
        """
        feature = self._features.get(name)
        if feature is not None and feature.dtype != "image":
            return _stacked([row[name] for row in rows], feature)
        found = [self._tasks.get(int(row[_TASK_INDEX])) if feature is None else row[name]["bytes"] for row in rows]
        if None in found:
            lacking = rows[found.index(None)]
            what = f"a task {lacking[_TASK_INDEX]} in meta" if feature is None else f"the bytes of its image {name!r}"
            raise CorruptRecordError(
                f"{self._table.describe_key(begin + found.index(None))} must have {what}; {self._name!r} has none. "
                "Restore the dataset, or write it again."
            )
        return found


@frozen
class _Window:
    """A frame: its episode's place, its offset there, and the offsets of the windows."""

    place: int
    offset: int
    within: Mapping[str, NDArray[np.int64]]

    def offsets(self, name: str) -> list[int]:
        """Return the offsets of a feature's values."""
        found = self.within.get(name)
        return [self.offset] if found is None else found.tolist()


def _is_video(features: Mapping[str, Feature], name: str) -> bool:
    return name in features and features[name].dtype == "video"


def _chosen_columns(described: Description, columns: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the columns to read.

    Raises:
        UsageError: one doesn't exist, or is there twice.
    """
    features = described.features
    known = (*features, *([_TASK] if _TASK_INDEX in features else []))
    chosen = known if columns is None else different_names("columns", columns)
    for name in chosen:
        if name not in known:
            raise UsageError(missing_column(name, known, repr(described.root)))
    if not chosen:
        raise UsageError("columns must have at least one name; got an empty list. Omit it for all columns.")
    return chosen


def _chosen_deltas(described: Description, names: Sequence[str], deltas: object) -> dict[str, NDArray[np.int64]]:
    """Return the differences in frames.

    Raises:
        UsageError: a feature isn't read, or has the name of a mask; or a difference is no whole number of frames.
    """
    if not isinstance(deltas, Mapping):
        raise UsageError(f'deltas must be a dict, such as {{"action": [0.0, 0.1]}}; got deltas={deltas!r}')
    found: dict[str, NDArray[np.int64]] = {}
    for name, seconds in cast("Mapping[str, Sequence[float]]", deltas).items():
        if name not in names or name == _TASK:
            raise UsageError(missing_column(name, [known for known in names if known != _TASK], "deltas"))
        if f"{name}{_MASK}" in names:
            raise UsageError(
                f"deltas[{name!r}] adds {name + _MASK!r} to each record, which is the name of a feature, too. Name the "
                "other features in columns=."
            )
        frames = _numbers_of(seconds) * described.rate
        whole = np.rint(frames)
        wrong = ~(np.abs(frames - whole) <= _LARGEST_ERROR * described.rate)
        if frames.ndim != 1 or not frames.size or wrong.any():
            shown: object = seconds
            if frames.ndim == 1 and wrong.any():
                shown = [second for second, is_wrong in zip(seconds, wrong.tolist(), strict=True) if is_wrong]
            raise UsageError(
                f"deltas[{name!r}] must be whole numbers of frames, in seconds, at {described.rate:g} frames in a "
                f"second; got {shown}. Pass multiples of {1 / described.rate:.4g}."
            )
        found[name] = whole.astype(np.int64)
    return found


def _numbers_of(seconds: object) -> NDArray[np.float64]:
    """Return numbers as an array; one NaN for values that are none."""
    with contextlib.suppress(TypeError, ValueError):
        return np.asarray(seconds, np.float64)
    return np.full((), np.nan)


def _chosen_episodes(found: Episodes, episodes: object, name: str) -> NDArray[np.int64]:
    """Return the places of the episodes to read.

    Raises:
        UsageError: one doesn't exist, or is there twice.
    """
    if episodes is None:
        return np.arange(len(found.numbers))
    if isinstance(episodes, str) or not isinstance(episodes, Iterable):
        raise UsageError(f"episodes must be a sequence of numbers, such as [0, 1]; got episodes={episodes!r}")
    listed = list(cast("Iterable[int]", episodes))
    places = {number: place for place, number in enumerate(found.numbers.tolist())}
    for number in listed:
        if number not in places:
            raise UsageError(
                f"episodes must be numbers of episodes of {name!r}, which has {len(places)}; got {number!r}. Check "
                "meta/episodes."
            )
    if len(set(listed)) < len(listed):
        raise UsageError(f"episodes must be different numbers; got {listed}. Use repeat for more.")
    return np.array([places[number] for number in listed], np.int64)


def _table_of(
    found: Episodes, chosen: NDArray[np.int64], columns: Sequence[str], cache: PathLike | None
) -> tuple[Parquet, NDArray[np.int64]]:
    """Return the rows of the files that have the chosen episodes, and the row at which each of these begins.

    Raises:
        UsageError: no episode is chosen.
        CorruptRecordError: the files have more or fewer rows than the description says.
    """
    if not len(chosen):
        raise UsageError("a LeRobot dataset must have at least one episode to read; got none. Check episodes.")
    used, numbers = np.unique(found.files[chosen], return_inverse=True)
    listed: list[int] = used.tolist()
    table = Parquet([found.data_paths[number] for number in listed], columns, cache=cache, decoded_bytes=0)
    counts = np.bincount(found.files, found.lengths).astype(np.int64)[used]
    if len(table) != counts.sum():
        raise CorruptRecordError(
            f"the files of a LeRobot dataset must have {counts.sum()} rows, as its description says; {table!r} has "
            f"{len(table)}. Files are missing or damaged: restore the dataset."
        )
    begins = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return table, begins[numbers.reshape(-1)] + found.first_rows[chosen]


def _used_clips(found: Episodes, chosen: NDArray[np.int64]) -> tuple[dict[str, Clips], list[str]]:
    """Return the clips of the chosen episodes, and the videos that have them."""
    clips: dict[str, Clips] = {}
    paths: list[str] = []
    for camera, every in found.clips.items():
        used, numbers = np.unique(every.files[chosen], return_inverse=True)
        clips[camera] = Clips(numbers.reshape(-1) + len(paths), every.first_frames[chosen])
        paths += [found.video_paths[number] for number in used.tolist()]
    return clips, paths


def _stacked(values: list[Any], feature: Feature) -> Values:
    """Return values of one shape as one array, and others as they are."""
    if not all(isinstance(value, np.generic | np.ndarray | list) for value in values):
        return values
    try:
        stacked = np.array(values)
    except ValueError:  # values of several shapes
        return values
    shape = feature.shape if len(feature.shape) > 1 else stacked.shape[1:]
    return stacked.reshape(len(values), *shape) if stacked.dtype != np.object_ else values


def _taken(values: Values, offset: int, within: NDArray[np.int64] | None) -> Record:
    """Return a value of its own, or a window of values."""
    if isinstance(values, np.ndarray):
        return values[offset].copy() if within is None else values[within]
    return copy.deepcopy(values[offset] if within is None else [values[place] for place in within.tolist()])


def _bytes_of(values: Values) -> int:
    return values.nbytes if isinstance(values, np.ndarray) else sum(map(len, filter(_has_length, values)))


def _has_length(value: object) -> bool:
    return isinstance(value, str | bytes)
