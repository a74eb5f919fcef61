"""The conversion of uint8 images to normalised float32 planes in one pass, as the last step before the model.

This wraps the native code, which reads each byte once and writes each float once. It uses AVX2 if the processor has it,
and computes the same bytes without.
"""

import functools
from collections.abc import Sequence
from typing import Any, Final, NoReturn, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock.batching._leaf import LeafError, as_value
from penstock.batching._stack_arrays import check_num_threads, check_out
from penstock.errors import UsageError

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]

_UINT8: Final = np.dtype(np.uint8)
_FLOAT32: Final = np.dtype(np.float32)


def normalize_images(
    images: Bytes | Sequence[Bytes],
    mean: Sequence[float] | NDArray[Any],
    std: Sequence[float] | NDArray[Any],
    *,
    out: Floats | None = None,
    num_threads: int = 1,
) -> Floats:
    """Return uint8 images as float32 planes, (pixel / 255 - mean) / std for each channel, without the GIL.

    A value is `float32(pixel) * scale + shift`, where `scale = float32(1 / (255 * std))` and `shift = float32(-mean /
    std)` are computed in float64, and the product and the sum are each rounded to float32. NumPy's float32 arithmetic
    gives the same bytes, on every processor. A value differs from the exact one by at most
    `(3 + 2 * abs(mean)) / std * 2**-24`, about a millionth for the usual means and deviations.

    Images are read in place, with any strides. Images whose lines are contiguous bytes, such as crops and images turned
    upside down, are converted fastest; others, such as mirrored ones, take a few times as long.

    Args:
        images: uint8, of shape (rows, height, width, channels); or a list or tuple of images of one shape (height,
            width, channels); or one such image. Any number of channels.
        mean: for each channel, the number to subtract, on a scale where 255 is 1.
        std: for each channel, the positive number to divide by after that.
        out: the array for the result: float32, C-contiguous, writable, of the result's shape, overlapping no image. A
            new array by default.
        num_threads: the largest number of threads, the caller's included. The others are started for the call and end
            with it; each writes 4 MB or more, so smaller work has fewer.

    Returns:
        `out`, or a new array, float32 of shape (rows, channels, height, width); for one image without the rows.

    Raises:
        UsageError: the images aren't uint8 of one shape, `mean` or `std` don't have a valid number for each channel,
            `out` has another shape or dtype, or `num_threads` isn't positive. Then nothing has been written.

    Example:
        >>> image = np.array([[[0, 255, 51], [255, 0, 102]]], np.uint8)
        >>> normalize_images(image, mean=[0.5, 0, 0], std=[0.5, 1, 0.2])
        array([[[-1.,  1.]],
        <BLANKLINE>
               [[ 1.,  0.]],
        <BLANKLINE>
               [[ 1.,  2.]]], dtype=float32)
    """
    check_num_threads(num_threads)
    items, rows, image_shape = _items_of(images)
    height, width, channels = _axes_of(image_shape)
    scale, shift = scale_and_shift(mean, std, channels)
    shape = (*rows, channels, height, width)
    result = np.empty(shape, np.float32) if out is None else check_out(out, shape, _FLOAT32)
    batch = result.reshape(len(items), channels, height, width)
    stopped = _native.normalize_images(items, _UINT8, scale, shift, batch, num_threads)
    if stopped >= 0:
        _reject(items, stopped)
    return result if out is None else out


def _items_of(images: object) -> tuple[list[NDArray[Any]], tuple[int, ...], tuple[int, ...]]:
    """Return the images, the shape before theirs in the result (the rows, or nothing), and the shape of image 0.

    Raises:
        UsageError: they have none of the accepted forms, or there is no image.
    """
    if isinstance(images, (list, tuple)):
        given = cast("Sequence[object]", images)
        items = [_array_of(image, f"image {row}") for row, image in enumerate(given)]
        if not items:
            raise UsageError("normalize_images needs at least one image, for the shape; got none. Pass the rows.")
        return items, (len(items),), items[0].shape
    array = _array_of(images, "images")
    if array.ndim == 3:
        return [array], (), array.shape
    if array.ndim != 4:
        raise UsageError(
            "images must have the axes (rows, height, width, channels), or (height, width, channels) for one image; "
            f"got {array.dtype} of shape {array.shape}. Add the missing axes, such as image[..., np.newaxis]."
        )
    return list(array), array.shape[:1], array.shape[1:]


def _array_of(image: object, what: str) -> NDArray[Any]:
    """Return an image as a uint8 array.

    Raises:
        UsageError: it is none.
    """
    try:
        value = as_value(image)
    except LeafError as error:
        raise UsageError(f"images must be uint8 arrays; {what} is {error}. Convert it with np.asarray(…).") from None
    if not isinstance(value, np.ndarray):
        raise UsageError(f"images must be uint8 arrays; {what} is a {type(image).__qualname__}. Decode it first.")
    if value.dtype != _UINT8:
        raise UsageError(
            f"images must be uint8 arrays, of values from 0 to 255; {what} is {value.dtype} of shape {value.shape}. "
            "Pass the decoded bytes."
        )
    return value


def _axes_of(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return height, width and channels.

    Raises:
        UsageError: the shape has other than three axes, or no channel.
    """
    if len(shape) != 3 or shape[2] == 0:
        raise UsageError(
            "each image must have the axes (height, width, channels), and at least one channel; image 0 is uint8 of "
            f"shape {shape}. Add the missing axis, such as image[..., np.newaxis]."
        )
    return shape[0], shape[1], shape[2]


def scale_and_shift(mean: object, std: object, channels: int) -> tuple[Floats, Floats]:
    """Return the factor and the summand for the pixels of each channel, from a cache.

    For one image, computing them takes as long as the conversion.

    Raises:
        UsageError: as for `_computed`.
    """
    means, stds = _plain_numbers(mean), _plain_numbers(std)
    if means is None or stds is None:
        return _computed(mean, std, channels)
    return _cached(means, stds, channels)


def _plain_numbers(values: object) -> tuple[object, ...] | None:
    """Return a list or tuple of Python numbers as a key of the cache, or None for anything else."""
    if not isinstance(values, (list, tuple)):
        return None
    numbers = tuple(cast("Sequence[object]", values))
    return numbers if {*map(type, numbers)} <= {float, int} else None


@functools.lru_cache(maxsize=64)
def _cached(mean: tuple[object, ...], std: tuple[object, ...], channels: int) -> tuple[Floats, Floats]:
    scale, shift = _computed(mean, std, channels)
    scale.flags.writeable = shift.flags.writeable = False
    return scale, shift


def _computed(mean: object, std: object, channels: int) -> tuple[Floats, Floats]:
    """Return the factor and the summand for the pixels of each channel.

    Raises:
        UsageError: one of them wouldn't be finite, or `std` isn't positive.
    """
    means, stds = _numbers(mean, "mean", channels), _numbers(std, "std", channels)
    if not (stds > 0).all():
        raise UsageError(
            f"std must be positive, since channels are divided by it; got std={std!r}. Use 1 for an unchanged channel."
        )
    with np.errstate(over="ignore"):
        scale, shift = (1 / (255 * stds)).astype(np.float32), (-means / stds).astype(np.float32)
    if not (np.isfinite(scale).all() and np.isfinite(shift).all()):
        raise UsageError(
            f"1 / std and mean / std must be finite in float32; got mean={mean!r} and std={std!r}. "
            "Pass both on a scale where 255 is 1."
        )
    return scale, shift


def _numbers(values: object, name: str, channels: int) -> NDArray[np.float64]:
    """Return one number for each channel.

    Raises:
        UsageError: their number isn't that of the channels, or one isn't finite.
    """
    try:
        numbers = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        numbers = np.empty(0)
    if numbers.shape != (channels,) or not np.isfinite(numbers).all():
        raise UsageError(
            f"{name} must be one finite number for each of the {channels} channels; got {name}={values!r}. "
            f"Pass a sequence of {channels}, and images with channels last."
        )
    return numbers


def _reject(items: list[NDArray[Any]], row: int) -> NoReturn:
    """Raise the error for an image that cannot be written.

    Raises:
        UsageError: always.
    """
    shape, row_shape = items[0].shape, items[row].shape
    if row_shape != shape:
        raise UsageError(
            f"all images must be of one shape; image 0 is uint8 of shape {shape} and image {row} is uint8 of shape "
            f"{row_shape}. Crop or resize them to one shape."
        )
    raise UsageError(f"no image may overlap out; image {row} does. Pass a copy of it, or another out.")
