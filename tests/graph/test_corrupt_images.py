"""A corrupt image among good ones: the file that the error names, and the result of each `on_error`."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import SourceError
from penstock.events import Skipped, Substituted

PILLOW: Any = pytest.importorskip("PIL.Image")
FORMATS = {"png": "PNG", "jpg": "JPEG"}
CORRUPT = "cat/3"


def encoded(number: int, kind: str) -> bytes:
    """Return an image of noise, as a file's content."""
    pixels = (np.arange(32 * 32 * 3, dtype=np.uint64) * 2654435761 * (number + 1) >> 7).astype(np.uint8)
    file = io.BytesIO()
    PILLOW.fromarray(pixels.reshape(32, 32, 3)).save(file, FORMATS[kind])
    return file.getvalue()


@pytest.fixture(params=list(FORMATS))
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return an image folder of two classes of five images; one of them was cut short as a full disk would."""
    kind = request.param
    for number in range(10):
        path = tmp_path / ("cat", "dog")[number // 5] / f"{number % 5}.{kind}"
        path.parent.mkdir(exist_ok=True)
        content = encoded(number, kind)
        path.write_bytes(content[: len(content) // 2] if str(path.with_suffix("")).endswith(CORRUPT) else content)
    return tmp_path


def decode(record: Any) -> dict[str, Any]:
    """Return an image's pixels and label."""
    pixels = np.asarray(PILLOW.open(io.BytesIO(record["bytes"])).convert("RGB"))
    return {"image": pixels, "label": record["label"]}


def is_readable(record: Any) -> bool:
    """Return whether an image decodes, or raise."""
    return bool(decode(record)["image"].size)


def shuffled(folder: Path) -> ps.Dataset:
    """Return the images in a random order."""
    return ps.read(ps.sources.ImageFolder(folder), seed=3).shuffle()


def corrupt_position(folder: Path) -> int:
    """Return the position of the corrupt image."""
    source = ps.sources.ImageFolder(folder)
    keys = list(ps.range(10, seed=3).shuffle())
    return next(position for position, key in enumerate(keys) if source.paths[int(key)].startswith(CORRUPT))


STEPS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "decode": lambda dataset: dataset.map(decode),
    "is_readable": lambda dataset: dataset.filter(is_readable),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_error_names_the_file(folder: Path, step: str, num_workers: int) -> None:
    """The decoder's own error has step, epoch, position, key and file name, in every place."""
    (file,) = (path.relative_to(folder).as_posix() for path in folder.glob(f"{CORRUPT}.*"))
    note = f"in step {step!r} at epoch 0, position {corrupt_position(folder)}, key 3 (file {file!r})"
    dataset = STEPS[step](shuffled(folder))
    with pytest.raises((OSError, SyntaxError)) as caught:  # Pillow raises either, by where it was cut
        list(dataset)
    assert caught.value.__notes__ == [note]
    with ps.Loader(dataset.batch(4, merge=list), num_workers=num_workers) as loader:
        with pytest.raises((OSError, SyntaxError)) as caught:
            list(loader)
        assert caught.value.__notes__ == [note, "while making the batch of step 0: epoch 0, from position 0 on"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_skip_leaves_the_image_out(folder: Path, num_workers: int) -> None:
    """The loader delivers all other images, and reports the image that was left out, and the reason."""
    with ps.Loader(shuffled(folder).map(decode, on_error="skip").batch(4), num_workers=num_workers) as loader:
        labels = [label for batch in loader for label in batch["label"].tolist()]
        (event,) = loader.replaced()
    assert sorted(labels) == [0] * 4 + [1] * 5
    assert isinstance(event, Skipped)
    assert (event.step, event.epoch, event.position, event.key) == ("decode", 0, corrupt_position(folder), 3)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_substitute_keeps_the_length(folder: Path, num_workers: int) -> None:
    """Another image takes the place of the corrupt one, with its own label."""
    dataset = shuffled(folder).map(decode, on_error=ps.Substitute())
    with ps.Loader(dataset.batch(5), num_workers=num_workers) as loader:
        images = [image.copy() for batch in loader for image in batch["image"]]
        labels = [label for batch in ps.Loader(dataset.batch(5)) for label in batch["label"].tolist()]
        (event,) = loader.replaced()
    assert isinstance(event, Substituted)
    assert (event.position, event.key) == (corrupt_position(folder), 3)
    assert len(images) == 10
    assert np.array_equal(images[event.position], images[event.taken_from])
    assert labels[event.position] == labels[event.taken_from]


def test_a_vanished_file_is_named(folder: Path) -> None:
    """A file that was removed after listing is an error of the source, with the file's name."""
    dataset = shuffled(folder).map(decode, on_error=ps.Substitute())
    (gone,) = folder.glob("dog/2.*")
    gone.unlink()
    with pytest.raises(SourceError, match=f"cannot read file '{gone.relative_to(folder).as_posix()}'") as caught:
        list(ps.Loader(dataset.batch(5)))
    assert caught.value.keys == (7,)
