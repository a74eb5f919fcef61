"""The types that both type checkers infer for the public names; the checkers read this file, and nothing runs it."""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, TypedDict, assert_type

import numpy as np
from numpy.typing import NDArray

import penstock as ps
import penstock.errors as errors
from penstock.pipeline import Pipeline, PipelineBuilder, PipelineConfig, SubprocessPipeline, run_in_subprocess

assert_type(errors.SourceError("no such file", source="Files(...)", keys=[3]).keys, tuple[int, ...])
assert_type(errors.SourceError("no such file").source, str)
assert_type(errors.WorkerError("died", exit_code=-9).exit_code, int | None)
assert_type(errors.MissingDependencyError("pyarrow", extra="parquet").extra, str)


def catches() -> None:
    """A built-in type in `except` catches the error of Penstock that derives from it."""
    try:
        raise errors.StateError("written by another dataset")
    except errors.UsageError as error:
        assert_type(error, errors.UsageError)


class Labelled(TypedDict):
    """An element whose leaves have types of their own."""

    image: NDArray[np.uint8]
    label: int


class Pictures:
    """A source of the user's own."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, key: int) -> Labelled:
        return {"image": np.zeros((key, 2), np.uint8), "label": key}


class Unsized:
    """An object that the checkers don't recognise as a source."""


def reading(arrays: dict[str, NDArray[np.float64]], array: NDArray[np.float32]) -> None:
    """A dataset has the type of its source's records, where that is known."""
    assert_type(ps.range(3), ps.Dataset[int])
    assert_type(ps.read(["a", "b"], seed=1), ps.Dataset[str])
    assert_type(ps.read(range(3)), ps.Dataset[int])
    assert_type(ps.read(Pictures()), ps.Dataset[Labelled])
    assert_type(ps.read(arrays), ps.Dataset[dict[str, Any]])
    assert_type(ps.read({"x": array, "y": np.arange(3)}), ps.Dataset[dict[str, Any]])
    assert_type(ps.read(array), ps.Dataset[Any])
    assert_type(ps.read(Unsized()), ps.Dataset[Any])


def bare(dataset: ps.Dataset, loader: ps.Loader) -> None:
    """A name without the elements' type means any type."""
    assert_type(dataset, ps.Dataset[Any])
    assert_type(loader, ps.Loader[Any])


def covariance(numbers: ps.Dataset[bool]) -> ps.Dataset[object]:
    """A dataset of bools is one of objects."""
    wider: ps.Dataset[int] = numbers
    return wider


def order(pictures: ps.Dataset[Labelled]) -> None:
    """Verbs of order, and slices, keep the type."""
    assert_type(pictures.shuffle(), ps.Dataset[Labelled])
    assert_type(pictures.reindex(ps.sampling.Slice(0, 1, 2)), ps.Dataset[Labelled])
    assert_type(pictures.shard(0, 2), ps.Dataset[Labelled])
    assert_type(pictures.take(1).skip(1).select([0]), ps.Dataset[Labelled])
    assert_type(pictures.subset(1).repeat(2).epoch(3), ps.Dataset[Labelled])
    assert_type(pictures.split({"train": 0.8}), dict[str, ps.Dataset[Labelled]])
    assert_type(pictures.split(0.8), tuple[ps.Dataset[Labelled], ps.Dataset[Labelled]])
    assert_type(pictures.split([0.8, 0.1]), tuple[ps.Dataset[Labelled], ...])
    assert_type(pictures.shuffle(seed=3), ps.Dataset[Labelled])
    assert_type(pictures[2:4], ps.Dataset[Labelled])
    assert_type(pictures[np.int64(3)], Labelled)
    assert_type(pictures[3]["label"], int)
    assert_type(iter(pictures), Iterator[Labelled])
    assert_type(list(pictures), list[Labelled])


def length_of(text: str) -> int:
    """Return the length of a text."""
    return len(text)


def scaled(number: int, rng: np.random.Generator) -> float:
    """Return a random share."""
    return number * rng.random()


def seeded(number: int, seed: int) -> str:
    """Return both arguments as text."""
    return f"{number} {seed}"


def placed(number: int, origin: ps.Origin) -> tuple[int, int]:
    """Return the number and its position."""
    return number, origin.position


class Joined:
    """A combiner that joins texts, typed without the library."""

    held: int = 0

    def add(self, element: str) -> list[bytes]:
        """Return a text."""
        return [element.encode() * self.held]

    def flush(self) -> list[bytes]:
        """Return nothing."""
        return []


def added(combiner: ps.Combiner[str, bytes]) -> None:
    """A combiner's input and output have types of their own."""
    assert_type(combiner.add("text"), Sequence[bytes])


def elements(numbers: ps.Dataset[int], texts: ps.Dataset[str]) -> None:
    """A function's result is the type of the new elements."""
    assert_type(texts.map(length_of), ps.Dataset[int])
    assert_type(numbers.map(lambda number: [number], name="own", on_error=ps.Substitute()), ps.Dataset[list[int]])
    assert_type(numbers.random_map(scaled), ps.Dataset[float])
    assert_type(numbers.random_map(lambda number, rng: rng.integers(number) > 3), ps.Dataset[np.bool_])
    assert_type(numbers.random_map(seeded, rng="seed"), ps.Dataset[str])
    assert_type(texts.random_map(length_of, globals=True, name="cut"), ps.Dataset[int])
    assert_type(numbers.map_with_origin(placed), ps.Dataset[tuple[int, int]])
    assert_type(texts.filter(str.isdigit), ps.Dataset[str])
    assert_type(texts.combine(Joined), ps.Dataset[bytes])
    assert_type(numbers.filter(lambda number: number % 2, name="odd"), ps.Dataset[int])


def copies(number: int) -> list[str]:
    """Return a text for each unit."""
    return ["one"] * number


def counted() -> Iterator[int]:
    """Yield a few numbers."""
    yield from range(3)


class Lengths:
    """An object that each worker makes for itself."""

    def __call__(self, text: str) -> int:
        """Return the length of a text."""
        return len(text)


def several(numbers: ps.Dataset[int], texts: ps.Dataset[str], episodes: ps.Dataset[Labelled]) -> None:
    """Lists of elements have an item type; windows, caches and steps that are read in order keep the type."""
    assert_type(numbers.flat_map(copies), ps.Dataset[str])
    assert_type(numbers.flat_map(copies, counts=[1, 2]), ps.Dataset[str])
    assert_type(numbers.flat_map(lambda number: (number, number)), ps.Dataset[int])
    assert_type(episodes.windows(3, 2, lengths=[5, 4], partial="pad", mask="real"), ps.Dataset[Labelled])
    assert_type(episodes.cache(), ps.Dataset[Labelled])
    assert_type(texts.cache("cached", size="20GB", version="1"), ps.Dataset[str])
    assert_type(texts.sample([1, 2.5], 9), ps.Dataset[str])
    assert_type(texts.sample(np.ones(3)), ps.Dataset[str])
    assert_type(texts.balance(["cat", "dog"]), ps.Dataset[str])
    assert_type(texts.balance(np.arange(3), 9), ps.Dataset[str])
    assert_type(texts.window_shuffle(100).limit(3).repeat(), ps.Dataset[str])
    assert_type(numbers.batch(2).rebatch(3, remainder="drop"), ps.Dataset[NDArray[np.int64]])
    assert_type(texts.map(ps.PerWorker(Lengths)), ps.Dataset[int])
    assert_type(ps.PerWorker(Lengths)("four"), int)


def joining(numbers: ps.Dataset[int], texts: ps.Dataset[str], named: dict[str, ps.Dataset[str]]) -> None:
    """A joined dataset has the type of its parts."""
    assert_type(ps.mix(named), ps.Dataset[str])
    assert_type(ps.mix([texts, texts], [3, 1]), ps.Dataset[str])
    assert_type(ps.concatenate(texts, texts), ps.Dataset[str])
    assert_type(ps.mix({"web": texts, "code": texts}, {"web": 3, "code": 0.5}, stop="never"), ps.Dataset[str])
    assert_type(ps.mix({"web": texts}, {0: {"web": 1}, 100: {"web": 2}}, measure=len, seed=3), ps.Dataset[str])
    assert_type(ps.concatenate([numbers, numbers]), ps.Dataset[int])
    assert_type(ps.concatenate(named), ps.Dataset[str])
    assert_type(ps.interleave((texts, texts)), ps.Dataset[str])
    assert_type(ps.interleave(named, seed=1), ps.Dataset[str])
    assert_type(ps.zip({"text": texts, "number": numbers}), ps.Dataset[Any])
    assert_type(ps.zip([texts, numbers], unequal="shortest"), ps.Dataset[Any])
    assert_type(ps.stream(["a", "b"]), ps.Dataset[str])
    assert_type(ps.stream(counted, seed=2), ps.Dataset[int])
    assert_type(ps.stream(lambda: ["a"]), ps.Dataset[str])


def looking(numbers: ps.Dataset[int]) -> None:
    """An explanation is a value of texts."""
    assert_type(numbers.explain(evaluate=False), ps.Explanation)
    assert_type(numbers.explain().sections, tuple[tuple[str, tuple[str, ...]], ...])
    assert_type(str(numbers.explain()), str)


def sum_of(numbers: list[int]) -> float:
    """Return a batch that is one number."""
    return float(sum(numbers))


def batches(numbers: ps.Dataset[int], images: ps.Dataset[NDArray[np.uint8]], unknown: ps.Dataset) -> None:
    """Stacking gives the leaves array types; nested elements keep their containers, as far as they have a type."""
    assert_type(numbers.batch(2, drop_last=True), ps.Dataset[NDArray[np.int64]])
    assert_type(numbers.batch(2, remainder="drop"), ps.Dataset[NDArray[np.int64]])
    assert_type(numbers.map(lambda number: number > 2).batch(2), ps.Dataset[NDArray[np.bool_]])
    assert_type(numbers.map(float).batch(2), ps.Dataset[NDArray[np.float64]])
    assert_type(images.batch(2), ps.Dataset[NDArray[np.uint8]])
    assert_type(images.batch(2).batch(2)[0], NDArray[np.uint8])
    assert_type(numbers.map(str).batch(2), ps.Dataset[list[str]])
    assert_type(numbers.map(bytes).batch(2), ps.Dataset[list[bytes]])
    assert_type(ps.read(Pictures()).batch(2), ps.Dataset[Any])
    assert_type(images.map(lambda image: {"image": image}).batch(2, mask="real"), ps.Dataset[dict[str, Any]])
    assert_type(numbers.map(lambda number: (number, "a")).batch(2), ps.Dataset[Any])
    assert_type(unknown.batch(2), ps.Dataset[Any])
    assert_type(numbers.batch(2, merge=sum_of), ps.Dataset[float])
    assert_type(numbers.batch(2, merge=lambda rows: rows), ps.Dataset[list[int]])
    assert_type(numbers.batch(2, merge=list), ps.Dataset[list[int]])
    assert_type(numbers.batch(2, merge=lambda rows: {"rows": rows}, mask="real"), ps.Dataset[Any])
    assert_type(unknown.batch(2, merge=sum_of), ps.Dataset[float])
    assert_type(images.padded_batch(2), ps.Dataset[Any])
    assert_type(numbers.batch(2).unbatch(), ps.Dataset[Any])


def loading(dataset: ps.Dataset[NDArray[np.int64]]) -> None:
    """A loader yields its dataset's elements."""
    loader = ps.Loader(dataset, num_workers=2)
    assert_type(loader, ps.Loader[NDArray[np.int64]])
    assert_type(iter(loader), ps.LoaderIterator[NDArray[np.int64]])
    assert_type(next(iter(loader)), NDArray[np.int64])
    assert_type(loader.batch_at(3), NDArray[np.int64])
    assert_type(aiter(loader), AsyncIterator[NDArray[np.int64]])
    with loader as entered:
        assert_type(entered, ps.Loader[NDArray[np.int64]])


def pipelines(
    pipeline: Pipeline[int], untyped: Pipeline, config: PipelineConfig[str], builder: PipelineBuilder[str, float]
) -> None:
    """A pipeline's items have the annotated type, or any type without an annotation."""
    assert_type(pipeline.get_item(), int)
    assert_type(iter(pipeline), Iterator[int])
    assert_type(aiter(pipeline), AsyncIterator[int])
    assert_type(untyped, Pipeline[Any])
    assert_type(untyped.get_item(), Any)
    assert_type(builder.build(num_threads=1), Pipeline[float])
    assert_type(builder.pipe(len).get_config(), PipelineConfig[float])
    assert_type(run_in_subprocess(config, num_threads=1), SubprocessPipeline[str])
    with pipeline.auto_stop() as entered:
        assert_type(entered, Pipeline[int])
