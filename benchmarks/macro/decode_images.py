"""Random crops of JPEGs, resized to 224 x 224: bytes, and normalised planes, in CPU time of one core.

The limits are what people write with Pillow, and with simplejpeg and OpenCV, whose INTER_AREA is antialiased as the
others are; INTER_LINEAR, which passes over pixels, is shown for comparison. OpenCV is optional:

    pip install --target FOLDER opencv-python-headless && PYTHONPATH=FOLDER scripts/bench decode-images
"""

import importlib
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.macro.photographs import HEIGHT, QUALITY, WIDTH, write_photographs
from benchmarks.scenario import MILLISECONDS, Contestant, Goal, Measurement, Role, Scenario
from penstock.images import Pixels, RandomResizedCrop, decode_crop_resize

SIZE = 224
FLIP = 0.5
GRAIN = 12  # the standard deviation of the noise of a grainy photograph, in levels
FORMS = {"bytes": Pixels(), "planes": Pixels("CHW", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
SCALE = (1 / (255 * np.array(FORMS["planes"].std))).astype(np.float32)
SHIFT = (-np.array(FORMS["planes"].mean) / np.array(FORMS["planes"].std)).astype(np.float32)

Box = tuple[int, int, int, int]
Crop = Callable[[bytes, Box], NDArray[np.uint8]]


@dataclass(frozen=True, slots=True)
class Work:
    """Files, with a box of each."""

    kind: str
    files: list[bytes]
    boxes: list[Box]


def build(bench: Bench) -> Scenario:
    """Return the scenario: both kinds of photographs, both forms of results."""
    count = 4 if bench.smoke else 64
    write_photographs(bench.directory, count)
    soft = [(bench.directory / f"{number}.jpg").read_bytes() for number in range(count)]
    works = [Work("soft", soft, _boxes(count)), Work("grainy", [*map(_grainy, soft, range(count))], _boxes(count))]
    contestants = [each for work in works for form in FORMS for each in _contestants(work, form)]
    question = f"{count} JPEGs of {WIDTH}x{HEIGHT}, a random box of each, resized to {SIZE}x{SIZE}"
    return Scenario("decode-images", question, tuple(contestants))


def _contestants(work: Work, form: str) -> list[Contestant]:
    def make(name: str, role: Role, run: Callable[[], object], *against: str, goal: float | None = None) -> Contestant:
        limits = tuple(f"{limit}, {work.kind}, {form}" for limit in against)
        bound = None if goal is None else Goal("share", goal)
        timed = partial(_timed, run, len(work.files))
        return Contestant(f"{name}, {work.kind}, {form}", role, timed, MILLISECONDS, against=limits, goal=bound)

    def others(crop: Crop) -> Callable[[], object]:
        return partial(_crops, crop, work, form)

    stage = RandomResizedCrop(SIZE, flip=FLIP, pixels=FORMS[form])
    block = partial(_block, stage, work.files)
    found = [
        make("Pillow", "limit", others(_pillow_crop)),
        make("penstock, a block", "ours", block, "Pillow", goal=2.5),
        make("penstock, image by image", "ours", partial(_singly, work, FORMS[form]), "Pillow"),
    ]
    area, linear = _opencv_crop("INTER_AREA"), _opencv_crop("INTER_LINEAR")
    if area is None or linear is None:
        return found
    name = "simplejpeg and OpenCV"
    return [
        *found,
        make(name, "limit", others(area)),
        make("penstock beside OpenCV", "ours", block, name, goal=1.3),
        make(f"{name}, not antialiased", "reference", others(linear), name),
    ]


def _timed(run: Callable[[], object], images: int, repeats: int) -> Measurement:
    started = time.process_time()
    for _ in range(repeats):
        run()
    return Measurement(repeats * images, time.process_time() - started)


def _block(stage: RandomResizedCrop, files: Sequence[object]) -> list[Any]:
    rng = np.random.default_rng(7)
    return stage.apply_block(files, [rng] * len(files))


def _singly(work: Work, pixels: Pixels) -> None:
    for file, box in zip(work.files, work.boxes, strict=True):
        decode_crop_resize(file, SIZE, box=box, pixels=pixels)


def _crops(crop: Crop, work: Work, form: str) -> NDArray[Any]:
    shape, dtype = FORMS[form].shape(SIZE, SIZE), FORMS[form].dtype
    out = np.empty((len(work.files), *shape), dtype)
    for row, file, box in zip(out, work.files, work.boxes, strict=True):
        levels = crop(file, box)
        if form == "bytes":
            row[:] = levels
        else:
            np.multiply(levels.transpose(2, 0, 1), SCALE[:, None, None], out=row)
            np.add(row, SHIFT[:, None, None], out=row)
    return out


def _pillow_crop(file: bytes, box: Box) -> NDArray[np.uint8]:
    from PIL import Image  # noqa: PLC0415 - may be absent

    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=box))


def _opencv_crop(filter_name: str) -> Crop | None:
    try:
        opencv: Any = importlib.import_module("cv2")  # may be absent, and so may the next one
        simplejpeg: Any = importlib.import_module("simplejpeg")
    except ImportError:
        return None
    opencv.setNumThreads(1)

    def crop(file: bytes, box: Box) -> NDArray[np.uint8]:
        left, top, right, bottom = box
        part = simplejpeg.decode_jpeg(file)[top:bottom, left:right]
        resized: NDArray[np.uint8] = opencv.resize(part, (SIZE, SIZE), interpolation=getattr(opencv, filter_name))
        return resized

    return crop


def _boxes(count: int) -> list[Box]:
    """Return the boxes that `_block` draws, which are read off crops of ramps, to two pixels."""
    down, across = np.mgrid[:HEIGHT, :WIDTH]
    ramps = np.stack([across // 2, down // 2, across * 0], -1).astype(np.uint8)
    boxes: list[Box] = []
    for crop in _block(RandomResizedCrop(SIZE, flip=FLIP), [ramps] * count):
        (left, top, _), (right, bottom, _) = crop.min((0, 1)).tolist(), crop.max((0, 1)).tolist()
        boxes.append((2 * left, 2 * top, min(2 * right + 2, WIDTH), min(2 * bottom + 2, HEIGHT)))
    return boxes


def _grainy(file: bytes, seed: int) -> bytes:
    from PIL import Image  # noqa: PLC0415 - may be absent

    with Image.open(io.BytesIO(file)) as image:
        levels = np.asarray(image).astype(np.float64)
    noise = np.random.default_rng(seed).normal(0, GRAIN, levels.shape)
    stream = io.BytesIO()
    Image.fromarray(np.clip(levels + noise, 0, 255).astype(np.uint8)).save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()
