"""Fingerprints differ by source, order and functions, and are the same in every process."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest

import penstock as ps
from tests.dataset.functions import Rotated, Squares, double, is_odd
from tests.graph.fingerprinted import DATASETS, agreed

CHECKOUT = Path(__file__).parents[2]


def test_processes_agree() -> None:
    """A process with another hash seed and other addresses computes the same digests and identities."""
    path = os.pathsep.join([str(CHECKOUT), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-m", "tests.graph.fingerprinted"]
    answer = subprocess.run(command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=True)
    own = agreed(DATASETS)
    assert json.loads(answer.stdout) == own
    assert any("details" in fingerprint for fingerprint in own["states"].values())


def triple(number: int) -> int:
    """Return three times the number."""
    return number * 3


def differing(first: ps.Dataset, second: ps.Dataset) -> set[str]:
    """Return the names of the differing parts of two fingerprints."""
    return {part for part in first.fingerprint if first.fingerprint[part] != second.fingerprint[part]}


READ = ps.read(Squares(64), seed=7)


def finish(dataset: ps.Dataset) -> ps.Dataset:
    """Return a dataset with steps that most of the changes below don't affect."""
    return dataset.map(double, name="step").filter(is_odd).batch(4)


MAPPED = READ.shuffle().map(double, name="step")
BASE = finish(READ.shuffle())

CHANGES: dict[str, tuple[ps.Dataset, set[str]]] = {
    "nothing": (finish(ps.read(Squares(64), seed=7).shuffle()), set()),
    "kind of source": (finish(ps.read(list(range(64)), seed=7).shuffle()), {"source"}),
    "records of arrays": (finish(ps.read(np.arange(64), seed=7).shuffle()), {"source"}),
    "length of the source": (finish(ps.read(Squares(65), seed=7).shuffle()), {"source", "order"}),
    "seed": (finish(ps.read(Squares(64), seed=8).shuffle()), {"order", "functions"}),
    "no shuffle": (finish(READ), {"order"}),
    "two shuffles": (finish(READ.shuffle().shuffle()), {"order"}),
    "slice": (finish(READ.shuffle()[:32]), {"order"}),
    "repeat": (finish(READ.shuffle().repeat(2)), {"order"}),
    "function": (READ.shuffle().map(triple, name="step").filter(is_odd).batch(4), {"functions"}),
    "name": (READ.shuffle().map(double, name="other").filter(is_odd).batch(4), {"functions"}),
    "lambda": (READ.shuffle().map(lambda number: number * 2, name="step").filter(is_odd).batch(4), {"functions"}),
    "predicate": (MAPPED.filter(triple).batch(4), {"functions"}),
    "merge": (MAPPED.filter(is_odd).batch(4, merge=list), {"functions"}),
    "batch size": (MAPPED.filter(is_odd).batch(8), set()),
    "remainder": (MAPPED.filter(is_odd).batch(4, remainder="drop"), set()),
    "no batch": (MAPPED.filter(is_odd), {"order", "functions"}),
}


def test_each_change_changes_its_digest() -> None:
    """Source, order and functions each change their own digest; the batch size changes none.

    Substituting and raising keep every position; skipping doesn't. Without a shuffle, the length is the source's alone.
    """
    for change, (changed, expected) in CHANGES.items():
        assert differing(BASE, changed) == expected, change
    assert differing(ps.read(Squares(64)), ps.read(Squares(65))) == {"source"}
    plain = ps.range(9).map(double)
    assert differing(plain, ps.range(9).map(double, on_error=ps.Substitute())) == set()
    assert differing(plain, ps.range(9).map(double, on_error="skip")) == {"order"}


ORDERS: list[Callable[[ps.Dataset], ps.Dataset]] = [
    lambda dataset: dataset.select(range(0, 5000, 2)),
    lambda dataset: dataset.select([*range(0, 2000, 2), 2001, *range(2002, 5000, 2)]),
    lambda dataset: dataset.select(range(0, 5000, 2)).shuffle(),
    lambda dataset: dataset.split({"a": 0.5})["a"],
    lambda dataset: dataset.split({"a": 0.5}, seed=1)["a"],
    lambda dataset: dataset.shard(0, 2),
    lambda dataset: dataset.shard(1, 2),
    lambda dataset: dataset.epoch(1),
    lambda dataset: dataset.epoch(2),
    lambda dataset: dataset.repeat(2),
    lambda dataset: dataset.repeat(2, reshuffle=False),
    lambda dataset: dataset.reindex(Rotated(5000)),
    lambda dataset: dataset.reindex(Rotated(5000, by=2)),
    lambda dataset: dataset.reindex(Rotated(4000)),
    lambda dataset: dataset.reindex(Rotated(5000)).take(100),
    lambda dataset: dataset.reindex(Rotated(5000, by=2)).take(100),
    lambda dataset: dataset.filter(is_odd),
    lambda dataset: dataset.map(double, on_error="skip"),
    lambda dataset: dataset.subset(7),
]


def test_other_orders_have_other_digests() -> None:
    """Each other order or choice has another digest, long selections included."""
    digests = [order(ps.range(5000)).fingerprint["order"] for order in ORDERS]
    assert len(set(digests)) == len(ORDERS)


class OwnFingerprint(Rotated):
    """A sampler with a fingerprint of its own."""

    def fingerprint(self) -> str:
        """Return its parameters."""
        return f"rotated by {self.by}"


class Versioned(Squares):
    """A source with a fingerprint of its own."""

    def __init__(self, version: object) -> None:
        super().__init__(9)
        self.version = version

    def fingerprint(self) -> str:
        """Return the version; a careless author may give another type."""
        return cast("str", self.version)


def test_own_fingerprints_count() -> None:
    """Of a sampler or a source with a fingerprint, which must be a str, nothing else counts."""
    assert differing(ps.range(9).reindex(OwnFingerprint(9)), ps.range(9).reindex(OwnFingerprint(9))) == set()
    assert differing(ps.range(9).reindex(OwnFingerprint(9)), ps.range(9).reindex(OwnFingerprint(9, 2))) == {"order"}
    assert differing(ps.read(Versioned("a")), ps.read(Versioned("a"))) == set()
    assert differing(ps.read(Versioned("a")), ps.read(Versioned("b"))) == {"source"}
    with pytest.raises(ValueError, match=r"fingerprint\(\) of a source must return a str; got 3"):
        _ = ps.read(Versioned(3)).fingerprint
