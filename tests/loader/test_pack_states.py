"""States of loaders over `pack`: the same whenever they are requested, and without the documents."""

import weakref
from typing import Any

import pytest

import penstock as ps
from tests.dataset.functions import same
from tests.loader.sent_functions import beginning, document
from tests.places import in_places
from tests.profiles import IS_LONG

DOCUMENTS = ps.range(3_000).map(document)
LONG = DOCUMENTS.filter(lambda values: len(values) > 4)
DATASETS = {
    "sequences": DOCUMENTS.pack(100),
    "batches": DOCUMENTS.pack(100).batch(5),
    "cut": DOCUMENTS.pack(70, how="split").batch(3),
    "filtered, and a function above": LONG.pack(100).batch(5).map(same),
    "packed twice": DOCUMENTS.pack(100).map(beginning).pack(150).batch(2),
    "shuffled in windows": DOCUMENTS.window_shuffle(40).pack(100).batch(5),
    "unbatched": DOCUMENTS.pack(100).batch(4).unbatch().batch(6),
}


@pytest.mark.each_value
@in_places("inline", "threads", "isolated threads")
@pytest.mark.parametrize("name", DATASETS)
def test_late_states_are_those_of_their_steps(name: str, place: dict[str, Any]) -> None:
    """A state of an earlier step, in any order, is that which the loader had after this step."""
    steps = 24 if IS_LONG else 12
    with ps.Loader(DATASETS[name]) as at_once, ps.Loader(DATASETS[name], **place) as loader:
        batches = iter(at_once)
        expected = [at_once.state_dict()] + [at_once.state_dict() for _ in zip(range(steps), batches, strict=False)]
        assert len(list(zip(range(steps), loader, strict=False))) == steps
        for step in sorted(range(steps + 1), key=lambda step: (step + 3) * 11 % (steps + 1)):
            assert loader.state_dict(step=step) == expected[step]


@pytest.mark.parametrize("below", ["map", "filter", "window_shuffle"])
def test_steps_that_are_remembered_keep_no_documents(below: str) -> None:
    """After 200 batches the loader has the documents of open sequences and of the last block."""
    living: list[Any] = []

    def remembered(number: int) -> Any:
        made = document(number)
        living.append(weakref.ref(made))
        return made

    documents = ps.range(40_000).map(remembered)
    steps = {
        "map": documents,
        "filter": documents.filter(lambda values: len(values) > 4),
        "window_shuffle": documents.window_shuffle(30),
    }
    with ps.Loader(steps[below].pack(100).batch(8)) as loader:
        for step, _ in enumerate(loader):
            if step == 200:
                break
        kept = sum(reference() is not None for reference in living)
    assert len(living) > 3_500
    assert kept < 1_500
