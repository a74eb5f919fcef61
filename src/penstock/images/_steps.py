"""Functions for steps of a dataset that decode images: whole ones or their centre, and random crops.

Both are function objects with a method `apply_block`, by which the engine has a block of images decoded into one array,
JPEGs in one native call. A result doesn't depend on the block: each is what a call for one element returns.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from numbers import Real
from typing import Any, Final, TypeAlias, cast

import numpy as np

from penstock._tree import Element
from penstock.errors import UsageError
from penstock.images._decode import (
    PLAIN,
    Box,
    Pixels,
    Size,
    check_pixels,
    checked_size,
    decode_into,
    image_sizes,
    runs_of,
    stored_images,
)

Generator: TypeAlias = "np.random.Generator"

_MOST_TRIES: Final = 10


@dataclass(frozen=True)
class Decode:
    """A function for `map` that decodes images and resizes them to one size.

    An element is the image's bytes, as `decode_crop_resize` takes them, and becomes an array; or, with `key`, a dict,
    whose leaf `key` has the bytes, and which becomes a dict with the array.

    Attributes:
        size: the (height, width) of results, or an int for both.
        central: a fraction above 0 and up to 1: only the centre of the image is used, the largest box in the
            proportions of `size`, times this fraction. The usual validation, which resizes the shorter side to 256 and
            crops 224, is size 224 with 224 / 256. None uses the whole image, stretched to `size`.
        pixels: the layout, dtype and direction of results; by default uint8 (height, width, 3).
        key: the name of the leaf with the bytes, if elements are dicts.
        name: the name of the leaf for the array, which takes the place of `key`.

    Raises:
        UsageError: an attribute isn't as described.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> photos = [{"file": np.full((4, 6, 3), level, np.uint8), "label": level} for level in (0, 50)]
        >>> decoded = ps.read(photos).map(ps.images.Decode(2, key="file"))
        >>> decoded[1]["image"].tolist(), decoded[1]["label"]
        ([[[50, 50, 50], [50, 50, 50]], [[50, 50, 50], [50, 50, 50]]], 50)
    """

    size: Size
    central: float | None = None
    pixels: Pixels = PLAIN
    key: str | None = None
    name: str = "image"

    def __post_init__(self) -> None:
        checked_size(self.size)
        check_pixels(self.pixels)
        if self.central is not None and not (_is_number(self.central) and 0 < self.central <= 1):
            raise UsageError(f"central must be above 0 and at most 1, or None; got central={self.central!r}")

    def __call__(self, element: object, /) -> Element:
        """Return the decoded image, or the element with it."""
        return self.apply_block([element])[0]

    def apply_block(self, elements: Sequence[object], /) -> list[Element]:
        """Return the results for several elements, whose images are rows of one array."""
        images = stored_images(_images_of(elements, self.key))
        height, width = checked_size(self.size)
        out = np.empty((len(images), *self.pixels.shape(height, width)), self.pixels.dtype)
        for rows in runs_of(images):
            stored = images[rows]
            boxes = np.zeros((len(stored), 4), np.int64)
            if self.central is not None:
                sizes = image_sizes(stored, self.pixels).tolist()
                boxes[:] = [_central_box(across, down, width / height, self.central) for across, down in sizes]
            decode_into(out[rows], stored, boxes, np.zeros(len(stored), np.uint8), self.pixels)
        return _results(elements, list(out), self.key, self.name)


@dataclass(frozen=True)
class RandomResizedCrop:
    """A function for `random_map` that decodes a random box of each image and resizes it, as torchvision's does.

    The box has a random share of the image's area and random proportions, which are drawn up to ten times, until the
    box is inside the image; after that it is the largest central one whose proportions are allowed. The numbers are
    drawn from the element's own generator, so they depend on nothing but the dataset, the epoch and the position; they
    are not the numbers that torchvision draws.

    Attributes:
        size: the (height, width) of results, or an int for both.
        scale: the smallest and the largest share of the image's area, above 0.
        ratio: the smallest and the largest width of the box, divided by its height.
        flip: the probability that a result is mirrored, left to right.
        pixels: the layout, dtype and direction of results; by default uint8 (height, width, 3).
        key: the name of the leaf with the bytes, if elements are dicts; else elements are the bytes, as for `Decode`.
        name: the name of the leaf for the array, which takes the place of `key`.

    Raises:
        UsageError: an attribute isn't as described.

    Example:
        >>> import numpy as np
        >>> import penstock as ps
        >>> photos = [np.full((40, 60, 3), level, np.uint8) for level in (0, 50)]
        >>> crops = ps.read(photos, seed=7).random_map(ps.images.RandomResizedCrop(8, flip=0.5))
        >>> crops[1].shape, int(crops[1].max())
        ((8, 8, 3), 50)
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0
    pixels: Pixels = PLAIN
    key: str | None = None
    name: str = "image"

    def __post_init__(self) -> None:
        checked_size(self.size)
        check_pixels(self.pixels)
        for name, given in {"scale": self.scale, "ratio": self.ratio}.items():
            if not _is_range(given):
                raise UsageError(f"{name} must be two numbers (low, high) with 0 < low <= high; got {given!r}")
        if not (_is_number(self.flip) and 0 <= self.flip <= 1):
            raise UsageError(f"flip must be a probability, from 0 to 1; got flip={self.flip!r}")

    def __call__(self, element: object, rng: Generator, /) -> Element:
        """Return a random crop of the image, or the element with it."""
        return self.apply_block([element], [rng])[0]

    def apply_block(self, elements: Sequence[object], rngs: Iterable[Generator], /) -> list[Element]:
        """Return the results for several elements, whose images are rows of one array."""
        images, generators = stored_images(_images_of(elements, self.key)), iter(rngs)
        out = np.empty((len(images), *self.pixels.shape(*checked_size(self.size))), self.pixels.dtype)
        for rows in runs_of(images):
            stored = images[rows]
            sizes = image_sizes(stored, self.pixels).tolist()
            flips = np.zeros(len(stored), np.uint8)
            boxes = np.zeros((len(stored), 4), np.int64)
            drawn = zip(sizes, islice(generators, len(sizes)), strict=True)
            for row, ((width, height), rng) in enumerate(drawn):
                flips[row] = rng.random() < self.flip
                boxes[row] = self._random_box(width, height, rng)
            decode_into(out[rows], stored, boxes, flips, self.pixels)
        return _results(elements, list(out), self.key, self.name)

    def _random_box(self, width: int, height: int, rng: Generator) -> Box:
        (small, large), (narrow, wide) = self.scale, self.ratio
        for _ in range(_MOST_TRIES):
            share, proportion, across, down = rng.random(4).tolist()
            area = width * height * (small + (large - small) * share)
            ratio = narrow * (wide / narrow) ** proportion  # uniform on a logarithmic scale
            columns, lines = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < columns <= width and 0 < lines <= height:
                left, top = int(across * (width - columns + 1)), int(down * (height - lines + 1))
                return left, top, left + columns, top + lines
        return _central_box(width, height, min(max(width / height, narrow), wide), 1)


def _is_number(given: object) -> bool:
    return isinstance(given, Real)


def _is_range(given: object) -> bool:
    ends = cast("tuple[object, ...]", given) if isinstance(given, tuple | list) else ()
    numbers = [float(end) for end in ends if isinstance(end, Real)]
    return len(ends) == len(numbers) == 2 and 0 < numbers[0] <= numbers[1] < math.inf


def _central_box(width: int, height: int, ratio: float, fraction: float) -> Box:
    """Return the largest box of a ratio of width to height in the middle of an image, times a fraction."""
    columns = max(round(min(width, height * ratio) * fraction), 1)
    lines = max(round(min(height, width / ratio) * fraction), 1)
    left, top = (width - columns) // 2, (height - lines) // 2
    return left, top, left + columns, top + lines


def _images_of(elements: Sequence[object], key: str | None) -> Sequence[object]:
    """Return the leaf of each element that has the image.

    Raises:
        UsageError: an element is a dict and no key is given, is no dict though one is given, or lacks the key.
    """
    if key is None:
        return elements
    for element in elements:
        if not isinstance(element, Mapping):
            raise UsageError(f"with key={key!r} an element must be a dict; got a {type(element).__qualname__}")
        if key not in element:
            raise UsageError(f"key must be a name in the element; got key={key!r}, and the element has {[*element]!r}")
    return [cast("Mapping[str, object]", element)[key] for element in elements]


def _results(elements: Sequence[object], images: list[Any], key: str | None, name: str) -> list[Element]:
    """Return the images, or the elements with the image in place of the leaf that had the bytes.

    Raises:
        UsageError: an element has another leaf of the image's name.
    """
    if key is None:
        return images
    given = cast("Sequence[Mapping[str, object]]", elements)
    if name != key and any(name in element for element in given):
        raise UsageError(
            f"the image needs a name of its own; the element has a leaf name={name!r} beside key={key!r}. Pass another "
            f"name, or name={key!r}, or leave that leaf out in a map."
        )
    return [
        {name if leaf == key else leaf: image if leaf == key else value for leaf, value in element.items()}
        for element, image in zip(given, images, strict=True)
    ]
