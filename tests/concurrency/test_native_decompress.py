"""Jobs decompress the output of Python's own modules and of zstandard, and name the fault of any other input."""

import gzip
import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.concurrency import NativeJob
from penstock.errors import UsageError
from penstock.transport import Bytes
from tests.concurrency.loops import run_jobs
from tests.profiles import in_short


def is_there(make: Callable[[], object]) -> bool:
    """Return whether the system has the library that a job needs."""
    try:
        make()
    except ImportError:
        return False
    return True


needs_zstd = pytest.mark.skipif(
    not is_there(lambda: NativeJob.decompress(b"", codec="zstd")), reason="the system has no zstd"
)
needs_xxhash = pytest.mark.skipif(not is_there(lambda: NativeJob.xxh3_64(b"")), reason="the system has no xxHash")
CODECS: list[Any] = ["zlib", "gzip", "deflate", pytest.param("zstd", marks=needs_zstd)]


def compressed(codec: str, data: bytes, *, level: int = 1) -> bytes:
    """Return the data, compressed by Python's modules or zstandard."""
    if codec == "zstd":
        made: bytes = pytest.importorskip("zstandard").ZstdCompressor(level, write_checksum=True).compress(data)
        return made
    if codec == "gzip":
        return gzip.compress(data, level)
    compressor = zlib.compressobj(level, wbits=-15 if codec == "deflate" else 15)
    return compressor.compress(data) + compressor.flush()


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """Return bytes of all lengths up to some 100 KB, which can be compressed a little or a lot."""
    unit = draw(st.binary(max_size=200))
    return unit * draw(st.sampled_from([1, 2, 50, 500])) + draw(st.binary(max_size=50))


@pytest.mark.parametrize("codec", CODECS)
@in_short(10)
@given(data=contents(), level=st.integers(1, 9), slack=st.integers(0, 3))
def test_compressed_data_is_restored(codec: Any, data: bytes, level: int, slack: int) -> None:
    """Without a size, with it, into given memory, and from a handle: the result is the original data."""
    source = compressed(codec, data, level=level)
    out = np.empty((2, len(data)), np.uint8)
    new, sized, filled, limited = run_jobs(
        NativeJob.decompress(source, codec=codec),
        NativeJob.decompress(np.frombuffer(source, np.uint8), codec=codec, size=len(data)),
        NativeJob.decompress(Bytes(source), codec=codec, out=out[1]),
        NativeJob.decompress(source, codec=codec, max_size=len(data) + slack),
    )
    assert type(new) is type(sized) is Bytes
    assert new == sized == limited == data
    assert filled.base is out
    assert out[1].tobytes() == data


@pytest.mark.parametrize("codec", CODECS)
@in_short(10)
@given(data=contents(), shift=st.integers(-100, 100))
def test_sizes_are_exact(codec: Any, data: bytes, shift: int) -> None:
    """A wrong size is a failure that names it; a limit allows its own size, and no more."""
    assume(shift != 0)
    size = max(len(data) + shift, 0)
    assume(size != len(data))
    source = compressed(codec, data)
    sized, filled, limited = run_jobs(
        NativeJob.decompress(source, codec=codec, size=size),
        NativeJob.decompress(source, codec=codec, out=bytearray(size)),
        NativeJob.decompress(source, codec=codec, max_size=size),
    )
    for failed in (sized, filled):
        assert isinstance(failed, ValueError)
        assert f"exactly {size} byte" in str(failed)
    if size > len(data):
        assert limited == data
    else:
        assert isinstance(limited, ValueError)
        assert f"at most {size} byte" in str(limited)


@pytest.mark.parametrize("codec", CODECS)
@in_short(10)
@given(
    data=contents(), cut=st.floats(0, 1, exclude_max=True), flipped=st.integers(1, 255), garbage=st.binary(min_size=1)
)
def test_damaged_data_is_refused(codec: Any, data: bytes, cut: float, flipped: int, garbage: bytes) -> None:
    """An input that ends too early fails wherever it was cut, and says how long it is; any other one never crashes.

    If a byte is changed, the job fails, or the result is equal, since the byte has no effect (a time, a flag).
    """
    source = bytearray(compressed(codec, data))
    part = source[: int(cut * len(source))]
    source[len(part)] ^= flipped
    *failed, changed, made = run_jobs(
        NativeJob.decompress(part, codec=codec),
        NativeJob.decompress(part, codec=codec, size=10),
        *(NativeJob.decompress(each, codec=codec, max_size=1 << 20) for each in (source, garbage)),
    )
    for error in failed:
        assert isinstance(error, ValueError)
        assert f"of {len(part)}," in str(error)
    for result in (changed, made):
        assert type(result) in (ValueError, Bytes)
        assert isinstance(result, Bytes) or f"{codec}: " in str(result)
    assert codec == "deflate" or isinstance(changed, ValueError) or changed == data
    assert codec != "zlib" or isinstance(made, ValueError) or made == zlib.decompress(garbage)


@needs_zstd
@in_short(10)
@given(data=contents(), skipped=st.binary(max_size=20))
def test_frames_without_a_content_size(data: bytes, skipped: bytes) -> None:
    """Frames without a content size are read, also between other frames and skippable ones."""
    zstandard = pytest.importorskip("zstandard")
    silent = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    skippable = struct.pack("<II", 0x184D2A53, len(skipped)) + skipped
    source = silent + skippable + compressed("zstd", data) + silent
    new, sized, short = run_jobs(
        NativeJob.decompress(source, codec="zstd"),
        NativeJob.decompress(source, codec="zstd", size=3 * len(data)),
        NativeJob.decompress(source, codec="zstd", size=3 * len(data) + 1),
    )
    assert new == sized == 3 * data
    assert isinstance(short, ValueError)


def test_other_data_is_named() -> None:
    """Bytes after a zlib stream are refused, with the remedy; an error names the codec that others start like."""
    source = zlib.compress(b"penstock")
    failed = run_jobs(NativeJob.decompress(source + b"abc"))[0]
    assert "3 bytes follow" in str(failed)
    assert f"source[:{len(source)}]" in str(failed)
    gzipped = compressed("gzip", b"penstock")
    of_gzip, of_zlib = run_jobs(NativeJob.decompress(gzipped), NativeJob.decompress(source, codec="gzip"))
    assert "starts like gzip" in str(of_gzip)
    assert "starts like zlib" in str(of_zlib)


@pytest.mark.parametrize("codec", CODECS)
def test_a_bomb_takes_no_more_than_its_limit(codec: Any) -> None:
    """An input of 64 MB of output stops at its limit, even if its header has a false size."""
    bomb = bytearray(compressed(codec, bytes(64_000_000)))
    assert "at most 1000000 bytes" in str(run_jobs(NativeJob.decompress(bomb, codec=codec, max_size=1_000_000))[0])
    if codec == "gzip":
        bomb[-4:] = bytes(4)
        assert "at most 1000000 bytes" in str(run_jobs(NativeJob.decompress(bomb, codec=codec, max_size=1_000_000))[0])


@needs_zstd
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer ends what asks for too much")
def test_a_frame_that_claims_too_much() -> None:
    """A frame of a few bytes that claims 2**60 is refused before memory is taken; the error has the claimed size."""
    claim = struct.pack("<IBQ", 0xFD2FB528, 0b11100000, 2**60) + b"\x01\x00\x00"
    failed, no_memory = run_jobs(
        NativeJob.decompress(claim, codec="zstd"), NativeJob.decompress(claim, codec="zstd", max_size=2**61)
    )
    assert f"a frame of {2**60} bytes" in str(failed)
    assert isinstance(no_memory, MemoryError)


@pytest.mark.skipif(sys.platform != "linux", reason="the loader of another system is led otherwise")
def test_a_missing_library_is_named(tmp_path: Path) -> None:
    """If the system doesn't have the library, an ImportError says how to install it, and all other jobs work."""
    libraries = {"libzstd.so.1": "libzstd1", "libxxhash.so.0": "libxxhash0"}
    for library in libraries:
        (tmp_path / library).write_bytes(b"no library " * 100)  # the loader ends its search at the first file
    program = """if True:
        from penstock.concurrency import NativeJob
        for make in (lambda: NativeJob.decompress(b'', codec='zstd'), lambda: NativeJob.xxh3_64(b'')) * 2:
            try:
                make()
            except ImportError as error:
                print(error)
        print(NativeJob.crc32(b""))
    """
    environment = os.environ | {"LD_LIBRARY_PATH": str(tmp_path)}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)
    *lines, last = result.stdout.splitlines()
    assert lines[:2] == lines[2:], result.stderr
    for line, (library, package) in zip(lines, [*libraries.items()] * 2, strict=True):
        assert library in line
        assert f"apt install {package}" in line
    assert "crc32" in last


SOURCE = zlib.compress(b"abc")
SHARED = np.zeros(100, np.uint8)
UNKNOWN: Any = "lzma"


IMPOSSIBLE: list[Callable[[], object]] = [
    lambda: NativeJob.decompress(SOURCE, codec=UNKNOWN),
    lambda: NativeJob.decompress(SOURCE, size=-1),
    lambda: NativeJob.decompress(SOURCE, size=2**64),
    lambda: NativeJob.decompress(SOURCE, max_size=-1),
    lambda: NativeJob.decompress(SOURCE, size=3, out=bytearray(4)),
    lambda: NativeJob.decompress(SOURCE, out=memoryview(b"abc")),
    lambda: NativeJob.decompress(SOURCE, out=np.zeros(6, np.uint8)[::2]),
    lambda: NativeJob.decompress(SHARED[::2]),
    lambda: NativeJob.decompress(SHARED[:60], out=SHARED[50:]),
    lambda: NativeJob.xxh3_64(SHARED[::2]),
    lambda: NativeJob.xxh3_64(b"", seed=-1),
    lambda: NativeJob.xxh3_64(b"", seed=2**64),
]


def test_impossible_jobs_are_refused() -> None:
    """A job that can't be done is refused when it is made, with the remedy."""
    for make in IMPOSSIBLE:
        with pytest.raises(UsageError, match="got"):
            make()


@needs_xxhash
@in_short(10)
@given(parts=st.lists(contents(), min_size=1, max_size=10), seed=st.integers(0, 2**64 - 1))
def test_hashes_are_xxhashs(parts: list[bytes], seed: int) -> None:
    """XXH3 equals that of the package `xxhash`, for bytes of every length and every seed."""
    xxhash = pytest.importorskip("xxhash")
    jobs = [*(NativeJob.xxh3_64(part, seed=seed) for part in parts), NativeJob.xxh3_64(parts[0])]
    expected = [xxhash.xxh3_64_intdigest(part, seed) for part in parts]
    assert run_jobs(*jobs) == [*expected, xxhash.xxh3_64_intdigest(parts[0])]
