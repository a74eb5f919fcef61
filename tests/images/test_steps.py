"""Steps that decode images give the same elements alone, in blocks and in every place, and name or drop bad files."""

import io
import tracemalloc
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

import penstock as ps
from penstock.images import Decode, Pixels, RandomResizedCrop, decode_crop_resize
from tests.images.photographs import encoded, photograph
from tests.places import in_places

NORMAL = Pixels("CHW", mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.3), exif=True)


def files(count: int) -> list[dict[str, Any]]:
    """Return records with JPEG files of different sizes."""
    sizes = [(60 + 7 * number, 90 - 5 * number) for number in range(count)]
    return [{"file": encoded(photograph(*size)), "label": number} for number, size in enumerate(sizes)]


@in_places("inline", "processes")
@pytest.mark.parametrize("random", [False, True])
def test_every_place_decodes_the_same(place: dict[str, Any], random: bool) -> None:  # noqa: FBT001 - a case
    """Batches of whole images and of random crops have the bytes of the definition, element by element."""
    read = ps.read(files(11), seed=5).shuffle()
    if random:
        dataset = read.random_map(RandomResizedCrop(24, flip=0.5, pixels=NORMAL, key="file"))
    else:
        dataset = read.map(Decode((20, 30), central=0.9, key="file"))
    elements = [dataset[position] for position in range(11)]
    with ps.Loader(dataset.batch(4), **place) as loader:
        batches = [*loader]
    got = np.concatenate([batch["image"] for batch in batches])
    assert got.tobytes() == np.stack([element["image"] for element in elements]).tobytes()
    labels = np.concatenate([batch["label"] for batch in batches])
    assert labels.tolist() == [element["label"] for element in elements]


def test_a_central_box_is_pillows_center_crop() -> None:
    """The centre has the proportions of the size, and the share of the largest such box."""
    data = encoded(photograph(100, 60))
    assert np.array_equal(Decode((20, 20), central=0.5)(data), decode_crop_resize(data, 20, box=(35, 15, 65, 45)))
    assert np.array_equal(Decode((20, 40), central=1)(data), decode_crop_resize(data, (20, 40), box=(0, 5, 100, 55)))


def box_of(crop: NDArray[np.uint8]) -> tuple[float, float, float, float]:
    """Return (left, top, width, height) of a crop of ramps; the width of a mirrored one is negative."""
    edges = crop.astype(float)
    count = len(crop)
    width, height = edges[0, -1, 0] - edges[0, 0, 0], edges[-1, 0, 1] - edges[0, 0, 1]
    scale = count / (count - 1)
    return min(edges[0, 0, 0], edges[0, -1, 0]), edges[0, 0, 1], width * scale, height * scale


def test_random_boxes_are_drawn_as_torchvision_draws_them() -> None:
    """Shares of the area and proportions fill their ranges and stay inside; half of the crops are mirrored."""
    ramps = np.zeros((200, 250, 3), np.uint8)
    ramps[:, :, 0], ramps[:, :, 1] = np.arange(250), np.arange(200)[:, np.newaxis]
    step = RandomResizedCrop(64, scale=(0.1, 0.6), ratio=(0.5, 2.0), flip=0.5)
    crops = [*ps.range(400, seed=3).map(lambda _: ramps).random_map(step)]
    found = np.array([box_of(crop) for crop in crops])
    share = np.abs(found[:, 2]) * found[:, 3] / ramps[:, :, 0].size
    ratio = np.abs(found[:, 2]) / found[:, 3]
    assert 0.08 < share.min() < 0.15
    assert 0.5 < share.max() < 0.63
    assert abs(np.median(share) - 0.35) < 0.06  # uniform, but for boxes that don't fit
    assert 0.46 < ratio.min() < 0.6
    assert 1.6 < ratio.max() < 2.2
    assert abs(np.median(np.log(ratio))) < 0.15
    assert 150 < (found[:, 2] < 0).sum() < 250
    assert len(np.unique(found.round(), axis=0)) > 390
    narrow = np.zeros((10, 200, 3), np.uint8)
    narrow[:, :, 0] = np.arange(200)
    (whole,) = ps.read([narrow], seed=1).random_map(RandomResizedCrop(10, scale=(1, 1)))
    assert np.array_equal(whole, decode_crop_resize(narrow, 10, box=(93, 0, 106, 10)))


@pytest.mark.parametrize("step", [Decode(8), Decode(8, central=0.5), RandomResizedCrop(8, flip=0.5)])
def test_a_block_keeps_the_pixels_of_one_image_at_a_time(step: Decode | RandomResizedCrop) -> None:
    """A block of PNG and JPEG files has the results of its elements, and needs the memory of a single image."""
    picture, stream = photograph(300, 200), io.BytesIO()
    picture.save(stream, "PNG")
    png, jpeg = stream.getvalue(), encoded(picture)
    block = [jpeg, png, png, jpeg, jpeg, *[png] * 10, jpeg]
    alone, rngs = ([np.random.Generator(np.random.PCG64(row)) for row in range(len(block))] for _ in range(2))
    tracemalloc.start()
    try:
        results = step.apply_block(block) if isinstance(step, Decode) else step.apply_block(block, rngs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * 300 * 200 * 3
    for file, rng, result in zip(block, alone, results, strict=True):
        assert np.array_equal(result, step(file) if isinstance(step, Decode) else step(file, rng))


def test_a_bad_file_is_named_or_left_out() -> None:
    """A truncated file among good ones fails alone, with its record in the note, or is left out alone."""
    records = files(8)
    records[5]["file"] = records[5]["file"][:400]
    read = ps.read(records, seed=1)
    with pytest.raises(ps.errors.CorruptRecordError, match=r"got 400 bytes.*truncated") as caught:
        list(read.map(Decode(8, key="file")).batch(8))
    assert "key 5" in "".join(caught.value.__notes__)
    kept = [*read.map(Decode(8, key="file"), on_error="skip")]
    assert [element["label"] for element in kept] == [0, 1, 2, 3, 4, 6, 7]


WRONG: list[tuple[Any, Any, str]] = [
    (lambda: Decode(0), None, "size must be"),
    (lambda: Decode(8, central=0), None, "central must be above 0"),
    (lambda: RandomResizedCrop(8, scale=(0.5, 0.1)), None, "scale must be two numbers"),
    (lambda: Decode(8, central=cast("Any", "a")), None, "central must be above 0 .* got central='a'"),
    (lambda: Decode(8, pixels=cast("Any", None)), None, "pixels must be a penstock.images.Pixels, .*=None"),
    (lambda: RandomResizedCrop(8, scale=cast("Any", 0.5)), None, "scale must be two numbers .* got 0.5"),
    (lambda: RandomResizedCrop(8, pixels=cast("Any", "CHW")), None, "pixels must be .* got pixels='CHW'"),
    (lambda: RandomResizedCrop(8, flip=2), None, "flip must be a probability"),
    (lambda: Decode(8, key="jpg"), b"", "with key='jpg' an element must be a dict; got a bytes"),
    (lambda: Decode(8, key="jpg"), {"png": b""}, r"got key='jpg', and the element has \['png'\]"),
]


def test_wrong_steps_are_errors() -> None:
    """A number out of its range is an error where the step is made, a missing leaf where it is called."""
    for step, element, message in WRONG:
        with pytest.raises(ps.errors.UsageError, match=message):
            step()(element)
    with pytest.raises(ps.errors.UsageError, match="a leaf name='image' beside key='file'"):
        Decode(8, key="file")({**files(1)[0], "image": 1})
