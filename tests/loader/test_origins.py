"""A loader says where each row of any step comes from, and an origin names its record."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from tests.dataset.functions import is_odd


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


NUMBERS = ps.read(Counted(), seed=7).shuffle()  # each is its own key
NOT_NEGATIVE = NUMBERS.filter(lambda number: number >= 0)
DATASETS: dict[str, ps.Dataset[Any]] = {
    "batch": NUMBERS.batch(4),
    "drop": NUMBERS.batch(4, remainder="drop"),
    "pad": NUMBERS.batch(4, remainder="pad"),
    "no batch": NUMBERS,
    "repeat": NUMBERS.repeat(2).batch(4),
    "order of batches": NUMBERS.batch(4, remainder="drop").shuffle(),
    "mixture": ps.mix({"a": NOT_NEGATIVE, "b": NUMBERS}, {"a": 1, "b": 2}).batch(4),
    "indexed mixture": ps.mix({"a": NUMBERS, "b": ps.mix({"c": NUMBERS}, {"c": 1})}, {"a": 1, "b": 2}).batch(
        4, remainder="drop"
    ),
    "unbatch": NUMBERS.batch(2).unbatch().batch(4),
    "filter": NUMBERS.filter(is_odd).batch(4),
    "window shuffle": NUMBERS.window_shuffle(5).batch(4),
}


@pytest.mark.parametrize("name", DATASETS)
def test_origins_are_those_of_the_batch(name: str) -> None:
    """Each row of each step has the key, the component and the name of its record; a rank has its own rows."""
    dataset = DATASETS[name]
    for rank, count in ((0, 1),) if name == "no batch" else ((0, 1), (0, 2), (1, 2)):
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
