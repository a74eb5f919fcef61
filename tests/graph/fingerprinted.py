"""Datasets whose fingerprints are compared between processes; run as a script, the module prints what must agree."""

import json
import sys
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

import penstock as ps
from tests.dataset.functions import Rotated, Scale, Squares, double, is_odd, noisy
from tests.graph.identified import identities


def classify(word: str) -> str:
    """Return a word's kind, by sets whose order depends on the process."""
    return "fruit" if word in {"apple", "pear", "plum", "fig"} else "other"


def nested(words: Iterable[str]) -> Any:
    """Return a function's inner code with a set in it."""
    return [word for word in words if word in {"a", "b", "c", "d"}]


TABLE = {1: {"apple", "pear"}, 2: frozenset("abc"), 3: np.arange(3)}
KINDS = [{"fruit", "tree", "shrub"}, ["a", TABLE]]


def isin(kinds: Any, number: object) -> bool:
    """Return whether a number is in one of the kinds."""
    return any(number in kind for kind in kinds)


DATASETS: dict[str, ps.Dataset] = {
    "range": ps.range(10, seed=3).shuffle().batch(3),
    "sets": ps.read(["apple", "axe"]).map(classify).map(nested, name="nested"),
    "own source": ps.read(Squares(9)).random_map(noisy).map(Scale(3)),
    "own sampler": ps.range(9).reindex(Rotated(9)),
    "own sampler, chosen from": ps.range(9).reindex(Rotated(9)).take(4),
    "long selection": ps.range(5000).select(range(0, 5000, 2)),
    "filter": ps.range(9).shuffle().filter(is_odd).map(double, on_error="skip").padded_batch(2).unbatch(),
    "split": ps.range(9).shuffle().split({"a": 0.5, "b": 0.5})["b"].repeat(2).epoch(1),
    "held values": ps.range(9).map(Scale(3)).map(TABLE.get).map(partial(isin, KINDS), name="isin"),
    "inner batches": ps.zip([ps.range(9).batch(4), ps.read([{"a": "b"}] * 3)]).unbatch(),
    "opened": ps.stream(lambda: [TABLE]),
    "arrays": ps.read({"x": np.arange(6), "y": np.zeros((6, 2))}).subset(3),
}


def agreed(datasets: Mapping[str, ps.Dataset]) -> dict[str, Any]:
    """Return the fingerprints, in datasets and in the states of loaders, and the identities of functions."""
    return {
        "datasets": {name: dataset.fingerprint for name, dataset in datasets.items()},
        "states": {name: ps.Loader(dataset).state_dict()["fingerprint"] for name, dataset in datasets.items()},
        "functions": identities(),
    }


if __name__ == "__main__":
    json.dump(agreed(DATASETS), sys.stdout)
