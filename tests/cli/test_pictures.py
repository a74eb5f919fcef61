"""The digits are written as PNG files that hold exactly what scikit-learn brought."""

import io
from pathlib import Path

import numpy as np
import pytest

from penstock._cli.demo.digits import BRIGHTNESS, NUM_DIGITS, find_script, load_digits, write_digits
from penstock._cli.demo.report import decode_picture, encode_png

image_module = pytest.importorskip("PIL.Image")


def read(path: Path) -> np.ndarray:
    """Return a picture's pixels as Pillow decodes them."""
    with image_module.open(path) as image:
        return np.asarray(image)


def test_every_digit_survives_its_png_file(tmp_path: Path) -> None:
    """Each of the 1,797 files, decoded and divided by the brightness of a level, is the digit in its class's folder."""
    pytest.importorskip("sklearn")
    shares: list[float] = []
    assert write_digits(tmp_path, shares.append) == NUM_DIGITS
    images, labels = load_digits()
    paths = sorted(tmp_path.glob("*/*.png"), key=lambda path: path.name)
    assert len(paths) == len(images) == NUM_DIGITS == 1797
    for path, levels, label in zip(paths, images, labels, strict=True):
        assert path.parent.name == str(label)
        assert np.array_equal(read(path), levels * BRIGHTNESS)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_complete_files_are_not_written_again(tmp_path: Path) -> None:
    """A complete folder is left alone; if a file is missing, only that file is written."""
    pytest.importorskip("sklearn")
    write_digits(tmp_path, lambda _: None)
    shares: list[float] = []
    write_digits(tmp_path, shares.append)
    assert shares == []
    gone, kept = tmp_path / "0" / "0000.png", tmp_path / "1" / "0001.png"
    expected = gone.read_bytes()
    gone.unlink()
    kept.write_bytes(b"kept")
    write_digits(tmp_path, lambda _: None)
    assert gone.read_bytes() == expected
    assert kept.read_bytes() == b"kept"


@pytest.mark.parametrize("shape", [(8, 8), (1, 1), (5, 7, 3)])
def test_png_loses_nothing(shape: tuple[int, ...]) -> None:
    """Decoding what was encoded gives every pixel back."""
    pixels = (np.arange(np.prod(shape)) * 37 % 256).astype(np.uint8).reshape(shape)
    assert np.array_equal(np.asarray(image_module.open(io.BytesIO(encode_png(pixels)))), pixels)


def test_any_picture_becomes_a_square_of_colours() -> None:
    """Grey, transparent and oblong pictures come out as (size, size, 3), of their own colour."""
    for mode, colour, expected in [
        ("L", 200, [200] * 3),
        ("RGBA", (9, 8, 7, 255), [9, 8, 7]),
        ("RGB", (1, 2, 3), [1, 2, 3]),
    ]:
        file = io.BytesIO()
        image_module.new(mode, (31, 17), colour).save(file, "PNG")
        pixels = decode_picture(file.getvalue(), 16)
        assert pixels.dtype == np.uint8
        assert np.array_equal(pixels, np.broadcast_to(np.array(expected, np.uint8), (16, 16, 3)))


def test_the_script_is_found() -> None:
    """The script to copy is a file, and the one that users know by its name."""
    assert find_script().name == "digits.py"
    assert "penstock" in find_script().read_text(encoding="utf-8")
