"""The decoding of stored images into one array, of one size and form.

This wraps the native code, which decodes, crops, turns, resizes, mirrors and normalises a block of images without the
GIL. Files that it doesn't read, such as PNGs, are decoded by Pillow; from there on the native code has their pixels.

A failure names no record: the engine adds a note with step, position and record to every exception of a function.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from penstock import _native
from penstock._optional import need
from penstock.batching import check_out, scale_and_shift
from penstock.errors import CorruptRecordError, UsageError

Size: TypeAlias = int | tuple[int, int]
Box: TypeAlias = tuple[int, int, int, int]
Integers: TypeAlias = NDArray[np.int64]

_JPEG: Final = b"\xff\xd8\xff"
_CHANNELS: Final = 3
_WHOLE: Final = (0, 0, 0, 0)
_UNCHANGED: Final = np.ones(_CHANNELS, np.float32)
_NO_LIBRARY: Final = (
    "penstock.images decodes JPEGs with libjpeg-turbo, which wasn't found when this copy of Penstock was built. "
    "Install it with its headers (apt install libjpeg62-turbo-dev, dnf install libjpeg-turbo-devel, brew install "
    "jpeg-turbo) and build Penstock again; or decode with Pillow, in a function of your own."
)


@dataclass(frozen=True)
class Pixels:
    """The form of decoded images: the layout, the dtype and the direction of their pixels.

    Attributes:
        layout: "HWC" for arrays of shape (height, width, 3), "CHW" for (3, height, width).
        mean: for red, green and blue the number to subtract, on a scale where 255 is 1. With `mean` and `std` results
            are float32, `(level / 255 - mean) / std`, rounded as by `penstock.batching.normalize_images`; without them
            they are uint8.
        std: for each channel, the positive number to divide by after that.
        exif: whether images are turned upright as EXIF's orientation says, like Pillow's `ImageOps.exif_transpose`:
            that of XMP where EXIF has none, and none that isn't an integer. A box is then one of the upright image. By
            default images are as they are stored, as Pillow decodes them.

    Raises:
        UsageError: `layout` is neither, only one of `mean` and `std` is given, they aren't valid numbers, or `exif` is
            neither True nor False.

    Example:
        >>> Pixels("CHW", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)).dtype
        dtype('float32')
    """

    layout: Literal["HWC", "CHW"] = "HWC"
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    exif: bool = False

    def __post_init__(self) -> None:
        if self.layout not in ("HWC", "CHW"):
            raise UsageError(f'layout must be "HWC" or "CHW"; got layout={self.layout!r}')
        if (self.mean is None) != (self.std is None):
            raise UsageError(
                f"mean and std belong together; got mean={self.mean!r} and std={self.std!r}. Pass both for float32, "
                "or none for uint8."
            )
        if self.mean is not None and self.std is not None:
            scale_and_shift(self.mean, self.std, _CHANNELS)
            object.__setattr__(self, "mean", tuple(map(float, self.mean)))
            object.__setattr__(self, "std", tuple(map(float, self.std)))
        object.__setattr__(self, "exif", checked_flag("exif", self.exif))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of results: uint8, or float32 if they are normalised."""
        return np.dtype(np.uint8 if self.mean is None else np.float32)

    def shape(self, height: int, width: int) -> tuple[int, int, int]:
        """Return the shape of a result of this height and width."""
        return (height, width, _CHANNELS) if self.layout == "HWC" else (_CHANNELS, height, width)


def checked_flag(name: str, flag: object) -> bool:
    """Return a flag as a bool.

    Raises:
        UsageError: `flag` is neither True nor False, nor 1 or 0.
    """
    if not (isinstance(flag, (int, np.bool_, np.integer)) and flag in (0, 1)):
        raise UsageError(f"{name} must be True or False; got {name}={flag!r}")
    return bool(cast("object", flag))


PLAIN: Final = Pixels()


def decode_crop_resize(
    data: object,
    size: Size | None = None,
    *,
    box: Box | None = None,
    flip: bool = False,
    pixels: Pixels = PLAIN,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return a box of a stored image, resized, as an array of red, green and blue.

    A JPEG is decoded natively, without the GIL: columns and lines outside of the box are not decoded. Grey images and
    those of four inks become red, green and blue as Pillow converts them. Other formats, and JPEGs that libjpeg-turbo
    doesn't read, are decoded by Pillow, if it is installed: `Image.open(...).convert("RGB")`.

    Resizing is antialiased, with the filter that Pillow calls BILINEAR; only pixels of the box count. A level differs
    by at most 1 from that of `image.crop(box).resize(size, BILINEAR)`. Without a size, pixels are exactly Pillow's, if
    the file is complete: what a progressive JPEG lacks is estimated, and versions of libjpeg-turbo do so differently.

    Args:
        data: the bytes of the file: bytes or another one-dimensional buffer; or pixels, uint8 (height, width, 3).
        size: the (height, width) of the result, or an int for both. Default: the box's.
        box: (left, top, right, bottom) in pixels, without `right` and `bottom`, as in Pillow. Default: all.
        flip: whether the result is mirrored, left to right.
        pixels: the result's layout, dtype and direction; by default uint8 (height, width, 3), as stored.
        out: the array for the result: C-contiguous, writable, of the result's shape and dtype. A new array by default.

    Returns:
        `out`, or a new array.

    Raises:
        UsageError: an argument isn't as described, the box isn't inside the image, or the file is a JPEG and this build
            of Penstock has no libjpeg-turbo.
        CorruptRecordError: the file is truncated, or its bytes are no valid JPEG. Where Pillow would accept damaged
            data with wrong pixels, so does this function. Also, Pillow knows no such format, or refuses so many pixels.
            Its other errors pass through: they are `OSError`s, too.
        MissingDependencyError: the file is no JPEG, and Pillow isn't installed.

    Example:
        >>> import numpy as np
        >>> grey = np.full((4, 6, 3), 128, np.uint8)
        >>> decode_crop_resize(grey, (1, 2), box=(0, 0, 4, 4)).tolist()
        [[[128, 128, 128], [128, 128, 128]]]
    """
    check_pixels(pixels)
    mirrored = checked_flag("flip", flip)
    stored = stored_images([data])
    if size is None or box is not None:
        width, height = image_sizes(stored, pixels)[0].tolist()
        box = (0, 0, width, height) if box is None else checked_box(box, width, height)
        size = (box[3] - box[1], box[2] - box[0]) if size is None else size
    height, width = checked_size(size)
    shape = pixels.shape(height, width)
    if out is None:
        out = np.empty(shape, pixels.dtype)
    else:
        check_out(out, shape, pixels.dtype)
    decode_into(out[np.newaxis], stored, np.array([box or _WHOLE], np.int64), np.array([mirrored], np.uint8), pixels)
    return out


def checked_size(size: object) -> tuple[int, int]:
    """Return (height, width).

    Raises:
        UsageError: `size` is neither a positive int nor two of them.
    """
    sides = cast("tuple[object, ...]", size) if isinstance(size, tuple) else (size, size)
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise UsageError(f"size must be a positive int, or (height, width); got size={size!r}")
    return cast("tuple[int, int]", sides)


def check_pixels(pixels: object) -> None:
    """Check the form of results.

    Raises:
        UsageError: `pixels` is no `Pixels`.
    """
    if not isinstance(pixels, Pixels):
        raise UsageError(f'pixels must be a penstock.images.Pixels, such as Pixels("CHW"); got pixels={pixels!r}')


def checked_box(box: object, width: int, height: int) -> Box:
    """Return the box.

    Raises:
        UsageError: it isn't four ints, or isn't inside the image.
    """
    sides = list(cast("Sequence[int]", box)) if hasattr(box, "__len__") else []
    if len(sides) != len(_WHOLE) or not all(hasattr(side, "__index__") for side in sides):
        raise UsageError(f"box must be four ints, (left, top, right, bottom); got box={box!r}")
    left, top, right, bottom = map(int, sides)
    if not (0 <= left < right <= width and 0 <= top < bottom <= height):
        raise UsageError(
            "box must be (left, top, right, bottom) with 0 <= left < right <= width and 0 <= top < bottom <= height; "
            f"got box={box!r} for an image of width {width} and height {height}"
        )
    return left, top, right, bottom


def stored_images(images: Sequence[object]) -> list[object]:
    """Return a list of images for the functions below, which replace those that Pillow has decoded by their pixels.

    Raises:
        UsageError: one is neither bytes nor pixels.
    """
    for image in images:
        if isinstance(image, bytes):
            continue
        try:
            view = memoryview(cast("Any", image))
        except TypeError:
            view = None
        if view is None or not view.c_contiguous or not _is_image(view):
            raise UsageError(
                "an image must be the bytes of a file, or its pixels as uint8 (height, width, 3), C-contiguous; got "
                f"{_described(image)}. Name the leaf of the element with key=, or convert it."
            )
    return list(images)


def _is_image(view: memoryview) -> bool:
    if view.ndim == 1:
        return view.format in ("B", "b", "c")
    is_picture = view.ndim == 3 and view.shape is not None and view.shape[2] == _CHANNELS and view.nbytes > 0
    return is_picture and view.format == "B"


def _described(image: object) -> str:
    if isinstance(image, np.ndarray):
        array = cast("NDArray[Any]", image)
        return f"{array.dtype} of shape {array.shape}"
    return f"a {type(image).__qualname__}"


def runs_of(stored: Sequence[object]) -> Iterator[slice]:
    """Yield the parts of a block to decode one after the other; the pixels that Pillow decodes are kept for one part.

    Each file for Pillow is a part. JPEGs and pixels that follow each other are one, for one native call.
    """
    begin = 0
    for row, image in enumerate(stored):
        view = memoryview(cast("Any", image))
        if view.ndim == 1 and bytes(view[: len(_JPEG)]) != _JPEG:
            if begin < row:
                yield slice(begin, row)
            yield slice(row, row + 1)
            begin = row + 1
    if begin < len(stored):
        yield slice(begin, len(stored))


def image_sizes(stored: list[object], pixels: Pixels) -> Integers:
    """Return the (width, height) of each image as it is shown.

    Raises:
        CorruptRecordError: a header can't be read.
    """
    sizes = np.zeros((len(stored), 2), np.int64)
    _complete(lambda start: _native.read_image_sizes(stored, pixels.exif, sizes, start), stored, pixels)
    return sizes


def decode_into(
    out: NDArray[Any], stored: list[object], boxes: Integers, flips: NDArray[np.uint8], pixels: Pixels
) -> None:
    """Write the images into the rows of an array.

    Args:
        out: uint8 or float32, (images, *shape of one).
        stored: the images.
        boxes: int64 (images, 4); zeros for all of an image.
        flips: uint8 (images,), 1 for a mirrored result.
        pixels: the form of the result, which `out` has.

    Raises:
        CorruptRecordError: an image can't be decoded.
    """
    if pixels.mean is None or pixels.std is None:
        decode: Callable[..., tuple[int, bool, str] | None] = _native.decode_images_to_bytes
        scale = shift = _UNCHANGED
    else:
        decode = _native.decode_images_to_floats
        scale, shift = scale_and_shift(pixels.mean, pixels.std, _CHANNELS)
    has_planes = pixels.layout == "CHW"
    _complete(
        lambda start: decode(stored, boxes, flips, pixels.exif, has_planes, scale, shift, out, start), stored, pixels
    )


def _complete(work: Callable[[int], tuple[int, bool, str] | None], stored: list[object], pixels: Pixels) -> None:
    """Do the work from image 0 on; after an image that only Pillow may read, go on with its pixels.

    Raises:
        CorruptRecordError: an image can't be decoded.
        UsageError: an image is a JPEG, and this build doesn't decode JPEGs.
    """
    failure = work(0)
    while failure is not None:
        index, is_for_pillow, reason = failure
        data = stored[index]
        is_jpeg = bytes(memoryview(cast("Any", data))[: len(_JPEG)]) == _JPEG
        if is_jpeg and not _native.has_jpeg():
            raise UsageError(_NO_LIBRARY)
        if is_jpeg and not is_for_pillow:
            raise CorruptRecordError(
                f"an image must be a complete JPEG file; got {len(cast('Any', data)):,} bytes, of which libjpeg-turbo "
                f'says: {reason}. Write the record again, or leave it out with on_error="skip".'
            )
        stored[index] = _decoded_by_pillow(data, pixels)
        failure = work(index)


def _decoded_by_pillow(data: object, pixels: Pixels) -> NDArray[np.uint8]:
    """Return an image's pixels, uint8 (height, width, 3).

    Raises:
        CorruptRecordError: Pillow knows no such format, or the header promises more pixels than Pillow allows.
        MissingDependencyError: Pillow isn't installed.
    """
    library = need("PIL.Image", "Pillow, which decodes images other than JPEGs,", extra="images")
    try:
        with library.open(io.BytesIO(cast("Any", data))) as image:
            shown = need("PIL.ImageOps", "Pillow", extra="images").exif_transpose(image) if pixels.exif else image
            return np.array(shown.convert("RGB"))
    except (library.UnidentifiedImageError, library.DecompressionBombError) as error:
        view = memoryview(cast("Any", data))
        if isinstance(error, library.UnidentifiedImageError):
            reason, remedy = "are of no format that Pillow reads", "Write the record again"
        else:
            reason, remedy = f"Pillow refuses: {error}", "If the image is wanted, raise PIL.Image.MAX_IMAGE_PIXELS"
        raise CorruptRecordError(
            f"an image must be a file that Pillow decodes; got {len(view):,} bytes, which {reason}. They begin with "
            f'{bytes(view[:16])!r}. {remedy}, or leave the record out with on_error="skip".'
        ) from error
