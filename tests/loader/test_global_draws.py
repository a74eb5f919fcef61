"""A loader warns once of a step whose function draws from a global generator, and of no other step."""

import logging
import random  # noqa: TID251 - the generator that a user's function draws from
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.dataset.functions import same
from tests.places import place_of

DRAWS: dict[str, Callable[[Any], Any]] = {
    "random": lambda value: value + random.random(),
    "numpy": lambda value: value + np.random.rand(),  # noqa: NPY002 - likewise
}


def seeded(value: Any, rng: np.random.Generator) -> Any:
    """Return the value and a number from the given generator."""
    return value + rng.random()


def drawing(value: Any) -> Any:
    """Return the value and a number from a global generator."""
    return DRAWS["random"](value)


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the names of the steps in the warnings so far."""
    texts = [record.getMessage() for record in caplog.records if "global generator" in record.getMessage()]
    assert all("random_map(f, globals=True)" in text for text in texts)
    return [text.split("'")[1] for text in texts]


class Drawing:
    """A source that draws for each record."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __len__(self) -> int:
        return 16

    def __getitem__(self, key: int) -> Any:
        return drawing(key)

    def __repr__(self) -> str:
        return self.name


SHAPES: dict[str, Callable[[ps.Dataset[Any], str], ps.Dataset[Any]]] = {
    "below the batch": lambda rows, name: rows.map(drawing, name=name).batch(2),
    "above the batch": lambda rows, name: rows.batch(2).map(drawing, name=name),
    "in order": lambda rows, name: rows.map(drawing, name=name).filter(bool).batch(2),
    "in the source": lambda _, name: ps.read(Drawing(name)).batch(2),
}


@pytest.mark.parametrize(
    ("shape", "where", "place"),
    [
        *(place_of("inline", shape, "inline") for shape in SHAPES),
        place_of("isolated", "in order", "isolated"),
        *(place_of("processes", shape, "processes") for shape in ("above the batch", "in the source")),
        pytest.param("below the batch", "measured", {"num_workers": 2}, id="measured"),
    ],
)
def test_the_step_that_draws_is_named_once(
    shape: str, where: str, place: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The warning names the step, once for several loaders; steps that draw nothing or from their own aren't named."""
    name = f"jitter {shape} {where}"
    dataset = SHAPES[shape](ps.range(16).map(same).random_map(seeded), name)
    with caplog.at_level(logging.WARNING, "penstock"):
        for _ in range(2):
            with ps.Loader(dataset, **place) as loader:
                assert len(list(loader)) == 8
    assert warned(caplog) == [f"read({name})" if shape == "in the source" else name]


@pytest.mark.parametrize("kind", DRAWS)
def test_each_global_generator_counts(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """A draw from any of the generators is found; with `globals=True` it is what the step is for."""
    with caplog.at_level(logging.WARNING, "penstock"):
        list(ps.Loader(ps.range(8).random_map(DRAWS[kind], name="meant", globals=True).batch(2)))
        list(ps.Loader(ps.range(8).map(DRAWS[kind], name=f"draws from {kind}").batch(2)))
    assert warned(caplog) == [f"draws from {kind}"]


def test_an_empty_block_shows_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A step that gets its first elements late, since a filter leaves out all before them, is named, too."""
    dataset = ps.range(20_000).filter(lambda number: number >= 10_000).map(drawing, name="late").batch(2)
    with caplog.at_level(logging.WARNING, "penstock"):
        list(ps.Loader(dataset))
    assert warned(caplog) == ["late"]


def test_measuring_leaves_the_programs_own_draws_as_they_are() -> None:
    """A loader that calls a drawing function to choose its workers restores the global generators' states."""
    before = random.getstate()
    with ps.Loader(ps.range(64).map(drawing, name="measured draws").batch(2), num_workers="auto"):
        assert random.getstate() == before
