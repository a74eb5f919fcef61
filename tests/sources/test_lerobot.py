"""LeRobot: frames of versions 2 and 3 with windows and videos, and errors that name dataset, file and frame."""

import json
import os
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from penstock.errors import CorruptRecordError, SourceError, UsageError
from penstock.sources import LeRobot, describe_key
from penstock.testing import assert_same
from tests.messages import anything
from tests.sources.promises import check_source

pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")

RATE = 10
LENGTHS = (23, 7, 30)
CAMERA = "observation.images.top"
TASKS = ("pick", "plaçe")
FEATURES = {
    "action": {"dtype": "float32", "shape": [3], "names": None},
    "observation.grid": {"dtype": "int16", "shape": [2, 2]},
    "observation.images.wrist": {"dtype": "image", "shape": [4, 4, 3]},
    "next.done": {"dtype": "bool", "shape": [1]},
    "timestamp": {"dtype": "float32", "shape": [1]},
    "frame_index": {"dtype": "int64", "shape": [1]},
    "episode_index": {"dtype": "int64", "shape": [1]},
    "index": {"dtype": "int64", "shape": [1]},
    "task_index": {"dtype": "int64", "shape": [1]},
}
TOP = {CAMERA: {"dtype": "video", "shape": [48, 64, 3], "info": {"video.is_depth_map": False}}}
MASKED = {**FEATURES, "action_is_pad": {"dtype": "bool", "shape": [1]}}
SCALE = ("depth_min", "depth_max", "shift", "use_log")
Row = dict[str, Any]


def rows_of(episode: int) -> list[Row]:
    """Return the frames of an episode, as they are read."""
    begin = sum(LENGTHS[:episode])
    return [
        {
            "action": np.array([episode, frame, 0.5], np.float32),
            "observation.grid": np.array([[episode, frame], [frame, 7]], np.int16),
            "observation.images.wrist": f"png {episode} {frame}".encode(),
            "next.done": np.bool_(frame == LENGTHS[episode] - 1),
            "timestamp": np.float32(frame / RATE),
            "frame_index": np.int64(frame),
            "episode_index": np.int64(episode),
            "index": np.int64(begin + frame),
            "task_index": np.int64(episode % 2),
            "task": TASKS[episode % 2],
        }
        for frame in range(LENGTHS[episode])
    ]


RECORDS = [row for episode in range(len(LENGTHS)) for row in rows_of(episode)]


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write frames to a Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in FEATURES}
    columns["action"] = pyarrow.array(columns["action"], pyarrow.list_(pyarrow.float32(), 3))
    grids = [grid.tolist() for grid in columns["observation.grid"]]
    columns["observation.grid"] = pyarrow.array(grids, pyarrow.list_(pyarrow.list_(pyarrow.int16())))
    columns["observation.images.wrist"] = [{"bytes": c, "path": None} for c in columns["observation.images.wrist"]]
    parquet.write_table(pyarrow.table(columns), path, row_group_size=20)


def write_info(root: Path, version: str, *, video: bool, **patterns: object) -> None:
    """Write the description of a dataset."""
    (root / "meta").mkdir(parents=True)
    features = {**FEATURES, **(TOP if video else {})}
    info = {"codebase_version": version, "fps": RATE, "features": features, "chunks_size": 2, **patterns}
    (root / "meta/info.json").write_text(json.dumps(info))


def write_old(root: Path, *, video: bool = False) -> Path:
    """Write a dataset of version 2.1, whose episodes have files of their own, and return its folder."""
    place = "chunk-{episode_chunk:03d}/%sepisode_{episode_index:06d}"
    patterns = {"data_path": f"data/{place % ''}.parquet", "video_path": f"videos/{place % '{video_key}/'}.mp4"}
    write_info(root, "v2.1", video=video, **patterns)
    episodes = [{"episode_index": number, "length": length} for number, length in enumerate(LENGTHS)]
    (root / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, episodes)))
    tasks = [{"task_index": number, "task": task} for number, task in enumerate(TASKS)]
    (root / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
    for number in range(len(LENGTHS)):
        at = {"episode_chunk": number // 2, "episode_index": number, "video_key": CAMERA}
        write_table(root / patterns["data_path"].format(**at), rows_of(number))
        if video:
            write_video(root / patterns["video_path"].format(**at), [number])
    return root


def write_new(root: Path, *, video: bool = False) -> Path:
    """Write a dataset of version 3, whose first two episodes share their files, and return its folder."""
    patterns = {
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    write_info(root, "v3.0", video=video, **patterns)
    begins = np.cumsum([0, *LENGTHS])
    columns = {
        "episode_index": [2, 0, 1],  # in another order than the files
        "length": [LENGTHS[number] for number in (2, 0, 1)],
        "dataset_from_index": begins[[2, 0, 1]],
        "data/chunk_index": [0, 0, 0],
        "data/file_index": [1, 0, 0],
        f"videos/{CAMERA}/chunk_index": [0, 0, 0],
        f"videos/{CAMERA}/file_index": [1, 0, 0],
        f"videos/{CAMERA}/from_timestamp": [0, 0, LENGTHS[0] / RATE],
        "stats/action/mean": [[0.0], [0.0], [0.0]],
    }
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    parquet.write_table(pyarrow.table(columns), root / "meta/episodes/chunk-000/file-000.parquet")
    tasks = pyarrow.table({"task_index": range(len(TASKS)), "__index_level_0__": TASKS})
    parquet.write_table(tasks, root / "meta/tasks.parquet")
    for file, numbers in enumerate([[0, 1], [2]]):
        at = {"chunk_index": 0, "file_index": file, "video_key": CAMERA}
        write_table(root / patterns["data_path"].format(**at), [row for number in numbers for row in rows_of(number)])
        if video:
            write_video(root / patterns["video_path"].format(**at), numbers)
    return root


def write_video(path: Path, episodes: Sequence[int]) -> None:
    """Write frames whose left and right half have the numbers of the episode and of the frame, by an H.264 encoder."""
    av: Any = pytest.importorskip("av")
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as film:
        options = {"g": "8", "bf": "2", "crf": "18"}
        stream = film.add_stream("libx264", rate=RATE, width=64, height=48, pix_fmt="yuv420p", options=options)
        number = 0
        for episode in episodes:
            for frame in range(LENGTHS[episode]):
                pixels = np.zeros((48, 64, 3), np.uint8)
                pixels[:, :32], pixels[:, 32:] = 60 * episode + 20, 7 * frame + 10
                shown = av.VideoFrame.from_ndarray(pixels, format="rgb24")
                shown.pts, shown.time_base, number = number, Fraction(1, RATE), number + 1
                film.mux(stream.encode(shown))
        film.mux(stream.encode(None))


def decoded(path: Path) -> list[NDArray[np.uint8]]:
    """Return all frames of a video, decoded from its beginning."""
    av: Any = pytest.importorskip("av")
    with av.open(str(path)) as film:
        return [frame.to_ndarray(format="rgb24") for frame in film.decode(video=0)]


WRITERS = [write_old, write_new]


@pytest.mark.parametrize("write", WRITERS)
def test_all_frames_keep_the_promises_of_a_source(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    """In both versions."""
    root = write(tmp_path / "robot")
    check_source(lambda: LeRobot(root), RECORDS)


@pytest.mark.parametrize("write", WRITERS)
def test_windows_end_with_their_episode(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    """A window has the values at its times, and the first or last value of the episode, marked, outside of it."""
    deltas: dict[str, list[float]] = {
        "action": [-0.2, 0.0, 0.1, 1.5],
        "observation.images.wrist": [0.1],
        "next.done": [0],
    }
    source = LeRobot(write(tmp_path / "robot"), deltas=deltas, columns=[*deltas, "index"], episodes=[2, 0])
    assert len(source) == LENGTHS[2] + LENGTHS[0]
    for key, record in enumerate(source.read(range(len(source)))):
        episode, frame = (2, key) if key < LENGTHS[2] else (0, key - LENGTHS[2])
        rows, last = rows_of(episode), LENGTHS[episode] - 1
        actions: list[NDArray[np.float32]] = [row["action"] for row in rows]
        times = np.array([frame - 2, frame, frame + 1, frame + 15])
        expected: Row = {
            "action": np.stack(actions)[times.clip(0, last)],
            "action_is_pad": (times < 0) | (times > last),
            "observation.images.wrist": [rows[min(frame + 1, last)]["observation.images.wrist"]],
            "observation.images.wrist_is_pad": np.array([frame == last]),
            "next.done": np.array([frame == last]),
            "next.done_is_pad": np.array([False]),
            "index": rows[frame]["index"],
        }
        assert_same(record, expected)
    assert describe_key(source, 31) == "key 31 (frame 1 of episode 0)"


def checked(frames: Sequence[NDArray[np.uint8]], keys: Sequence[int], records: Sequence[Row]) -> None:
    """Compare windows of a frame and of that three frames before it."""
    begins: list[int] = np.repeat(np.cumsum([0, *LENGTHS[:-1]]), LENGTHS).tolist()
    for key, record in zip(keys, records, strict=True):
        assert record["index"] == key
        assert_same(record[CAMERA], np.stack([frames[max(key - 3, begins[key])], frames[key]]))
        assert record[f"{CAMERA}_is_pad"].tolist() == [key - 3 < begins[key], False]


@pytest.mark.parametrize("write", WRITERS)
def test_frames_of_videos(tmp_path: Path, write: Callable[..., Path]) -> None:
    """In any order, alone or together, in threads and processes, frames are those of a decoder that starts in front."""
    root = write(tmp_path / "robot", video=True)
    frames = [frame for path in sorted(root.glob("videos/**/*.mp4")) for frame in decoded(path)]
    assert [(int(f[24, 16, 0]) // 60, round((int(f[24, 48, 0]) - 10) / 7)) for f in frames] == [
        (episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length)
    ]
    source = LeRobot(root, columns=[CAMERA, "index"], deltas={CAMERA: [-0.3, 0]})
    orders: list[list[int]] = [list(ps.range(len(frames), seed=seed).shuffle()) for seed in range(3)]
    for keys in orders:
        checked(frames, keys, [source[key] for key in keys])
        checked(frames, keys, [record for begin in range(0, 60, 7) for record in source.read(keys[begin : begin + 7])])
    with ThreadPoolExecutor(len(orders)) as threads:
        for keys, records in zip(orders, threads.map(source.read, orders), strict=True):
            checked(frames, keys, records)
    dataset = ps.read(source, seed=3).shuffle().batch(20)
    with ps.Loader(dataset, num_workers=2, workers="processes") as loader:
        for batch in loader:
            checked(frames, batch["index"], [{name: batch[name][row] for name in batch} for row in range(20)])


def scale_of(least: float, greatest: float, shift: float, *, logarithmic: bool) -> dict[str, object]:
    """Return a scale of depths as LeRobot describes it."""
    values = (least, greatest, shift, logarithmic)
    return {f"video.{name}": value for name, value in zip(SCALE, values, strict=True)}


def depth_camera(scale: dict[str, object]) -> dict[str, object]:
    """Return the camera as one of depths."""
    info = {"is_depth_map": True, "video.is_depth_map": True, **scale}
    return {CAMERA: {"dtype": "video", "shape": [30, 50, 1], "info": info}}


def codes_of(episode: int, most: int) -> NDArray[np.uint16]:
    """Return the stored numbers of an episode's frames, of up to `most`."""
    frames = np.arange(LENGTHS[episode])[:, None, None]
    codes = np.arange(1500).reshape(30, 50) * 41 + 997 * frames + 13 * episode
    return (codes % (most + 1)).astype(np.uint16)


def write_depths(path: Path, episodes: Sequence[int], kind: str) -> None:
    """Write frames of depths without a loss: 12 bits as LeRobot does, by an HEVC encoder, others by FFV1."""
    av: Any = pytest.importorskip("av")
    codec, options = (
        ("libx265", {"x265-params": "lossless=1:keyint=8:log-level=none"}) if "12" in kind else ("ffv1", {})
    )
    with av.open(str(path), "w") as film:
        stream = film.add_stream(codec, rate=RATE, width=50, height=30, pix_fmt=kind, options=options)
        codes = np.concatenate([codes_of(episode, 4095 if "12" in kind else 65_535) for episode in episodes])
        for number, values in enumerate(codes):
            shown = av.VideoFrame(50, 30, kind)
            padded = np.zeros((30, shown.planes[0].line_size // 2), np.uint16)
            padded[:, :50] = values
            shown.planes[0].update(padded.tobytes())
            shown.pts, shown.time_base = number, Fraction(1, RATE)
            film.mux(stream.encode(shown))
        film.mux(stream.encode(None))


def robot_of_depths(root: Path, kind: str, scale: dict[str, object]) -> Path:
    """Write a dataset with a camera of depths, and return its folder."""
    write_new(root, video=True)
    for number, episodes in enumerate([[0, 1], [2]]):
        write_depths(root / f"videos/{CAMERA}/chunk-000/file-{number:03}.mp4", episodes, kind)
    return changed_info(root, features={**FEATURES, **depth_camera(scale)})


@pytest.mark.parametrize("shape", ["logarithmic", "linear"])
def test_frames_of_depths_are_metres_by_the_scale(tmp_path: Path, shape: str) -> None:
    """In any order, also in processes, codes of 12 bits are the depths that LeRobot's scale gives them."""
    scale = scale_of(0.25, 8.0, 3.5, logarithmic=shape == "logarithmic")
    root = robot_of_depths(tmp_path / "robot", "gray12le", scale)
    source = LeRobot(root, columns=[CAMERA, "index"])
    parts = np.concatenate([codes_of(episode, 4095) for episode in range(3)]).astype(np.float64) / 4095
    expected = 3.75 * (11.5 / 3.75) ** parts - 3.5 if shape == "logarithmic" else 0.25 + parts * 7.75
    for batch in ps.Loader(ps.read(source, seed=3).shuffle().batch(20), num_workers=2, workers="processes"):
        assert batch[CAMERA].dtype == np.float32
        assert batch[CAMERA].shape == (20, 30, 50, 1)
        np.testing.assert_allclose(batch[CAMERA][..., 0], expected[batch["index"]], rtol=1e-6)
    others = LeRobot(changed_info(root, features={**FEATURES, **depth_camera({})}), columns=[CAMERA, "index"])
    assert others.fingerprint() != source.fingerprint()
    assert_same(others[25][CAMERA], codes_of(1, 4095)[2][..., None])


def test_depths_without_a_scale_are_the_stored_numbers(tmp_path: Path) -> None:
    """Numbers of 16 bits are returned as they are; a scale is for 12 bits alone; a video of colours has no depths."""
    root = robot_of_depths(tmp_path / "robot", "gray16le", {})
    source = LeRobot(root, columns=[CAMERA], deltas={CAMERA: [-0.1, 0]})
    assert_same(source[25][CAMERA], codes_of(1, 65_535)[1:3, ..., None])
    changed_info(root, features={**FEATURES, **depth_camera(scale_of(0.1, 10.0, 3.5, logarithmic=True))})
    with pytest.raises(CorruptRecordError, match=r"file-000.mp4' must have depths of 12 bits, .*; it has 6\d{4}"):
        LeRobot(root, columns=[CAMERA])[25]
    path = root / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    path.unlink()
    write_video(path, [2])
    with pytest.raises(CorruptRecordError, match=r"file-001.mp4' must have depths of 9 to 16 bits.* of 'yuv420p'"):
        LeRobot(root, columns=[CAMERA])[59]


def test_a_path_columns_and_fingerprints(tmp_path: Path) -> None:
    """`ps.read` takes the folder; without its camera a dataset needs no video; the fingerprint has windows, too."""
    root = write_new(tmp_path / "robot")
    assert_same(list(ps.read(root)), RECORDS)
    whole, window = LeRobot(root), LeRobot(root, deltas={"action": [0, 0.1]})
    assert whole.blocks.tolist() == [0, 23, 30, 60]
    assert len({whole.fingerprint(), window.fingerprint(), LeRobot(root, episodes=[0, 1, 2]).fingerprint()}) == 2
    record = whole[5]
    record["action"][:] = -1
    assert_same(whole[5], RECORDS[5])
    assert_same(pickle.loads(pickle.dumps(window))[22]["action_is_pad"], np.array([False, True]))


def changed_info(root: Path, **changes: object) -> Path:
    """Change the description, and return the folder."""
    path = root / "meta/info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return root


def with_camera(root: Path, scale: dict[str, object]) -> Path:
    """Give the camera this scale of depths, and return the folder."""
    return changed_info(root, features=depth_camera(scale))


BAD: list[tuple[Callable[[Path], object], type[Exception], str]] = [
    (lambda root: LeRobot(root.parent), UsageError, "which has meta/info.json; .* has none"),
    (lambda root: LeRobot(changed_info(root, codebase_version="v1.6")), UsageError, "has 'v1.6'"),
    (lambda root: LeRobot(changed_info(root, fps=None)), CorruptRecordError, "info.json' must be as LeRo"),
    (lambda root: LeRobot(root, columns=["x"]), UsageError, "no column 'x' in .*its columns are 'action'"),
    (lambda root: LeRobot(root, columns=["index"] * 2), UsageError, "got 'index' twice"),
    (lambda root: LeRobot(root, columns=[]), UsageError, "at least one name"),
    (lambda root: LeRobot(root, deltas={"x": [0]}), UsageError, "no column 'x' in deltas"),
    (
        lambda root: LeRobot(root, deltas={"action": [0, 0.15]}),
        UsageError,
        r"at 10 frames in a second; got \[0.15\]. Pass multiples of 0.1",
    ),
    (
        lambda root: LeRobot(root, deltas={"action": anything(0.0)}),
        UsageError,
        r"deltas\['action'\] must be whole numbers of frames.*second; got 0.0. Pass",
    ),
    (lambda root: LeRobot(root, deltas=anything([0])), UsageError, r"a dict.*got deltas=\[0\]"),
    (
        lambda root: LeRobot(changed_info(root, features=MASKED), deltas={"action": [0]}),
        UsageError,
        r"deltas\['action'\] adds 'action_is_pad' to each record.*Name the other features in columns=",
    ),
    (lambda root: LeRobot(root, columns="index"), UsageError, "a sequence of names.*got columns='index'"),
    (lambda root: LeRobot(root, episodes=anything(7)), UsageError, "a sequence of numbers.*episodes=7"),
    (lambda root: LeRobot(root, deltas={"action": []}), UsageError, r"got \[\]"),
    (lambda root: LeRobot(root, episodes=[3]), UsageError, "'robot', which has 3; got 3"),
    (lambda root: LeRobot(root, episodes=[1, 1]), UsageError, "different numbers"),
    (lambda root: LeRobot(root, episodes=[]), UsageError, "at least one episode"),
    (lambda root: LeRobot(root, decoded_bytes=-1), UsageError, "decoded_bytes must be at least 0"),
    (
        lambda root: LeRobot(with_camera(root, {"video.depth_min": 0.1})),
        CorruptRecordError,
        r"info.json' must be as .*needs depth_min, depth_max, shift, use_log; got \[0.1, None, None, None\]",
    ),
    (
        lambda root: LeRobot(with_camera(root, scale_of(0.0, 10.0, 0.0, logarithmic=True))),
        CorruptRecordError,
        r"a positive depth_min \+ shift; got \[0.0, 10.0, 0.0, True\]",
    ),
    (
        lambda root: LeRobot(with_camera(root, scale_of(2.0, 2.0, 0.0, logarithmic=False))),
        CorruptRecordError,
        r"depth_min < depth_max.*got \[2.0, 2.0, 0.0, False\]",
    ),
    (lambda root: LeRobot(changed_info(root, features=TOP)), SourceError, "cannot read '.*mp4'"),
]


def test_wrong_arguments_and_descriptions(tmp_path: Path) -> None:
    """Each error has the rule, the value and the dataset."""
    root = write_old(tmp_path / "robot")
    info = (root / "meta/info.json").read_text()
    for call, error, reason in BAD:
        with pytest.raises(error, match=reason):
            call(root)
        (root / "meta/info.json").write_text(info)


def test_damaged_datasets(tmp_path: Path) -> None:
    """Lost lines, rows and tables are errors with their file; rows of another episode are found when they are read."""
    root = write_old(tmp_path / "robot")
    data = root / "data/chunk-000/episode_000001.parquet"
    content = data.read_bytes()
    write_table(data, rows_of(1)[:-1])
    with pytest.raises(CorruptRecordError, match=r"must have 60 rows, as its description says; .*has 59"):
        LeRobot(root)
    write_table(data, rows_of(0)[:7])
    with pytest.raises(CorruptRecordError, match=r"row 0 of group 0 of file 'episode_000001.parquet' must begin episo"):
        LeRobot(root)[25]
    write_table(data, [*rows_of(1)[:2], {**rows_of(1)[2], "observation.images.wrist": None}, *rows_of(1)[3:]])
    with pytest.raises(CorruptRecordError, match=r"row 2 of .*0001.parquet' must have the bytes of its image 'observ"):
        LeRobot(root)[25]
    data.write_bytes(content)
    (root / "meta/tasks.jsonl").write_text('{"task_index": 0, "task": "pick"}')
    with pytest.raises(CorruptRecordError, match=r"row 0 of .*0001.parquet' must have a task 1 in meta; 'robot' has"):
        LeRobot(root)[25]
    (root / "meta/episodes.jsonl").write_text('{"episode_index": 0}')
    with pytest.raises(CorruptRecordError, match=r"episodes.jsonl' must be as LeRobot writes it: KeyError: 'length'"):
        LeRobot(root)
    (root / "meta/episodes.jsonl").unlink()
    with pytest.raises(SourceError, match=r"cannot read '.*episodes.jsonl': No such file"):
        LeRobot(root)


def test_damaged_videos(tmp_path: Path) -> None:
    """A truncated video, one without the frame, and one that changed, are errors with file and frame."""
    root = write_new(tmp_path / "robot", video=True)
    path = root / f"videos/{CAMERA}/chunk-000/file-001.mp4"
    content = path.read_bytes()
    source = LeRobot(root, columns=[CAMERA])
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(SourceError, match=r"file-001.mp4' changed since it was indexed"):
        source[59]
    with pytest.raises(CorruptRecordError, match=r"file-001.mp4' can't be decoded at its beginning"):
        LeRobot(root, columns=[CAMERA])[59]
    os.remove(path)
    write_video(path, [1])
    with pytest.raises(CorruptRecordError, match=r"file-001.mp4' must have frame 29, at 2.900 s; it has none"):
        LeRobot(root, columns=[CAMERA])[59]
    assert LeRobot(root, columns=[CAMERA])[35][CAMERA].shape == (48, 64, 3)
