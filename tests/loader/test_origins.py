"""A loader says where each row of any step comes from, and an origin names its record."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps


class Counted:
    """Numbers that are counted when they are read, and named by a row of a file."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 22

    def __getitem__(self, key: int) -> int:
        self.reads += 1
        return key

    def describe_key(self, key: int) -> str:
        """Return the file and the row of a number."""
        return f"file 'numbers', row {key}"


def numbers() -> ps.Dataset[Any]:
    """Return the numbers, each of which is its own key, shuffled."""
    return ps.read(Counted(), seed=7).shuffle()


def is_odd(number: Any) -> bool:
    """Return whether a number is odd."""
    return bool(number % 2)


DATASETS: dict[str, ps.Dataset[Any]] = {
    "batch": numbers().batch(4),
    "drop": numbers().batch(4, remainder="drop"),
    "pad": numbers().batch(4, remainder="pad"),
    "no batch": numbers(),
    "repeat": numbers().repeat(2).batch(4),
    "order of batches": numbers().batch(4, remainder="drop").shuffle(),
    "mixture": ps.mix(
        {"a": numbers().filter(lambda number: bool(number >= 0)), "b": numbers()}, {"a": 1, "b": 2}
    ).batch(4),
    "indexed mixture": ps.mix({"a": numbers(), "b": ps.mix({"c": numbers()}, {"c": 1})}, {"a": 1, "b": 2}).batch(
        4, remainder="drop"
    ),
    "unbatch": numbers().batch(2).unbatch().batch(4),
    "filter": numbers().filter(is_odd).batch(4),
    "window shuffle": numbers().window_shuffle(5).batch(4),
}


@pytest.mark.parametrize(
    ("name", "count"), [(name, count) for name in DATASETS for count in ((1,) if name == "no batch" else (1, 2))]
)
def test_origins_are_those_of_the_batch(name: str, count: int) -> None:
    """Each row of each step has the key, the component and the name of its record; a rank has its own rows."""
    dataset = DATASETS[name]
    for rank in range(count):
        with ps.Loader(dataset, shard=ps.Shard(rank, count, uneven=True)) as loader:
            for step, batch in enumerate(loader):
                origins = loader.origins(step)
                rows = np.atleast_1d(batch).tolist()
                assert [origin.key for origin in origins] == rows[: len(origins)]
                assert len(origins) == len(rows) or name == "pad"
                assert [loader.origin(step, row) for row in range(len(origins))] == list(origins)
                for origin in origins:
                    assert origin.record == f"key {origin.key} (file 'numbers', row {origin.key})"
                    assert origin.component in ({"a", "b", "b/c"} if "mixture" in name else {""})


def test_origins_read_nothing() -> None:
    """A dataset with positions answers for any step without reading; one that is read in order, only for the last."""
    source = Counted()
    with ps.Loader(ps.read(source, seed=7).shuffle().map(is_odd).batch(4)) as loader:
        found = loader.origins(1000)
    assert (source.reads, [origin.epoch for origin in found]) == (0, [166] * 4)
    with ps.Loader(DATASETS["filter"]) as loader, pytest.raises(ps.errors.StateError, match="only be read in order"):
        loader.origins(1000)


def test_a_record_is_named_by_its_file_and_elsewhere_by_its_key(tmp_path: Path) -> None:
    """An origin of a loader asks the source; functions get, and pickles keep, the values that decide equality."""
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(name)
    dataset = ps.read(ps.sources.Files(tmp_path, "*.txt"))
    with ps.Loader(dataset.batch(2)) as loader:
        origins = loader.origins(0)
    assert [origin.record for origin in origins] == ["key 0 (file 'a.txt')", "key 1 (file 'b.txt')"]
    sent = pickle.loads(pickle.dumps(origins))
    assert sent == origins
    assert [origin.record for origin in sent] == ["key 0", "key 1"]
    assert list(dataset.map_with_origin(lambda _, origin: origin.record)) == ["key 0", "key 1"]
