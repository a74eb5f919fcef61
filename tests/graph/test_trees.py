"""Datasets with several branches, tables and caches: elements, origins, ends, orders, texts and errors."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import GraphError, NoLengthError
from penstock.sampling import WindowTable
from penstock.sources import Arrays
from tests.dataset.functions import double
from tests.equivalence.functions import twice

SHUFFLED = ps.range(9, seed=7).shuffle()
FILTERED = ps.range(3).filter(str)
ENDLESS = FILTERED.repeat()


def key_and_part(_: object, origin: ps.Origin) -> tuple[int, str]:
    """Return the record's key, and the path of its part."""
    return origin.key, origin.component


def draw(_: object, seed: int) -> int:
    """Return the seed of the element's stream."""
    return seed


def test_components_are_paths() -> None:
    """Parts of parts are joined by a slash, and the key is that of the part's own source."""
    inner = ps.interleave({"en": ps.range(2), "de": ps.range(10, 12)})
    dataset = ps.interleave({"web": inner, "code": ps.range(20, 24)}).map_with_origin(key_and_part)
    paths = ["web/en", "code", "web/de", "code", "web/en", "code", "web/de", "code"]
    expected = list(zip([0, 0, 0, 1, 1, 2, 1, 3], paths, strict=True))
    assert list(dataset) == next(iter(ps.Loader(dataset.batch(8, merge=list)))) == expected


class InEpochs:
    """A sampler of 512 elements, eight of each epoch below."""

    def __len__(self) -> int:
        return 512

    def __call__(self, epoch: int, position: int) -> tuple[int, int]:
        """Return the position below."""
        return 64 * epoch + position // 8, position


def test_a_list_of_another_epoch_is_not_used() -> None:
    """A thread that keeps the list of a `flat_map` calls the function again for the same element of another epoch."""
    lists = ps.range(1, seed=3).random_map(draw, rng="seed").flat_map(lambda seed: [seed] * 512, counts=[512])
    dataset = lists.reindex(InEpochs())
    with ps.Loader(dataset.batch(8, merge=list)) as loader:
        batches = list(loader)
    assert [seed for batch in batches for seed in batch] == list(dataset)
    assert [len(set(batch)) for batch in batches] == [1] * 64
    assert len({batch[0] for batch in batches}) == 64


class Whole:
    """A source that can only read whole records."""

    def __init__(self, source: Arrays) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: int) -> Any:
        return self.source[key]


def episodes(count: int, frames: int) -> Arrays:
    """Return episodes of a number of frames, with a label each."""
    state = np.arange(count * frames * 2, dtype=np.float32).reshape(count, frames, 2)
    return Arrays({"state": state, "label": np.arange(count)})


@given(st.integers(1, 4), st.integers(1, 7), st.integers(1, 5), st.integers(1, 4), st.sampled_from([None, "mask"]))
def test_windows_of_spans_equal_those_of_whole_episodes(
    count: int, frames: int, size: int, stride: int, mask: str | None
) -> None:
    """Reading only a window's frames equals cutting the whole episode, with equal padding and masks."""
    spans, lengths = episodes(count, frames), [frames] * count
    results: list[list[Any]] = []
    for source in (spans, Whole(spans)):
        windows = ps.read(source)[::-1].windows(size, stride, lengths=lengths, partial="pad", mask=mask)
        results.append(list(windows))
        assert repr(results[-1]) == repr(list(itertools.chain(*ps.Loader(windows.batch(3, merge=list)))))
    assert repr(results[0]) == repr(results[1])
    table = WindowTable(np.array(lengths), size, stride=stride, partial="pad")
    for (episode, start, stop), window in zip(map(table.locate_one, range(len(table))), results[0], strict=True):
        expected = spans[count - 1 - episode]["state"]
        assert window["state"].tolist() == [expected[min(start + each, stop - 1)].tolist() for each in range(size)]
        assert window["label"] == count - 1 - episode
        assert mask is None or window[mask].tolist() == [start + each < stop for each in range(size)]


def test_only_the_frames_of_a_window_are_read() -> None:
    """From a source that reads spans nothing else is requested, and windows that overlap share no memory."""

    class Spans(Arrays):
        def read(self, keys: object) -> list[Any]:
            raise AssertionError(f"whole records {keys!r} were read")

    windows = ps.read(Spans({"x": np.arange(20).reshape(2, 10)})).windows(4, 3, lengths=[10, 10])
    with ps.Loader(windows.select([1, 5])) as loader:
        assert [window["x"].tolist() for window in loader] == [[3, 4, 5, 6], [16, 17, 18, 19]]
    batches = ps.read(episodes(1, 6)).map(dict).windows(4, lengths=[6]).batch(3, merge=list)
    first, second, _ = next(iter(ps.Loader(batches)))
    first["state"][:] = -1
    assert second["state"].min() >= 0


@pytest.mark.parametrize("episode", [[1, 2, 3, 4], range(4), {"state": [[1], [2], [3], [4]]}, "abcd"])
def test_an_episode_without_an_array_is_an_error(episode: object) -> None:
    """Each window of lists would be the whole episode; so would be one that is padded, of a source that reads spans."""

    class Spans(list[object]):
        def read_spans(self, keys: list[int], *spans: object) -> list[object]:
            del spans
            return [self[key] for key in keys]

    windows = ps.read([episode]).windows(2, 2, lengths=[4])
    with pytest.raises(
        GraphError, match=r"the element at position 0, a .*, has none, .* Convert what holds its frames"
    ):
        windows[1]
    with pytest.raises(GraphError, match="has none"):
        list(ps.Loader(windows.batch(2)))
    with pytest.raises(GraphError, match="has none"):
        ps.read(Spans([episode])).windows(3, 3, lengths=[4], partial="pad")[1]


def test_arrays_without_frames_are_an_error() -> None:
    """An array with another first axis is named, with both lengths; numbers and text pass."""
    element = {"x": np.zeros(4), "name": "a", "goal": np.zeros(3)}
    with pytest.raises(GraphError, match=r"\['goal'\] at position 0 has shape \(3,\), where 4 frames were expected"):
        ps.read([element]).windows(2, 2, lengths=[4])[0]
    with pytest.raises(GraphError, match="a new leaf of a dict; the window is of type ndarray"):
        ps.read([np.zeros(4)]).windows(2, 2, lengths=[4], mask="mask")[0]


def test_a_cache_computes_each_element_once() -> None:
    """Elements in the store are not computed again, in any order and epoch."""
    calls: list[int] = []

    def counted(number: int) -> int:
        calls.append(number)
        return number + 1

    dataset = ps.range(5).map(counted).cache().select([1, 3, 1, 3, 0, 1])
    with ps.Loader(dataset.batch(2, merge=list)) as loader:
        assert [*loader, *loader] == [[2, 4], [2, 4], [1, 2]] * 2
    assert dataset[0] == 2
    assert calls == [1, 3, 0]


LAST = {0: {"0": 1}, 9: {"1": 1}}
WITH_ENDS: list[tuple[Callable[[], ps.Dataset], bool]] = [
    (lambda: ps.mix([FILTERED, ENDLESS]), False),
    (lambda: ps.mix([ENDLESS, ENDLESS]), True),
    (lambda: ps.mix({"a": FILTERED, "b": ENDLESS}, {"a": 0, "b": 1}), True),
    (lambda: ps.mix([FILTERED, ENDLESS], stop="all"), True),
    (lambda: ps.mix([FILTERED, ENDLESS], LAST, stop="all"), True),
    (lambda: ps.mix([FILTERED, ENDLESS], LAST), False),
    (lambda: ps.mix([ENDLESS, FILTERED], LAST, stop="all"), False),
    (lambda: ps.mix([FILTERED, FILTERED], stop="never"), True),
    (lambda: ps.interleave(ENDLESS, FILTERED), True),
    (lambda: ps.zip(ENDLESS, FILTERED, unequal="shortest"), False),
    (lambda: ps.zip(ENDLESS, ENDLESS), True),
    (lambda: ps.concatenate(FILTERED, ENDLESS), True),
    (lambda: ps.stream(lambda: "ab").repeat(), True),
    (lambda: ENDLESS.limit(3), False),
]


def test_an_endless_part_makes_a_join_endless_if_it_counts() -> None:
    """A mixture follows its rule, a zip ends with its shortest part; an endless dataset has no last batch."""
    for number, (make, is_endless) in enumerate(WITH_ENDS):
        lines = dict(make().batch(2).explain(evaluate=False).sections)["batches"]
        assert any("there is no last one" in line for line in lines) == is_endless, number


def test_errors_name_the_part_and_its_record() -> None:
    """An error above a join names the part and its record, alone and in a batch."""

    def fail(number: int) -> int:
        if number >= 10:
            raise ValueError(number)
        return number

    dataset = ps.interleave({"web": ps.range(3), "code": ps.range(10, 13, seed=1).shuffle()})
    key, _ = dataset.map_with_origin(key_and_part)[1]
    failing = dataset.map(fail, name="fail")
    for compute in (lambda: failing[1], lambda: next(iter(ps.Loader(failing.batch(4))))):
        with pytest.raises(ValueError, match="1") as caught:
            compute()
        assert f"in step 'fail' at epoch 0, position 1, key {key} of 'code'" in caught.value.__notes__[0]


HELD: list[ps.Dataset] = [
    ps.mix([SHUFFLED, SHUFFLED.take(4)]),
    ps.mix([SHUFFLED, ps.range(4).shuffle()], stop="all"),
    ps.mix([SHUFFLED, ps.range(4).shuffle()], stop="never"),
    ps.zip(ps.range(9), SHUFFLED),
    ps.concatenate(SHUFFLED, ps.range(9, 18)),
    ps.read(np.arange(36).reshape(6, 6)).windows(3, 3, lengths=[6] * 6).map(tuple).shuffle(),
]


@pytest.mark.parametrize("dataset", HELD)
def test_the_first_elements_of_a_join_are_those_of_epoch_0(dataset: ps.Dataset) -> None:
    """Every epoch of a choice has the elements of the first, passes of an endless mixture included."""
    chosen = dataset.take(8)
    assert list(dataset.epoch(1).take(8)) != list(dataset.epoch(0).take(8))
    for epoch in range(4):
        assert sorted(chosen.epoch(epoch)) == sorted(dataset.epoch(0).take(8))
    with_draws = dataset.random_map(draw, rng="seed").take(8)
    assert not set(with_draws.epoch(0)) & set(with_draws.epoch(1))


def test_parts_of_other_names_draw_apart() -> None:
    """Equal parts of two names share no stream, whatever their steps."""
    part = ps.mix({"x": SHUFFLED, "y": ps.range(9)}).random_map(draw, rng="seed").filter(str).window_shuffle(4)
    for join in (ps.mix, ps.interleave, ps.concatenate):
        found = list(join({"a": part, "b": part}))
        assert len(set(found)) == len(found) > 20


def test_parts_of_a_split_stay_apart() -> None:
    """The parts of a split have the same records in mixtures of their own, under other names."""
    for whole in (SHUFFLED, SHUFFLED.epoch(1), SHUFFLED.repeat(2).epoch(1)):
        parts = whole.split({"train": 0.5, "val": 0.5})
        for epoch in range(4):
            for name, part in parts.items():
                assert sorted(ps.mix({name: part}).epoch(epoch)) == sorted(part)


PARTS = ps.range(4), ps.range(10, 13)
JOINED = {"web": PARTS[0], "code": PARTS[1]}
RAGGED = ps.read([np.arange(3)] * 9)
WINDOWS = "read(Arrays({'state': float32[2, 6, 2], 'label': int64[2]})).windows(4, stride=2)"
TEXTS: dict[str, ps.Dataset] = {
    "interleave({web: …, code: …}).map(str).batch(2)": ps.interleave(JOINED).map(str).batch(2),
    "concatenate(…, …)": ps.concatenate(*PARTS),
    "zip({web: …, code: …}).take(3)": ps.zip(JOINED, unequal="shortest").take(3),
    "mix({a: …, b: …, c: …, d: …, … 3 more})": ps.mix(dict.fromkeys("abcdefg", PARTS[0])),
    "read(Range(0, 4, 1)).window_shuffle(8)": PARTS[0].window_shuffle(8),
    "read(Range(0, 4, 1)).flat_map(twice)": PARTS[0].flat_map(twice),
    "read(Range(0, 4, 1)).take(3)": PARTS[0].limit(3),
    "stream(list, times=None)": ps.stream([1]).repeat(),
    "read(list).pack(16, how='best_fit')": RAGGED.pack(16),
    "read(list).pack(8, how='split')": RAGGED.pack(8, how="split"),
    "read(list).bucket(len, [4, 8])": RAGGED.bucket(len, [4, 8], rows=[2, 1]),
    WINDOWS: ps.read(episodes(2, 6)).windows(4, 2, lengths=[6, 6]),
}


def test_errors_abbreviate_parts() -> None:
    """Each step is shown as its verb; a step with several parts names at most four of them, and the lowest is named."""
    for text, dataset in TEXTS.items():
        with pytest.raises(GraphError) as caught:
            dataset.filter(bool).shuffle()
        assert f"positions, and {text}" in str(caught.value)
    dataset = ps.zip({"x": ps.range(9), "y": ps.range(9).filter(bool)}).map(double)
    with pytest.raises(NoLengthError, match=r"filter\(bool\) \(part 'y' of zip\({x: …, y: …}\)\) can only be read in"):
        len(dataset)


NUMBERS = itertools.count()


def drifting(_: object) -> int:
    """Return another number at every call."""
    return next(NUMBERS)


def test_a_tree_shows_parts_below_their_join() -> None:
    """Parts are below the join, indented, by name and with their lengths; of hundreds the first are shown."""
    parts: dict[str, ps.Dataset[Any]] = {"web": PARTS[0].map(str), "code": PARTS[1]}
    dataset = ps.interleave(parts).map(len)
    assert repr(dataset).split("\n") == [
        "map(len): 7",
        "  └ interleave({web: …, code: …}): 7",
        "    └ web: map(str): 4",
        "      └ read(Range(0, 4, 1)): 4",
        "    └ code: read(Range(10, 13, 1)): 3",
    ]
    lines = repr(ps.concatenate([PARTS[0]] * 500)).split("\n")
    assert (len(lines), lines[-1]) == (18, "  └ … 484 more parts")


JOINS: list[Callable[[list[ps.Dataset]], ps.Dataset]] = [
    ps.interleave,
    lambda parts: ps.concatenate([parts[0].filter(str), parts[1]]),
    partial(ps.zip, unequal="shortest"),
    lambda parts: ps.mix([parts[0].filter(str), parts[1]]),
]


def test_check_looks_into_parts() -> None:
    """A step that isn't a function of its input is found in each part of a join, and above it."""
    for join in JOINS:
        with pytest.raises(GraphError, match=r"'drifting' .* isn't a function of its input"):
            join([PARTS[0], PARTS[1].map(drifting)]).check(4)
        with pytest.raises(GraphError, match=r"'above' .* isn't a function of its input"):
            join(list(PARTS)).map(drifting, name="above").check(4)
