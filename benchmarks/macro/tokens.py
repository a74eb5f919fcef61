"""Windows of tokens from a memory-mapped file in a random order: a gather, at the speed of memory.

The limit is a C function that copies each window once, by a permutation computed in advance, into a new array for each
batch; Python calls it and delivers the array (see `gather.c`). The file is in the page cache for all contestants.
"""

import ctypes
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.places import Place, open_loader
from benchmarks.scenario import Contestant, Goal, Measurement, Output, Scenario, per_second
from benchmarks.streams import passes

UNIT = per_second("windows")
CLAIM = "every window once"
LIMIT = "C gather into fresh arrays"


@dataclass(frozen=True, slots=True)
class Work:
    """A file of uint16 tokens, cut into windows that share one token with the next, in batches."""

    path: Path
    num_tokens: int
    length: int = 2049
    stride: int = 2048
    batch_size: int = 32

    @property
    def num_windows(self) -> int:
        """The number of complete windows in the file."""
        return (self.num_tokens - self.length) // self.stride + 1


def build(bench: Bench) -> Scenario:
    """Return the scenario: the C limit with and without Python, Penstock in every place, and rivals."""
    work = Work(bench.directory / "tokens.bin", 200_000 if bench.smoke else 100_000_000)
    write_tokens(work)
    return Scenario(
        "tokens",
        f"{work.num_windows:,} windows of {work.length:,} uint16, shuffled, batches of {work.batch_size}",
        (
            *bench.rivals("tokens", work),
            *_limits(bench, work),
            _ours(bench, work, "inline", Goal("share", 0.9)),
            _ours(bench, work, "threads", Goal("share", 0.9)),
            _ours(bench, work, "processes", Goal("share", 0.8)),
            _ours(bench, work, "isolated", Goal("share", 0.8)),
        ),
    )


def write_tokens(work: Work) -> None:
    """Write the tokens: a fixed sequence of 16-bit numbers that doesn't repeat within the file."""
    chunk = 1 << 22
    with work.path.open("wb") as file:
        for start in range(0, work.num_tokens, chunk):
            numbers = np.arange(start, min(start + chunk, work.num_tokens), dtype=np.uint64)
            ((numbers * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(48)).astype("<u2").tofile(file)


def source(work: Work) -> ps.sources.Tokens:
    """Return the windows of the file."""
    return ps.sources.Tokens(work.path, work.length, stride=work.stride, dtype="uint16")


def dataset(work: Work) -> ps.Dataset[NDArray[np.uint16]]:
    """Return the windows of the file, shuffled, in batches."""
    return ps.read(source(work), seed=7).shuffle().batch(work.batch_size)


def _ours(bench: Bench, work: Work, place: Place, goal: Goal) -> Contestant:
    name, loader = open_loader(bench.scope, dataset(work), place)
    output = Output(CLAIM, lambda: loader)
    return Contestant(name, "ours", passes(lambda: loader), UNIT, against=(LIMIT,), goal=goal, output=output)


def _limits(bench: Bench, work: Work) -> tuple[Contestant, ...]:
    library, tokens, starts = opened_gather(bench, work)

    def gather_pass(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            library.gather_pass(tokens.ctypes.data, starts.ctypes.data, len(starts), work.length, work.batch_size)
        return Measurement(repeats * len(starts), time.perf_counter() - started)

    batches = partial(gather_batches, library.gather, np.uint16, tokens, starts, work)
    return (
        Contestant(LIMIT, "limit", passes(batches), UNIT, output=Output(CLAIM, batches)),
        Contestant("the same without Python", "reference", gather_pass, UNIT, against=(LIMIT,)),
    )


def bare_batches(bench: Bench, work: Work) -> Callable[[], Iterator[NDArray[Any]]]:
    """Return a function that yields the batches of the C gather."""
    library, tokens, starts = opened_gather(bench, work)
    return partial(gather_batches, library.gather, np.uint16, tokens, starts, work)


def opened_gather(bench: Bench, work: Work) -> tuple[ctypes.CDLL, NDArray[np.uint16], NDArray[np.int64]]:
    """Return the compiled gather, the tokens, and the start of each window in the order of the dataset."""
    order = ps.read(range(work.num_windows), seed=7).shuffle()
    positions = np.array([order[position] for position in range(work.num_windows)], np.int64)
    return compile_gather(bench.directory), np.memmap(work.path, np.dtype("<u2"), "r"), positions * work.stride


def gather_batches(
    gather: Callable[..., None],
    dtype: type[np.integer[Any]],
    tokens: NDArray[np.uint16],
    starts: NDArray[np.int64],
    work: Work,
) -> Iterator[NDArray[Any]]:
    """Yield new batches, each filled by one call of a function of `gather.c`."""
    tokens_address, starts_address = tokens.ctypes.data, starts.ctypes.data
    for first in range(0, len(starts), work.batch_size):
        rows = min(work.batch_size, len(starts) - first)
        batch = np.empty((rows, work.length), dtype)
        gather(tokens_address, starts_address + 8 * first, rows, work.length, batch.ctypes.data)
        yield batch


def compile_gather(directory: Path) -> ctypes.CDLL:
    """Compile `gather.c` and load it."""
    loaded = compile_c(Path(__file__).with_name("gather.c"), directory)
    for gather in (loaded.gather, loaded.gather_as_int32):
        gather.restype = None
        gather.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
    loaded.gather_pass.restype = ctypes.c_int64
    loaded.gather_pass.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64]
    return loaded


def compile_c(source: Path, directory: Path) -> ctypes.CDLL:
    """Compile a C file with the machine's C compiler and load it.

    Args:
        source: the file.
        directory: where the library is put.

    Raises:
        RuntimeError: if there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise RuntimeError("this limit is a C function; install a C compiler (cc, gcc or clang)")
    library = directory / f"{source.stem}.so"
    subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))
