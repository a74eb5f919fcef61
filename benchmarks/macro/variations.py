"""Variations of one workload, side by side, with the worst share of the limit on top.

A loader that is fast in one form of a workload may be slow in the next: with tuples or tensors in place of arrays, in
batches of one, with a function above the batch or a merge of the user's. Each variation changes one or two things of
the first. The limit is the plainest loop of this process that makes the same batches of the same items: so workers of
cheap items can at best pass on what they make, and items that take longer reach the number of workers. An object of
the user's gives the items, and for the first variation also one array; of that one, and of one whose items take longer,
1, 4 and 16 workers are measured, too. Those with tensors need torch.

A loader is opened for each measurement, whose time begins with the third batch and ends after `MOST_SECONDS`, at the
latest with the last batch. So a slow rival gives fewer batches. The check that all give the same rows reads the first
`CHECKED` items of each, and is the only run before the measured ones.

One round with the rivals takes about three minutes. `--only TEXT` measures the variations and places whose names have a
text in them, such as "dicts by 32" or "threads".

Below the table is the reason for each share of ours that is below `LEAST`. They follow from the workload and the place
(`reason`):

- *Workers that have nothing to do.* The loop makes a batch of one item in 1.5 microseconds. `next()` alone, a call in
  Python that counts the batch and takes the time, costs a third of that, and a batch from another thread is copied out
  of the memory of its job as well. `num_workers="auto"` computes such batches inline.
- *Threads that hold the GIL.* A function of the user's that holds it runs in one thread at a time. So threads are at
  best as fast as inline, less the part of the consumer's thread in each batch. `num_workers="auto"` chooses inline, or
  processes where a batch takes longer.
- *More workers than processors.* 16 workers of two processors take turns with the training's own thread, which passes
  on batches that each of them made in 15 microseconds. `num_workers="auto"` starts no more than there are processors.
- *torch's semantics.* `penstock.torch.DataLoader` without workers is torch's own code, and with workers it calls
  torch's collate function, which makes a tensor of each item before it stacks these: 2 to 3 microseconds an item.
- *Merges that make arrays.* Rows that are stacked are written where the consumer reads them. What a merge returns, a
  padded batch for one, is copied to there by the worker, and out of there by the consumer: 20 to 40 microseconds of
  processor time for 32 kB. `num_workers="auto"` computes such batches of cheap items inline.
- *Steps above the batch.* The loop has none, so the call of such a step, and what passes its result on, are losses.
"""

import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

import penstock as ps
from benchmarks.bench import Bench
from benchmarks.macro.places import Place, open_loader
from benchmarks.scenario import Contestant, Measurement, Output, Role, Scenario, per_second

UNIT = per_second("items")
MOST_ITEMS: Final = 1_000_000
MOST_SECONDS: Final = 0.5  # of a measurement, beside the start of its workers
CHECKED: Final = 1_000  # items of each contestant that are compared with those of the others
ROUNDS: Final = 3
_COLLATED_MICROSECONDS: Final = 20  # of an item, beside which collating it takes little
LEAST: Final = 0.6  # of the loop's rate; a share below it has a reason
UNTIMED: Final = 2  # batches, before which workers start
VALUES: Final = np.arange(256, dtype=np.float32)
LENGTHS: Final = np.random.default_rng(7).integers(20, len(VALUES), 1 << 12).tolist()  # of ragged items
Kind = Literal[
    "int", "array", "tuple", "dict", "named tuple", "tensor", "dict of tensors", "ragged array", "ragged tensor"
]
Above = Literal["", "identity", "tensors"]


class Pair(NamedTuple):
    """An item of the kind "named tuple"."""

    x: Any
    y: Any


@dataclass(frozen=True, slots=True)
class Work:
    """One variation: items by their index, and batches of them.

    Attributes:
        name: the name of the variation.
        kind: the type of an item.
        batch_size: the items of a batch.
        microseconds: the processor time that an item takes, beside making it.
        above: the function above the batch: none, one that returns the batch, or one that makes its arrays tensors.
        is_merged: whether a function of the user's makes a batch of its rows.
        most_items: the largest number of items of a pass.
    """

    name: str
    kind: Kind = "array"
    batch_size: int = 32
    microseconds: int = 0
    above: Above = ""
    is_merged: bool = False
    most_items: int = MOST_ITEMS

    @property
    def count(self) -> int:
        """The number of items of a pass."""
        by_time = int(MOST_SECONDS * 1e6 / max(self.microseconds, 1))
        return min(self.most_items, by_time) // self.batch_size * self.batch_size

    @property
    def needs_torch(self) -> bool:
        """Whether items or batches have tensors."""
        return "tensor" in self.kind or self.above == "tensors"

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:  # noqa: ANN401 - of each kind
        if index >= self.count:
            raise IndexError(index)
        if self.microseconds:
            until = time.thread_time_ns() + self.microseconds * 1000
            while time.thread_time_ns() < until:
                pass
        return self.of_kind(index)

    def of_kind(self, index: int) -> object:
        """Return an item, without the time that it takes."""
        values = VALUES[: LENGTHS[index % len(LENGTHS)]] if "ragged" in self.kind else VALUES
        match self.kind:
            case "int":
                return index
            case "array" | "ragged array":
                return values
            case "tuple":
                return VALUES, index
            case "named tuple":
                return Pair(VALUES, index)
            case "dict":
                return {"x": VALUES, "y": index}
            case "tensor" | "ragged tensor":
                return tensor_of(values)
            case "dict of tensors":
                return {"x": tensor_of(VALUES), "y": index}

    def batches(self) -> Iterator[Any]:
        """Yield the batches of the plainest loop."""
        for start in range(0, self.count, self.batch_size):
            batch = self.batch_of([self[index] for index in range(start, start + self.batch_size)])
            yield as_tensors(batch) if self.above == "tensors" else batch

    def batch_of(self, rows: list[Any]) -> object:
        """Return a batch of rows."""
        if self.is_merged:
            return merged(rows)
        match self.kind:
            case "tuple" | "named tuple":
                columns = tuple(map(np.array, zip(*rows, strict=True)))
                return columns if self.kind == "tuple" else Pair(*columns)
            case "tensor":
                return torch().stack(rows)
            case "dict of tensors":
                return {"x": torch().stack([row["x"] for row in rows]), "y": np.array([row["y"] for row in rows])}
            case "dict":
                return {name: np.array([row[name] for row in rows]) for name in rows[0]}
            case "ragged tensor":
                return torch().nn.utils.rnn.pad_sequence(rows, batch_first=True)
            case _:
                return padded(rows) if "ragged" in self.kind else np.array(rows)


def has_torch() -> bool:
    """Return whether torch is installed."""
    return importlib.util.find_spec("torch") is not None


def torch() -> ModuleType:
    """Return torch."""
    return importlib.import_module("torch")


def tensor_of(array: NDArray[Any]) -> object:
    """Return a tensor over an array."""
    return torch().from_numpy(array)


def merged(rows: list[Any]) -> dict[str, Any]:
    """Return a batch with a number that rows don't have."""
    return {"x": np.stack(rows), "rows": np.array([len(rows)])}


def padded(rows: list[NDArray[Any]]) -> NDArray[Any]:
    """Return a batch whose rows are as long as the longest one, with zeros."""
    batch = np.zeros((len(rows), max(map(len, rows))), rows[0].dtype)
    for number, row in enumerate(rows):
        batch[number, : len(row)] = row
    return batch


def as_tensors(batch: object) -> object:
    """Return a batch whose arrays are tensors."""
    if isinstance(batch, dict):
        return {name: tensor_of(array) for name, array in cast("dict[str, NDArray[Any]]", batch).items()}
    return tensor_of(cast("NDArray[Any]", batch))


VARIATIONS: Final = (
    Work("arrays by 32"),
    Work("ints by 32", kind="int"),
    Work("tuples by 32", kind="tuple"),
    Work("dicts by 32", kind="dict"),
    Work("ints by 1", kind="int", batch_size=1),
    Work("arrays by 1", batch_size=1),
    Work("arrays by 512", batch_size=512),
    Work("ints by 4096", kind="int", batch_size=4096),
    Work("arrays by 32, a function above", above="identity"),
    Work("dicts by 32, a function above", kind="dict", above="identity"),
    Work("arrays by 512, a function above", batch_size=512, above="identity"),
    Work("named tuples by 32", kind="named tuple"),
    Work("tensors by 32", kind="tensor"),
    Work("dicts of tensors by 32", kind="dict of tensors"),
    Work("arrays by 32, tensors above", above="tensors"),
    Work("dicts by 32, tensors above", kind="dict", above="tensors"),
    Work("arrays by 32, merged", is_merged=True),
    Work("ragged arrays by 32", kind="ragged array"),
    Work("ragged tensors by 32", kind="ragged tensor"),
    Work("ints by 32, 1 us each", kind="int", microseconds=1),
    Work("arrays by 1, 20 us each", batch_size=1, microseconds=20),
    Work("arrays by 32, 20 us each", microseconds=20),
    Work("dicts by 8, 200 us each", kind="dict", batch_size=8, microseconds=200),
)
SLOWER: Final = VARIATIONS[-2]
COUNTS: Final = (1, 4, 16)  # of workers, beside 2
SMOKE: Final = (
    Work("arrays by 100", batch_size=100, most_items=800),
    Work("tuples by 32", "tuple", most_items=320),
    Work("dicts of tensors by 32", "dict of tensors", most_items=320),
    Work("arrays by 32, merged", is_merged=True, most_items=320),
    Work("ragged tensors by 32", "ragged tensor", most_items=320),
)


def build(bench: Bench) -> Scenario:
    """Return the scenario: for each variation the loop, Penstock in three places, and rivals."""
    variations = [work for work in (SMOKE if bench.smoke else VARIATIONS) if has_torch() or not work.needs_torch]
    places: tuple[Place, ...] = ("inline", "threads") if bench.smoke else ("inline", "threads", "processes")
    made: list[Contestant] = []
    for work in variations:
        made.append(contestant(work, limit_of(work), "limit", work.batches))
        made += [_ours(work, place) for place in places]
        if work in (variations[0], SLOWER) and not bench.smoke:
            made += [_ours(work, place, count) for place in places[1:] for count in COUNTS]
        made += bench.rivals("variations", work)
    made += [_of_array(variations[0], place) for place in places[:2]]
    return Scenario(
        "variations",
        f"{len(variations)} variations of items in batches",
        tuple(made),
        ROUNDS,
        summary=_worst_on_top,
        warms_up=False,
    )


def limit_of(work: Work) -> str:
    """Return the name of a variation's limit."""
    return f"{work.name}: loop"


def _ours(work: Work, place: Place, num_workers: int = 2) -> Contestant:
    def batches() -> Iterator[Any]:
        items = ps.read(work)
        if "ragged" in work.kind:
            dataset = items.padded_batch(work.batch_size)
        else:
            dataset = items.batch(work.batch_size, merge=merged if work.is_merged else None)
        if work.above:
            dataset = dataset.map(as_tensors if work.above == "tensors" else _same)
        with ExitStack() as scope:
            _, loader = open_loader(scope, dataset, place, num_workers)
            yield from loader

    counted = place if num_workers == 2 else f"{num_workers} {place}"
    return contestant(work, f"{work.name}: penstock {counted}", "ours", batches)


def _of_array(work: Work, place: Place) -> Contestant:
    """Return a contestant that reads the same items from one array, whose rows share their memory."""

    def batches() -> Iterator[Any]:
        items = np.broadcast_to(VALUES, (work.count, len(VALUES)))
        with ExitStack() as scope:
            _, loader = open_loader(scope, ps.read(items).batch(work.batch_size), place)
            yield from loader

    return contestant(work, f"{work.name}: penstock {place}, of one array", "ours", batches)


def _same(batch: object) -> object:
    return batch


def contestant(work: Work, name: str, role: Role, batches: Callable[[], Iterable[Any]]) -> Contestant:
    """Return a contestant of a variation, which opens what it measures."""
    output = Output(work.name, partial(_arrays, work, batches))
    against = () if role == "limit" else (limit_of(work),)
    return Contestant(name, role, partial(_timed, work, batches), UNIT, against, output=output, repeats=1)


def _arrays(work: Work, batches: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """Yield the first leaf of each of the first batches."""
    for batch in islice(batches(), max(CHECKED // work.batch_size, UNTIMED)):
        yield np.asarray(
            batch["x"] if "dict" in work.kind or work.is_merged else batch[0] if "tuple" in work.kind else batch
        )


def _timed(work: Work, batches: Callable[[], Iterable[Any]], repeats: int) -> Measurement:
    amount, seconds = 0, 0.0
    for _ in range(repeats):
        number, began, ended = 0, 0.0, 0.0
        for number, _batch in enumerate(batches()):
            ended = time.perf_counter()
            if number == UNTIMED - 1:
                began = ended
            elif number >= UNTIMED and ended - began >= MOST_SECONDS:
                break
        amount += (number + 1 - UNTIMED) * work.batch_size
        seconds += ended - began
    return Measurement(amount, seconds)


def reason(work: Work, place: str) -> str:
    """Return why a place may be below `LEAST` of the loop in a variation; empty if it should not be."""
    if place.startswith("penstock.torch") and work.microseconds < _COLLATED_MICROSECONDS:
        return "torch's own collate function makes a tensor of each item"
    if work.batch_size == 1 and not work.microseconds:
        return "passing on a batch of one item takes as long as making it"
    if "thread" in place and not work.microseconds:
        return "the items hold the GIL, so threads add only their cost"
    if place.startswith(f"penstock {COUNTS[-1]} ") and not work.microseconds:
        return "more workers than processors wait for their turn to make items that take no time"
    if "processes" in place and (work.is_merged or "ragged" in work.kind):
        return "the batches that a merge makes are copied to the consumer, which takes as long as making them"
    return "a function that the loop doesn't have" if work.above else ""


def _worst_on_top(medians: Mapping[str, float]) -> str:
    """Return a table of all contestants but the limits, by their share of the limit's rate, with reasons."""
    works = {work.name: work for work in (*VARIATIONS, *SMOKE)}
    rows: list[tuple[float, str, str]] = []
    for name, value in medians.items():
        variation, _, place = name.partition(": ")
        if place != "loop":
            share = value / medians[f"{variation}: loop"]
            is_explained = place.startswith("penstock") and share < LEAST
            rows.append((share, name, (reason(works[variation], place) or "NO REASON") if is_explained else ""))
    if not rows:
        return "share of the loop: only loops were measured"
    width = max(len(name) for _, name, _ in rows)
    lines = [f"{share:8.3f}  {name:{width}}  {why}".rstrip() for share, name, why in sorted(rows)]
    return "\n".join(["share of the loop, the worst first:", *lines])
