"""Decoded boxes of images have Pillow's pixels, in every form; damaged files are errors, as they are for Pillow."""

import importlib
import io
import itertools
import os
import struct
import sys
from typing import Any, Final

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from penstock.batching import normalize_images
from penstock.images import Pixels, decode_crop_resize
from tests.images.photographs import encoded, photograph, pillow
from tests.programs.forked import outcome

SIZES: Final = [(64, 64), (50, 90), (7, 300)]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def boxes(width: int, height: int, count: int) -> list[tuple[int, int, int, int]]:
    """Return the whole image, and random boxes."""
    rng = np.random.Generator(np.random.PCG64(width))
    found = [(0, 0, width, height)]
    while len(found) < count:
        left, right = sorted(rng.integers(0, width + 1, 2).tolist())
        top, bottom = sorted(rng.integers(0, height + 1, 2).tolist())
        if left < right and top < bottom:
            found.append((left, top, right, bottom))
    return found


def resized(image: Any, size: tuple[int, int]) -> NDArray[np.int64]:
    """Return an image, resized by Pillow."""
    return np.asarray(image.resize(size[::-1], pillow().Resampling.BILINEAR)).astype(np.int64)


@pytest.mark.parametrize(
    ("mode", "subsampling", "progressive"),
    [("RGB", 0, True), ("RGB", 1, False), ("RGB", 2, False), ("RGB", 2, True), ("L", 0, False), ("CMYK", 1, True)],
)
def test_a_box_has_pillows_pixels(mode: str, subsampling: int, progressive: bool) -> None:  # noqa: FBT001 - a case
    """A box's pixels are exactly Pillow's, and resized ones differ by at most one level, by less on average."""
    for width, height in [(203, 151), (17, 9), (64, 48), (1, 1)]:
        data = encoded(photograph(width, height).convert(mode), subsampling=subsampling, progressive=progressive)
        whole = pillow().open(io.BytesIO(data)).convert("RGB")
        for box in boxes(width, height, 8):
            part = whole.crop(box)
            assert np.array_equal(decode_crop_resize(data, box=box), np.asarray(part))
            for size in SIZES:
                difference = np.abs(decode_crop_resize(data, size, box=box).astype(np.int64) - resized(part, size))
                assert difference.max() <= 1
                assert difference.mean() < 0.5


def test_exif_turns_an_image_as_pillow_does() -> None:
    """With exif=True a box is one of the upright image, mirrored after it is turned; by default nothing is turned."""
    for orientation in range(1, 9):
        exif = pillow().Exif()
        exif[0x0112] = orientation
        data = encoded(photograph(83, 61), exif=exif)
        stored = pillow().open(io.BytesIO(data))
        upright = importlib.import_module("PIL.ImageOps").exif_transpose(stored)
        box = (5, 11, 40, 57)
        turned = decode_crop_resize(data, box=box, flip=True, pixels=Pixels(exif=True))
        assert np.array_equal(turned, np.asarray(upright.crop(box))[:, ::-1]), orientation
        assert np.array_equal(decode_crop_resize(data, box=box), np.asarray(stored.crop(box)))
        difference = decode_crop_resize(data, (20, 31), pixels=Pixels(exif=True)).astype(np.int64)
        assert np.abs(difference - resized(upright, (20, 31))).max() <= 1


def with_metadata(data: bytes, content: bytes) -> bytes:
    """Return a JPEG file with a marker of metadata before the others."""
    return data[:2] + b"\xff\xe1" + (len(content) + 2).to_bytes(2, "big") + content + data[2:]


def exif_of(order: str, kind: int, form: str) -> bytes:
    """Return EXIF in an order of bytes, with one tag, the orientation 6, as a value of a type."""
    entry = struct.pack(f"{order}HHHI{form}", 1, 0x0112, kind, 1, 6)
    return b"Exif\0\0" + (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, 8) + entry + bytes(4)


def test_an_orientation_is_read_by_its_type_and_from_xmp_as_pillow_reads_it() -> None:
    """Integers of any type count, bytes do not; XMP counts where EXIF has no orientation, in JPEG and PNG files."""
    image = photograph(5, 3)
    data = encoded(image)
    transpose = importlib.import_module("PIL.ImageOps").exif_transpose
    for kind, form in [(1, "B3x"), (3, "H2x"), (4, "I"), (6, "b3x"), (8, "h2x"), (9, "i")]:
        for order in "<>":
            turned = with_metadata(data, exif_of(order, kind, form))
            upright = np.asarray(transpose(pillow().open(io.BytesIO(turned))))
            assert np.array_equal(decode_crop_resize(turned, pixels=Pixels(exif=True)), upright), (kind, order)

    text = '<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="6"/>'
    xmp = with_metadata(data, b"http://ns.adobe.com/xap/1.0/\0" + text.encode())
    assert decode_crop_resize(xmp, pixels=Pixels(exif=True)).shape == (5, 3, 3)
    both = with_metadata(xmp, exif_of(">", 1, "B3x"))
    assert decode_crop_resize(both, pixels=Pixels(exif=True)).shape == (3, 5, 3)
    information, stream = importlib.import_module("PIL.PngImagePlugin").PngInfo(), io.BytesIO()
    information.add_itxt("XML:com.adobe.xmp", text)
    image.save(stream, "PNG", pnginfo=information)
    assert decode_crop_resize(stream.getvalue(), pixels=Pixels(exif=True)).shape == (5, 3, 3)


def test_damaged_exif_turns_no_image() -> None:
    """EXIF counts with each header that Pillow takes, a swapped 42 included; with another one nothing is turned."""
    data, exif = encoded(photograph(5, 3)), exif_of("<", 3, "H2x")
    for header, shape in [(b"II*\0", (5, 3, 3)), (b"II\0*", (5, 3, 3)), (b"II\0\0", (3, 5, 3)), (b"XX*\0", (3, 5, 3))]:
        turned = with_metadata(data, exif.replace(b"II*\0", header))
        assert decode_crop_resize(turned, pixels=Pixels(exif=True)).shape == shape, header


@pytest.mark.parametrize("layout", ["HWC", "CHW"])
def test_forms_are_those_of_normalize_images(layout: Any) -> None:
    """A normalised result has the bytes of normalize_images, in both layouts, also in given memory."""
    data = encoded(photograph(60, 40))
    levels = decode_crop_resize(data, (24, 31))
    planes = normalize_images(levels, MEAN, STD)
    axes = (0, 1, 2) if layout == "CHW" else (1, 2, 0)
    form = Pixels(layout, MEAN, STD)
    out = np.empty(form.shape(24, 31), np.float32)
    assert decode_crop_resize(data, (24, 31), pixels=form, out=out) is out
    assert out.tobytes() == planes.transpose(axes).tobytes()
    plain = decode_crop_resize(data, (24, 31), pixels=Pixels(layout))
    assert np.array_equal(plain if layout == "HWC" else plain.transpose(1, 2, 0), levels)


@pytest.mark.parametrize(("progressive", "box"), [(False, (5, 5, 20, 12)), (True, (0, 0, 40, 30))])
def test_damage_is_an_error_where_it_is_one_for_pillow(progressive: bool, box: Any) -> None:  # noqa: FBT001 - a case
    """A file cut anywhere is refused, and one with wrong bytes is an error or an image of the right shape."""
    data = encoded(photograph(40, 30), progressive=progressive)
    for size in range(3, len(data)):
        with pytest.raises(ps.errors.CorruptRecordError, match=r"truncated|libjpeg-turbo says"):
            decode_crop_resize(data[:size], box=box)
    rng = np.random.Generator(np.random.PCG64(3))
    for _ in range(300):
        damaged = np.frombuffer(data, np.uint8).copy()
        damaged[rng.integers(3, len(data), 3)] = rng.integers(0, 256, 3)
        try:
            result = decode_crop_resize(damaged, 8)
        except (OSError, SyntaxError):  # the latter is Pillow's, for kinds of JPEG that only Pillow may read
            continue
        assert result.shape == (8, 8, 3)


def test_a_marker_in_the_middle_of_a_scan_counts_as_for_pillow() -> None:
    """A second image or scan is an error, also outside of the box; a restart, a comment and the end are none."""
    data = encoded(photograph(40, 30))
    markers = (b"\xff\xd8", b"\xff\xc0", b"\xff\xda", b"\xff\xd3", b"\xff\xfe\0\2", b"\xff\xd9")
    for marker, box in itertools.product(markers, (None, (3, 2, 30, 9), (3, 22, 30, 29))):
        damaged = data[: len(data) * 3 // 4] + marker + data[len(data) * 3 // 4 :]
        try:
            expected = np.asarray(pillow().open(io.BytesIO(damaged)).crop(box or (0, 0, 40, 30)))
        except OSError:
            assert marker[1] in b"\xd8\xc0\xda"
            with pytest.raises(ps.errors.CorruptRecordError, match=r"libjpeg-turbo says"):
                decode_crop_resize(damaged, box=box)
        else:
            assert np.array_equal(decode_crop_resize(damaged, box=box), expected), (marker, box)


def test_a_file_that_begins_as_no_jpeg_is_not_decoded_as_one() -> None:
    """libjpeg-turbo would look for a marker behind bytes that are none; Pillow refuses such a file."""
    data = encoded(photograph(40, 30))
    with pytest.raises(ps.errors.CorruptRecordError, match="of no format that Pillow reads"):
        decode_crop_resize(data[:2] + b"\0" + data[2:])


@pytest.mark.parametrize("mode", ["RGB", "CMYK"])
def test_a_box_of_a_progressive_file_without_its_last_scans_is_that_of_the_whole(mode: str) -> None:
    """libjpeg-turbo estimates what such a file lacks from the blocks around, also those outside of the box."""
    data = encoded(photograph(103, 71).convert(mode), progressive=True)
    few_scans = data[: data.rindex(b"\xff\xda", 0, data.rindex(b"\xff\xda"))] + b"\xff\xd9"
    whole = decode_crop_resize(few_scans)
    for left, top, right, bottom in boxes(103, 71, 20):
        part = whole[top:bottom, left:right]
        assert np.array_equal(decode_crop_resize(few_scans, box=(left, top, right, bottom)), part)


def test_other_formats_are_decoded_by_pillow() -> None:
    """Transparent, 16-bit and palette images have the pixels of Pillow's conversion to RGB."""
    images = [(photograph(10, 6).convert(mode), form) for mode, form in (("RGBA", "PNG"), ("P", "GIF"), ("LA", "PNG"))]
    images.append((pillow().fromarray(np.arange(60, dtype=np.uint16).reshape(6, 10) * 1000), "PNG"))
    for image, form in images:
        stream = io.BytesIO()
        image.save(stream, form)
        expected = np.asarray(pillow().open(stream).convert("RGB"))[1:5, 2:9]
        assert np.array_equal(decode_crop_resize(stream.getvalue(), box=(2, 1, 9, 5)), expected)


PIXELS: Final = np.zeros((4, 6, 3), np.uint8)


WRONG: list[tuple[Any, str]] = [
    ((PIXELS, 0), r"size must be a positive int, or \(height, width\); got size=0"),
    ((PIXELS, (2, 3, 4)), r"size must be a positive int"),
    ((PIXELS, 2, (0, 0, 7, 4)), r"box must be .* got box=\(0, 0, 7, 4\) for an image of width 6 and height 4"),
    ((PIXELS, 2, (3, 0, 3, 4)), "box must be"),
    ((PIXELS, 2, 5), r"box must be four ints, .* got box=5"),
    ((PIXELS.astype(np.float32), 2), r"an image must be the bytes of a file, .* got float32 of shape \(4, 6, 3\)"),
    ((PIXELS.astype(np.int8), 2), r"an image must be .* its pixels as uint8 .* got int8 of shape \(4, 6, 3\)"),
    (({"bytes": b""}, 2), r"an image must be the bytes of a file, .* got a dict. Name the leaf .* with key="),
]


def test_wrong_arguments_are_errors() -> None:
    """A size, a box, an image or a form that isn't as described is an error with the rule and the value."""
    for (data, size, *box), message in WRONG:
        with pytest.raises(ps.errors.UsageError, match=message):
            decode_crop_resize(data, size, box=box[0] if box else None)
    flips: tuple[Any, ...] = 0.5, "no", -1, None, 256
    for flip in flips:
        with pytest.raises(ps.errors.UsageError, match=r"flip must be True or False; got flip="):
            decode_crop_resize(PIXELS, flip=flip)
    forms: tuple[Any, ...] = {"layout": "NHWC"}, {"mean": MEAN}, {"mean": MEAN, "std": (1, 0, 1)}, {"exif": "yes"}
    for form in forms:
        with pytest.raises(ps.errors.UsageError, match=r"layout|mean|std|exif"):
            Pixels(**form)


def test_a_file_that_pillow_refuses_is_a_corrupt_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown format and too many pixels are errors with the length and the first bytes."""
    with pytest.raises(ps.errors.CorruptRecordError, match=r"got 0 bytes, which are of no format .* begin with b''"):
        decode_crop_resize(b"")
    stream = io.BytesIO()
    pillow().new("RGB", (20, 20)).save(stream, "PNG")
    monkeypatch.setattr(pillow(), "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(ps.errors.CorruptRecordError, match=r"Pillow refuses: .*pixels.* begin with b'.x89PNG"):
        decode_crop_resize(stream.getvalue())


SMALL_MEMORY: Final = """
import resource
import numpy as np
from penstock.images import decode_crop_resize
dot = np.full((4, 4, 3), 9, np.uint8)
decode_crop_resize(dot, 2)
line = np.empty((1, 8_000_000, 3), np.uint8)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 200_000_000,) * 2)
for _ in range(2):
    try:
        decode_crop_resize(dot, (1, 8_000_000), out=line)
    except MemoryError:
        print("MemoryError")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer ends such a process")
@pytest.mark.usefixtures("forked_programs")
def test_a_resize_that_lacks_memory_fails_each_time() -> None:
    """The weights of a resize that failed aren't used by the next one of the same sizes."""
    ended = outcome(SMALL_MEMORY)
    assert (ended.returncode, ended.stdout) == (0, "MemoryError\n" * 2), ended.stderr


def nothing_read(*_: object) -> tuple[int, bool, str]:
    """Fail as the native module without a library does."""
    return 0, True, ""


def test_a_build_without_libjpeg_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without libjpeg-turbo a JPEG is an error, which says what to install."""
    data = encoded(photograph(9, 9))
    monkeypatch.setattr("penstock._native.has_jpeg", lambda: False)
    monkeypatch.setattr("penstock._native.read_image_sizes", nothing_read)
    with pytest.raises(ps.errors.UsageError, match=r"decodes JPEGs .*apt install libjpeg62-turbo-dev"):
        decode_crop_resize(data)
