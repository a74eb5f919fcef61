"""Batches from arrays in memory: stacked rows, and images normalised into planes of floats.

The limits are C loops into memory that was written before (see `stack.c`). Facts show the cost of one batch besides its
time: CPU time of all cores, and pages that the kernel had to map.
"""

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.bench import Bench
from benchmarks.macro.tokens import compile_c
from benchmarks.scenario import MILLISECONDS, Contestant, Goal, Measurement, Output, Role, Scenario
from benchmarks.usage import usage
from penstock.batching import normalize_images, stack_arrays

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LIMITS = {"uint8": "C memcpy, uint8", "float32": "C memcpy, float32", "images": "C loop for this processor, images"}
LOOKED_AT = 10  # batches that facts are averaged over

Make = Callable[[], Any]  # makes one batch: an array, or a rival's tensor


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Arrays to stack, and memory for the batch that was written before."""

    arrays: list[NDArray[Any]]
    out: NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Rows of both dtypes, and images with their factors and summands."""

    num_rows: int
    num_images: int
    size: int = 224
    rows: dict[str, Rows] = field(init=False)
    images: NDArray[np.uint8] = field(init=False)
    planes: NDArray[np.float32] = field(init=False)
    scale: NDArray[np.float32] = field(init=False)
    shift: NDArray[np.float32] = field(init=False)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(7)
        shape = (3, self.size, self.size)
        rows: dict[str, Rows] = {}
        for name in ("uint8", "float32"):
            arrays = [generator.integers(0, 256, shape, np.uint8).astype(name) for _ in range(self.num_rows)]
            rows[name] = Rows(arrays, np.zeros((self.num_rows, *shape), name))
        images = generator.integers(0, 256, (self.num_images, *shape[1:], 3), np.uint8)
        object.__setattr__(self, "rows", rows)
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "planes", np.zeros((self.num_images, *shape), np.float32))
        object.__setattr__(self, "scale", (1 / (255 * np.array(STD))).astype(np.float32))
        object.__setattr__(self, "shift", (-np.array(MEAN) / STD).astype(np.float32))

    def out(self, claim: str) -> NDArray[Any]:
        """Return the memory for the batch of a claim."""
        return self.planes if claim == "images" else self.rows[claim].out


def build(bench: Bench) -> Scenario:
    """Return the scenario: limits, Penstock on one thread and two, NumPy's ways, and rivals."""
    work = Work(8, 2, 32) if bench.smoke else Work(256, 64)
    library = _compile(bench)
    return Scenario(
        "stack",
        f"{work.num_rows} arrays of 3x{work.size}x{work.size} stacked, {work.num_images} such images normalised",
        (
            *bench.rivals("stack", work),
            *_stacking(library, work, "uint8"),
            *_stacking(library, work, "float32"),
            *_normalising(library, work),
        ),
    )


def contestant(work: Work, claim: str, name: str, role: Role, make: Make, goal: Goal | None = None) -> Contestant:
    """Return a way to make the batch of a claim: a key of `LIMITS`."""
    out = work.out(claim)

    def batches() -> list[Any]:
        out.fill(0)  # removes the result of an earlier contestant
        return [make()]

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            make()
        return Measurement(repeats, time.perf_counter() - started)

    def facts() -> dict[str, float]:
        used = usage(lambda: run(LOOKED_AT))
        return {"CPU ms": 1e3 * used.cpu_seconds / LOOKED_AT, "faults": used.minor_faults / LOOKED_AT}

    against = () if role == "limit" else (LIMITS[claim],)
    full_name = name if role == "limit" else f"{name}, {claim}"
    output = Output(claim, batches)
    return Contestant(full_name, role, run, MILLISECONDS, against=against, goal=goal, output=output, facts=facts)


def _stacking(library: ctypes.CDLL, work: Work, claim: str) -> tuple[Contestant, ...]:
    arrays, out = work.rows[claim].arrays, work.out(claim)
    make = partial(contestant, work, claim)
    copy_rows = _copying(library, arrays, out)
    return (
        make(LIMITS[claim], "limit", copy_rows),
        make("penstock out=", "ours", lambda: stack_arrays(arrays, out=out), Goal("share", 0.9)),
        make("penstock out=, 2 threads", "ours", lambda: stack_arrays(arrays, out=out, num_threads=2)),
        make("penstock fresh", "ours", lambda: stack_arrays(arrays)),
        make("np.stack out=", "reference", lambda: np.stack(arrays, out=out)),
        make("np.stack fresh", "reference", lambda: np.stack(arrays)),
    )


def _normalising(library: ctypes.CDLL, work: Work) -> tuple[Contestant, ...]:
    make = partial(contestant, work, "images")
    ours = partial(normalize_images, work.images, MEAN, STD)
    crops = np.pad(work.images, ((0, 0), (16, 16), (16, 16), (0, 0)))[:, 16:-16, 16:-16]
    return (
        make(LIMITS["images"], "limit", _normalising_loop(library, work)),
        make("penstock out=", "ours", partial(ours, out=work.planes), Goal("share", 0.9)),
        make("penstock out=, 2 threads", "ours", partial(ours, out=work.planes, num_threads=2)),
        make("penstock out=, crops", "ours", partial(normalize_images, crops, MEAN, STD, out=work.planes)),
        make("penstock fresh", "ours", ours),
        make("NumPy out=, image by image", "reference", partial(_numpy_by_image, work)),
        make("NumPy fresh, whole batch", "reference", partial(_numpy_at_once, work)),
    )


def _numpy_by_image(work: Work) -> NDArray[np.float32]:
    scale, shift = work.scale[:, None, None], work.shift[:, None, None]
    for image, planes in zip(work.images, work.planes, strict=True):
        np.multiply(image.transpose(2, 0, 1), scale, out=planes)
        np.add(planes, shift, out=planes)
    return work.planes


def _numpy_at_once(work: Work) -> NDArray[np.float32]:
    scaled = work.images.astype(np.float32) * work.scale + work.shift
    return np.ascontiguousarray(scaled.transpose(0, 3, 1, 2))


def _copying(library: ctypes.CDLL, arrays: list[NDArray[Any]], out: NDArray[Any]) -> Make:
    addresses = (ctypes.c_void_p * len(arrays))(*[array.ctypes.data for array in arrays])
    copy_rows = partial(library.copy_rows, addresses, len(arrays), arrays[0].nbytes, out.ctypes.data)

    def make() -> NDArray[Any]:
        copy_rows()
        return out

    return make


def _normalising_loop(library: ctypes.CDLL, work: Work) -> Make:
    addresses = [array.ctypes.data for array in (work.scale, work.shift, work.planes)]
    normalize = partial(library.normalize, work.images.ctypes.data, len(work.images), work.size**2, *addresses)

    def make() -> NDArray[Any]:
        normalize()
        return work.planes

    return make


def _compile(bench: Bench) -> ctypes.CDLL:
    loaded = compile_c(Path(__file__).with_name("stack.c"), bench.directory)
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    loaded.copy_rows.restype = loaded.normalize.restype = None
    loaded.copy_rows.argtypes = [pointer, size, size, pointer]
    loaded.normalize.argtypes = [pointer, size, size, pointer, pointer, pointer]
    return loaded
