"""`seek(position=…)`: the elements from there on are the definition's, in every place, and no earlier one is read."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from tests.equivalence.definition import digest, epoch_of, rank_of
from tests.equivalence.functions import with_seed
from tests.loader.sent_functions import copies, drawn, fails_at_some, inner, marked, thirds
from tests.places import place_of

LENGTH = 40


def rows(length: int = LENGTH) -> ps.Dataset[Any]:
    """Return rows in a random order."""
    return ps.range(length, seed=3).shuffle().map_with_origin(marked)


ROWS: dict[str, Callable[[], ps.Dataset[Any]]] = {
    "indexable": rows,
    "filter": lambda: rows().filter(thirds),
    "skipping": lambda: rows().map(fails_at_some, on_error="skip").random_map(with_seed, rng="seed").map(inner),
    "flat_map": lambda: rows().filter(thirds).flat_map(copies),
    "filter of rows": lambda: rows().batch(3).unbatch().filter(thirds),
    "random above": lambda: rows().filter(thirds).random_map(drawn),
}


def position_of(row: Any) -> int:
    """Return the position that a row was made of."""
    return int(row["position"])


def expected_from(dataset: ps.Dataset[Any], epoch: int, position: int) -> list[Any]:
    """Return the definition's rows of an epoch that are made of this position or a later one."""
    return [digest(plain(row)) for row in epoch_of(dataset, epoch) if position_of(row) >= position]


def plain(row: Any) -> dict[str, float]:
    """Return a row, alone or in a batch, of Python's numbers."""
    return {key: np.asarray(value).item() for key, value in row.items()}


def rows_of(batches: Any) -> list[Any]:
    """Return the rows of batches."""
    return [
        digest({key: column[number].item() for key, column in batch.items()})
        for batch in batches
        for number in range(len(batch["position"]))
    ]


@given(
    name=st.sampled_from([*ROWS]),
    position=st.integers(0, LENGTH),
    epoch=st.integers(0, 2),
    before=st.integers(0, 5),
    size=st.integers(1, 7),
)
def test_a_seek_continues_with_the_definitions_elements(
    name: str, position: int, epoch: int, before: int, size: int
) -> None:
    """From any step, the next batch begins at the position, and batches are cut from there."""
    dataset = ROWS[name]()
    loader = ps.Loader(dataset.batch(size))
    for _ in itertools.islice(loader, before):
        pass
    step = loader.state_dict()["step"]
    loader.seek(position=position, epoch=epoch)
    expected = expected_from(dataset, epoch, position)
    assert loader.state_dict()["step"] == step
    batches = list(loader) if position < LENGTH else []
    assert rows_of(batches) == expected
    assert [len(batch["position"]) for batch in batches[:-1]] == [size] * (len(batches) - 1)
    if expected:
        following = next(iter(loader))
        assert rows_of([following]) == expected_from(dataset, epoch + 1, 0)[:size]


def sought(loader: ps.Loader[Any], position: int) -> list[tuple[Any, dict[str, Any]]]:
    """Return each batch after a seek from the second step, with the state after it."""
    next(iter(loader))
    loader.seek(position=position)
    assert (loader.position, loader.epoch, loader.step) == (position, 0, 1)
    return [(rows_of([batch]), loader.state_dict()) for batch in loader]


@pytest.mark.parametrize(
    ("name", "place"),
    [place_of("threads", "filter"), place_of("processes", "flat_map"), place_of("isolated", "indexable")],
)
def test_a_seek_and_its_states_are_equal_in_every_place(name: str, place: dict[str, Any]) -> None:
    """Batches and states after a seek are those of an inline loader, and each state resumes."""
    dataset = ROWS[name]().batch(4)
    expected = expected_from(ROWS[name](), 0, 17)
    with ps.Loader(dataset) as inline, ps.Loader(dataset, **place) as loader:
        found = sought(loader, 17)
        assert found == sought(inline, 17)
        assert [row for batch, _ in found for row in batch] == expected
        for number, (_, state) in enumerate(found[:-1], 1):
            for resumed in (inline, loader) if number == 2 else (inline,):
                resumed.load_state_dict(state)
                assert rows_of(resumed) == expected[4 * number :]


def test_ranks_that_seek_together_share_the_rest() -> None:
    """Each rank has those of its own rows that are made of this position or a later one, or an empty rest."""
    for name, make in ROWS.items():
        if name == "indexable":  # tests.equivalence.test_machine has it
            continue
        batches = make().batch(4)
        for rank, position in itertools.product(range(2), (13, LENGTH - 1)):
            loader = ps.Loader(batches, shard=ps.Shard(rank, 2, uneven=True))
            loader.seek(position=position)
            of_rank = rows_of(rank_of(batches, 0, rank, 2))
            assert loader.epoch == 0
            assert rows_of(loader) == [row for row in of_rank if dict(row["dict"])["position"][1] >= position]
            loader.seek(position=LENGTH, epoch=0)
            assert loader.epoch == 1


def test_nothing_before_the_position_is_computed() -> None:
    """A seek to a position computes no element."""
    computed: list[int] = []

    def noted(number: int) -> int:
        computed.append(number)
        return number

    with ps.Loader(ps.range(10**6).map(noted).filter(bool).batch(4)) as loader:
        loader.seek(position=900_000)
        assert not computed
        assert next(iter(loader)).tolist() == [900_000, 900_001, 900_002, 900_003]
        assert min(computed) == 900_000


def test_positions_are_those_of_the_last_batchs_epoch() -> None:
    """Also after its end. They count through passes of a repeated dataset; those of reordered batches count batches."""
    loader = ps.Loader(ROWS["filter"]().batch(4))
    list(loader)
    loader.seek(position=20)
    assert (loader.epoch, rows_of(loader)) == (0, expected_from(ROWS["filter"](), 0, 20))
    loader = ps.Loader(ps.range(10).filter(bool).repeat(3).batch(4))
    loader.seek(position=25)
    assert [batch.tolist() for batch in loader] == [[5, 6, 7, 8], [9]]
    dataset = ps.range(12).batch(4).shuffle()
    loader = ps.Loader(dataset)
    loader.seek(position=2)
    assert [batch.tolist() for batch in loader] == [dataset[2].tolist()]


def refuses(number: Any) -> Any:
    """Keep all numbers but 3."""
    return number != 3


OBSTACLES: list[tuple[Callable[[], ps.Dataset[Any]], str]] = [
    (lambda: ps.stream(lambda: range(9)).batch(2), r"stream\(.*\) has no positions at which reading could"),
    (lambda: ps.range(9).window_shuffle(4).batch(2), r"window_shuffle\(4\) depends on the elements"),
    (lambda: ps.range(9).batch(2).window_shuffle(4), r"window_shuffle\(4\) depends on"),
    (lambda: ps.read([np.arange(3)] * 4).pack(4).batch(2), r"pack\(4, how='best_fit'\) depends on"),
    (lambda: ps.range(9).combine(Pass).batch(2), r"combine\(Pass\) depends on the elements that came before"),
    (lambda: ps.read([np.arange(3)] * 4).bucket(len, [4], rows=2), r"bucket\(len, \[4\]\) puts elements"),
    (lambda: ps.range(9).filter(refuses).batch(2).map(len).batch(2), r"batch\(2\) puts elements together"),
    (lambda: ps.range(9).filter(refuses).batch(2).limit(2), r"limit\(2\) counts elements from the beginning"),
    (lambda: ps.mix({"a": ps.range(9).filter(refuses)}).batch(2), r"mix\(\{a: …\}\) has parts"),
    (lambda: ps.concatenate([ps.range(9).filter(refuses), ps.range(3)]), r"concatenate\(…, …\) has parts"),
]


class Pass:
    """A combiner that returns each element unchanged."""

    held = 0

    def add(self, element: Any) -> list[Any]:
        """Return the element."""
        return [element]

    def flush(self) -> list[Any]:
        """Return nothing."""
        return []


def test_a_step_that_depends_on_earlier_elements_is_named() -> None:
    """Only an epoch's beginning can be reached; after the refusal the loader is unchanged."""
    for make, message in OBSTACLES:
        loader, fresh = ps.Loader(make()), ps.Loader(make())
        next(iter(loader))
        before = loader.state_dict()
        with pytest.raises(ps.errors.UsageError, match=f"{message}.* Load a state that was saved at this place"):
            loader.seek(position=2)
        assert loader.state_dict() == before
        loader.seek(position=0, epoch=1)
        list(fresh)
        assert [digest(batch) for batch in loader] == [digest(batch) for batch in fresh]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "seek takes a step, or position=; got step=None, position=None"),
    ({"step": 1, "position": 2}, "seek takes a step, or position=; got step=1, position=2"),
    ({"step": 1, "epoch": 2}, "epoch= is the epoch of position=; got step=1, epoch=2"),
    ({"position": 41}, "position must be at most 40, the positions of an epoch; got position=41"),
    ({"position": -1}, "position must be at least 0"),
    ({"position": 1.5}, "position must be a whole number"),
    ({"position": 1, "epoch": 1 << 31}, r"an epoch must be below 2\*\*31, .* epoch=2147483648"),
    ({"position": 1, "epoch": -1}, "epoch must be at least 0"),
]


def test_wrong_arguments_are_refused() -> None:
    """The error says the rule and the value, for indexable datasets and for those read in order."""
    for loader in (ps.Loader(ROWS["indexable"]().batch(4)), ps.Loader(ROWS["filter"]().batch(4))):
        for arguments, message in WRONG:
            with pytest.raises(ps.errors.UsageError, match=message):
                loader.seek(**arguments)


def test_the_last_epoch_has_a_state() -> None:
    """A seek to the last epoch gives a state that loads, as does its end; a step of a later one is refused."""
    last = (1 << 31) - 1
    for dataset in (ROWS["indexable"](), ROWS["filter"]()):
        for position in (0, 8, 40):
            with ps.Loader(dataset.batch(4)) as loader, ps.Loader(dataset.batch(4)) as other:
                loader.seek(position=position, epoch=last)
                other.load_state_dict(loader.state_dict())
                assert other.epoch == last + position // 40
    with ps.Loader(ROWS["indexable"]().batch(4)) as loader:
        loader.seek(10 * last)
        assert loader.epoch == last
        with pytest.raises(
            ps.errors.UsageError, match=rf"below 2\*\*31, .* step={10 * last + 10}, of epoch {last + 1}"
        ):
            loader.seek(10 * last + 10)
        assert loader.epoch == last
