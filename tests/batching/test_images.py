"""Normalised images have the bytes that NumPy computes by the same formula, for images in any memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from penstock.batching import normalize_images
from penstock.errors import UsageError
from tests.batching.strategies import numbered

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

sizes = st.tuples(st.integers(0, 4), st.integers(0, 40), st.integers(1, 5))
means = st.floats(-4, 4)
stds = st.floats(1e-3, 1e3)


def by_numpy(images: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> NDArray[np.float32]:
    """Return the planes by the documented formula, one operation on the whole array at a time."""
    means64, stds64 = np.array(mean, np.float64), np.array(std, np.float64)
    scale, shift = (1 / (255 * stds64)).astype(np.float32), (-means64 / stds64).astype(np.float32)
    product = images.astype(np.float32) * scale
    return np.ascontiguousarray(np.moveaxis(product + shift, -1, -3))


def viewed(image: NDArray[np.uint8], form: str) -> NDArray[np.uint8]:
    """Return the same image as a view of other memory."""
    height, width, channels = image.shape
    match form:
        case "crop":
            parent = np.full((height + 3, width + 5, channels), 77, np.uint8)
            view = parent[2 : 2 + height, 3 : 3 + width]
        case "upside down":
            view = np.empty_like(image)[::-1]
        case "mirrored":
            view = np.empty_like(image)[:, ::-1]
        case "planes":
            view = np.empty((channels, height, width), np.uint8).transpose(1, 2, 0)
        case "channels reversed":
            view = np.empty_like(image)[..., ::-1]
        case "one line":
            return np.broadcast_to(image[:1], image.shape)
        case _:
            return image
    view[...] = image
    return view


FORMS = ("plain", "crop", "upside down", "mirrored", "planes", "channels reversed", "one line")


@given(st.data(), sizes, st.integers(1, 4), st.integers(1, 3))
def test_the_bytes_are_those_of_the_formula(
    data: st.DataObject, size: tuple[int, int, int], rows: int, num_threads: int
) -> None:
    """For images of any size, memory and number of channels the result equals NumPy's, bit by bit."""
    mean = data.draw(st.lists(means, min_size=size[2], max_size=size[2]))
    std = data.draw(st.lists(stds, min_size=size[2], max_size=size[2]))
    images = [viewed(numbered(np.dtype("u1"), size, row), data.draw(st.sampled_from(FORMS))) for row in range(rows)]
    expected = by_numpy(np.stack(images), mean, std)
    planes = normalize_images(images, mean, std, num_threads=num_threads)
    assert (planes.dtype, planes.shape) == (np.dtype(np.float32), expected.shape)
    assert planes.tobytes() == expected.tobytes()


@given(st.tuples(st.just(2), st.just(11), st.integers(1, 4)), st.sampled_from(FORMS), st.integers(0, 3))
def test_a_batch_keeps_its_row_axis_and_an_image_has_none(size: tuple[int, int, int], form: str, rows: int) -> None:
    """An array with a row axis gives planes with a row axis; a single image gives planes without one."""
    image = viewed(numbered(np.dtype("u1"), size, 5), form)
    mean, std = [0.5] * size[2], [0.25] * size[2]
    batch = np.stack([image] * rows) if rows else np.empty((0, *size), np.uint8)
    assert np.array_equal(normalize_images(batch, mean, std), by_numpy(batch, mean, std))
    single = normalize_images(image, mean, std)
    assert single.shape == (size[2], *size[:2])
    assert np.array_equal(single, by_numpy(image, mean, std))


@given(means, stds)
def test_the_error_is_within_the_documented_bound(mean: float, std: float) -> None:
    """No byte's value differs from the exact one by more than the documented bound."""
    every = np.arange(256, dtype=np.uint8).reshape(1, 256, 1)
    exact = (np.arange(256) / 255 - mean) / std
    found = normalize_images(every, [mean], [std]).astype(np.float64).ravel()
    assert np.abs(found - exact).max() <= (3 + 2 * abs(mean)) / std * 2.0**-24 * (1 + 1e-6)


def test_means_and_deviations_may_be_any_sequence() -> None:
    """Tuples, lists and arrays of the same numbers give the same bytes, the first time and the next."""
    images = numbered(np.dtype("u1"), (2, 3, 9, 3), 4)
    kinds: list[Any] = [tuple, list, list, np.array, np.float32]
    for kind in kinds:
        mean, std = kind((0.5, 0.25, 0)), kind((1, 0.5, 0.25))
        assert np.array_equal(normalize_images(images, mean, std), by_numpy(images, (0.5, 0.25, 0), (1, 0.5, 0.25)))
    large = numbered(np.dtype("u1"), (9, 300, 301, 3), 1)[:, 20:, 31:]
    assert normalize_images(large, MEAN, STD, num_threads=3).tobytes() == by_numpy(large, MEAN, STD).tobytes()


def test_out_is_written_and_returned() -> None:
    """The result is written into given memory, such as a part of a larger array, and nowhere else."""
    images = numbered(np.dtype("u1"), (2, 3, 9, 3), 4)
    slot = np.full((4, 3, 3, 9), -1, np.float32)
    out = slot[1:3]
    assert normalize_images(images, MEAN, STD, out=out) is out
    assert np.array_equal(out, by_numpy(images, MEAN, STD))
    assert (slot[[0, 3]] == -1).all()
    row = slot[3]
    assert normalize_images(images[0], MEAN, STD, out=row) is row
    assert np.array_equal(row, out[0])


def message(images: object, *, mean: object = MEAN, std: object = STD, **keywords: Any) -> str:
    """Return the message that a call is refused with."""
    given_images: Any = images
    given_mean: Any = mean
    given_std: Any = std
    with pytest.raises(UsageError) as raised:
        normalize_images(given_images, given_mean, given_std, **keywords)
    return str(raised.value)


IMAGE = np.zeros((4, 5, 3), np.uint8)


def test_images_that_do_not_fit_are_refused() -> None:
    """The message names the image, and its dtype or type."""
    cases: list[tuple[object, str]] = [
        (np.zeros((4, 5, 3), np.float32), "images is float32 of shape (4, 5, 3)"),
        ([IMAGE, IMAGE.astype(np.int8)], "image 1 is int8 of shape (4, 5, 3)"),
        ([IMAGE, IMAGE[:3]], "image 0 is uint8 of shape (4, 5, 3) and image 1 is uint8 of shape (3, 5, 3)"),
        ([IMAGE, IMAGE[0]], "image 1 is uint8 of shape (5, 3)"),
        (IMAGE[0], "got uint8 of shape (5, 3)"),
        ([IMAGE[0]], "image 0 is uint8 of shape (5, 3)"),
        (np.zeros((4, 5, 0), np.uint8), "at least one channel"),
        ([], "got none"),
        ([IMAGE, None], "image 1 is a NoneType"),
        ([IMAGE, "a.jpg"], "image 1 is a str"),
        ({"image": IMAGE}, "images is a container"),
        (np.ma.masked_array(IMAGE), "a masked array"),
    ]
    for images, fault in cases:
        assert fault in message(images)


def test_numbers_for_other_channels_are_refused() -> None:
    """Mean and std must have one finite number for each channel; a deviation must divide in float32."""
    for numbers in ((0.5,), (0.5, 0.5, 0.5, 0.5), 0.5, [[0.5, 0.5, 0.5]], (0.5, np.nan, 0.5), "abc"):
        assert "mean must be one finite number for each of the 3 channels" in message(IMAGE, mean=numbers)
        assert "std must be one finite number for each of the 3 channels" in message(IMAGE, std=numbers)
    assert "std must be positive" in message(IMAGE, std=(1, 0, 1))
    assert "std must be positive" in message(IMAGE, std=(1, 1, -1))
    assert "finite in float32" in message(IMAGE, std=(1, 1, 1e-300))
    assert "finite in float32" in message(IMAGE, mean=(1, 1, 1e300))
    assert "num_threads=0" in message(IMAGE, num_threads=0)


def test_an_out_that_does_not_fit_is_refused() -> None:
    """The message has dtype and shape of the result and of out, or the image that the result would overwrite."""
    assert "got float64" in message(IMAGE, out=np.zeros((3, 4, 5)))
    assert "out must be float32 of shape (3, 4, 5)" in message(IMAGE, out=np.zeros((4, 5, 3), np.float32))
    other = np.zeros((3, 5, 4), np.float32).transpose(0, 2, 1)
    assert "one that isn't C-contiguous" in message(IMAGE, out=other)
    out = np.zeros((2, 3, 4, 5), np.float32)
    inside = out.view(np.uint8).reshape(-1)[60:120].reshape(4, 5, 3)
    assert "image 1 does" in message([IMAGE, inside], out=out)
    assert "image 1 does" in message([IMAGE, inside[::-1, ::-1]], out=out)
