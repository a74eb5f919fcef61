"""`penstock lint` computes every record of a dataset, and lists those that fail and leaves that batches can't hold."""

import json
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock.errors import UsageError, WorkerError
from tests.cli.command import main
from tests.places import LINUX

Output = pytest.CaptureFixture[str]
HERE = __name__
COUNT = 70


class Photographs:
    """A source whose records have names, and of which two can't be read."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, key: int) -> dict[str, Any]:
        number = self.first + int(key)
        if number in {3, 40}:
            raise KeyError("photograph")
        return {
            "number": number,
            "label": -int(key),
            "text": f"the text of number {number}, " * 4,
        }

    def describe_key(self, key: int) -> str:
        """Return the name of a record."""
        return f"file '{self.first + key}.jpg'"


def with_defects(record: dict[str, Any]) -> dict[str, Any]:
    """Return an element; some have a defect each."""
    number = record["number"]
    if number == 11:
        raise ValueError("truncated\nat byte 7")
    values = np.full(4, float(number))
    values[2] = {20: np.nan, 21: np.inf, 22: np.nan}.get(number, 1.0)
    return {
        "values": values,
        "boxes": np.zeros((5 if number == 30 else 2, 4)) + number,
        "label": float(number) if number == 31 else number,
        "kind": 7,
        **({"extra": 1} if number == 32 else {}),
    }


def is_whole(number: int) -> bool:
    """Return True."""
    return number >= 0


def boxes(record: dict[str, Any]) -> dict[str, Any]:
    """Return an element whose leaf varies in length."""
    return {"boxes": np.zeros(1 + record["number"] % 3) + record["number"]}


def gaps(number: int) -> dict[str, Any]:
    """Return leaves of which one record each lacks the value."""
    fields = [("name", "U4"), ("box", [("x", "f4", 2)])]
    return {
        "time": np.datetime64("NaT" if number == 5 else "2020-01-01", "D"),
        "table": np.array([("cat", ([number, np.nan if number == 6 else 0],))], fields),
        "bytes": np.void(b"abcd"),
    }


def halves(number: int) -> Any:
    """Return two numbers of dtypes of ml_dtypes."""
    return {"half": np.full(2, np.inf if number == 7 else number, "bfloat16"), "number": np.full(2, 1, "int4")}


def crash(number: int) -> int:
    """End the process at one number."""
    if number == 50:
        os._exit(3)
    return number


def leave(number: int) -> int:
    """Raise SystemExit at two numbers, as a library's command may."""
    if number in {2, 3}:
        sys.exit("no codec")
    return number


class Unstartable:
    """A function that ends each worker process before it has started."""

    def __call__(self, number: int) -> int:
        """Return the number."""
        return number

    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (4,)


def interrupt(number: int) -> int:
    """Press Ctrl-C at one number."""
    if number == 45:
        os.kill(os.getpid(), signal.SIGINT)
    return number


def no_negatives(batch: dict[str, Any]) -> dict[str, Any]:
    """Refuse the last batch."""
    if batch["label"][-1] > 60:
        raise ValueError("too large")
    return batch


photographs = ps.read(Photographs(), seed=7)
defects = photographs.map(with_defects, on_error=ps.Substitute()).cache().shuffle().batch(8).repeat()
in_order = photographs.select([*range(4, 40), *range(41, COUNT)]).filter(bool).map(with_defects, on_error="skip")
padded = ps.read(Photographs(100)).map(boxes).padded_batch(8)
stacked = ps.read(Photographs(100)).map(boxes).repeat().batch(8)
with_gaps = ps.range(16).map(gaps).batch(4)
with_halves = ps.range(16).map(halves).batch(4)
nothing = ps.range(0).batch(8)
refused = ps.range(1).filter(bool)
few = ps.range(5).batch(8, remainder="drop")
crashes = ps.range(256).map(crash).batch(4)
leaves = ps.range(64).map(leave)
leaves_in_order = leaves.filter(is_whole)
unstartable = ps.range(64).map(Unstartable())
interrupted = ps.range(128).map(interrupt).batch(4)
validation = ps.read(Photographs(60)).map(boxes).padded_batch(8)
above = ps.read(Photographs(100)).map(lambda record: {"label": record["number"] - 100}).batch(8).map(no_negatives)
merged = ps.range(16).map(lambda number: {"label": number if number % 2 else float(number)}).batch(8, merge=list)
huge = ps.range(16).batch(1 << 40, remainder="pad")
endless = ps.mix({"a": photographs.repeat(), "b": photographs.repeat()}, {"a": 1, "b": 1}).batch(4)


def loader() -> ps.Loader[Any]:
    """Return the loader of a rank, whose batches have 960 kB."""
    wide = ps.range(108).map(lambda number: np.full(20_000, number)).batch(18)
    return ps.Loader(wide, shard=ps.Shard(1, 3), num_workers=1, workers="threads", memory=1_500_000)


LEAVES = {
    "dtype": "['label'] has several dtypes, and a batch promotes none: int64 in {one}, float64 in key 31",
    "ragged": "['boxes'] has several shapes, and a batch has one: (2, 4) in {one} and (5, 4) in key 30 (file '30.jpg')",
    "nan": "['values'] has NaN in 2 records and is infinite in 1 record; the first is key 2",
    "constant": "['kind'] is 7 in all {good} records",
    "structure": "elements differ in structure, so a batch can't hold them: the element has the key 'extra' in ",
}
Lint = Callable[..., str]


@pytest.fixture
def lint(capsys: Output) -> Lint:
    """Return a function that inspects datasets of this module, and returns what is printed, as one line."""

    def run(names: str, *options: str, workers: int = 0, status: int = 1) -> str:
        listed = [f"{HERE}:{name}" for name in names.split()]
        assert main(["lint", *listed, "--num-workers", str(workers), *options]) == status
        printed = capsys.readouterr()
        return " ".join((printed.err if status == 2 else printed.out).split())

    return run


def findings(output: str, dataset: str = "") -> dict[str, dict[str, Any]]:
    """Return the findings of the JSON output by their checks."""
    listed = json.loads(output)["findings"]
    return {each["check"]: each for each in listed if dataset in each["dataset"]}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=LINUX)])
def test_every_defect_is_found(workers: int, lint: Lint) -> None:
    """Records that fail are named though `on_error` would replace them; the others are compared leaf by leaf."""
    output = lint("defects", "--ranks", "4", "--json", workers=workers)
    found = findings(output)
    assert found.keys() == {"failed", "ranks", *LEAVES}
    assert json.loads(output)["datasets"][0]["steps"] == 9  # the last batch has 6 rows
    assert sorted(found["failed"]["records"]) == [
        "key 11 (file '11.jpg'): ValueError: truncated (in step 'with_defects')",
        "key 3 (file '3.jpg'): KeyError: 'photograph'",
        "key 40 (file '40.jpg'): KeyError: 'photograph'",
    ]
    first = found["ragged"]["text"].partition("(2, 4) in ")[2].partition(" and ")[0]
    for check, text in LEAVES.items():
        assert found[check]["text"].startswith(text.format(one=first, good=COUNT - 3))
    assert found["nan"]["count"] == 3
    assert found["ranks"]["text"].startswith("the last batch has 6 rows, and 4 ranks get 1 or 2 of them")


def test_missing_values_of_any_dtype_are_found(lint: Lint) -> None:
    """NaT counts as NaN does, and a structured array has the values of all its fields."""
    text = lint("with_gaps", "--allow", "constant")
    assert "['time'] has NaT in 1 record; the first is key 5" in text
    assert "['table'] has NaN in 1 record; the first is key 6" in text
    assert "2 findings" in text


def test_missing_values_of_dtypes_that_ml_dtypes_adds(lint: Lint) -> None:
    """NumPy counts them as no floats, and some of them are integers."""
    pytest.importorskip("ml_dtypes")
    text = lint("with_halves", "--allow", "constant")
    assert "['half'] is infinite in 1 record; the first is key 7" in text
    assert "1 finding" in text


def test_an_inspection_in_order_goes_on_after_failures(lint: Lint) -> None:
    """An element whose function fails is left out and listed; a record that can't be read ends the inspection."""
    text = lint("in_order")
    assert "1 record of 65 can't be computed key 11: ValueError: truncated" in text
    assert "['kind'] is 7 in all 64 records" in text
    lint("in_order", "--from", "2", status=2)


def test_batches_decide_which_leaves_fit(lint: Lint) -> None:
    """Leaves of several lengths may be padded, not stacked; functions above the batch get the first and last batch.

    A function of the user's that merges rows may take any.
    """
    text = lint("padded", "--ranks", "3")
    assert "3 ranks can't share it: a global batch must divide by the number of ranks; got batch(8)" in text
    assert "ragged" not in text
    assert "['boxes'] has several shapes" in lint("stacked")
    text = lint("stacked", "--allow", "ragged", status=0)
    assert text.endswith("no findings")
    assert re.search(r"a batch takes [1-9]\d* bytes, and 3 in flight [1-9]\d* bytes, of ", text)
    assert "batch 8 can't be made: ValueError: too large (in step 'no_negatives')" in lint("above")
    lint("merged", status=0)
    assert "a batch takes 8796.09 GB, and 3 in flight 26388.28 GB, of " in lint("huge")


def test_a_dataset_without_a_batch_is_a_finding(lint: Lint) -> None:
    """It has no elements, also after a filter, or too few for a batch."""
    for name, why in (("nothing", "no elements"), ("refused", "no elements"), ("few", "elements, 5, is below")):
        found = findings(lint(name, "--json"))
        assert found.keys() == {"empty"}
        assert why in found["empty"]["text"]


def test_a_loader_is_checked_as_it_is(lint: Lint) -> None:
    """Its ranks share the batches, and its memory holds the rank's part of a batch; --ranks checks other ones."""
    found = findings(lint("loader", "--json"))
    assert found.keys() == {"memory"}
    assert "the loader's memory= has room for 1 of them, which is too small for" in found["memory"]["text"]
    with loader() as made, pytest.raises(UsageError, match="memory=1500000 is too small"):
        deque(made, maxlen=1)  # keeps a batch until it has the next one, as a training does
    assert "4 ranks can't share it" in lint("loader", "--ranks", "4", "--allow", "memory")


def test_records_of_two_splits_are_compared(lint: Lint) -> None:
    """A record counts as the same one if its largest leaf is, whatever its label and its functions."""
    found = findings(lint("defects validation", "--json"), "defects")["shared"]
    assert found["count"] == 10
    assert min(found["records"]) == "key 60 (file '60.jpg') and key 0 (file '60.jpg')"
    lint("defects validation", "--from", "1", status=2)
    assert "its records are not compared with those of another dataset" in lint("refused validation")


@LINUX
def test_a_record_that_ends_workers_is_named(lint: Lint) -> None:
    """The other records of its part are inspected; workers that end before they have started are no finding."""
    text = lint("crashes", workers=1)
    assert "1 record of 256 can't be computed key 50: WorkerError: it ends the process" in text
    with pytest.raises(WorkerError, match="ended with exit code 4 before it had started"):
        lint("unstartable", workers=1)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=LINUX)])
def test_a_function_that_raises_system_exit_fails(workers: int, lint: Lint) -> None:
    """Its record is named, as one that raises another exception; an inspection in order ends there."""
    text = lint("leaves", workers=workers)
    assert "2 records of 64 can't be computed key 2: SystemExit: no codec" in text
    assert "SystemExit: no codec" in lint("leaves_in_order", workers=workers)


def test_an_inspection_is_stopped_and_continued(lint: Lint) -> None:
    """Ctrl-C shows the findings so far, and the step from which on the next call inspects the rest."""
    text = lint("interrupted", status=130)
    records = int(re.findall(r"interrupted: (\d+) records in", text)[0])
    assert 0 < records <= 44  # how many were complete depends on their times
    assert f"continue with --from {records // 4} no findings so far" in text
    assert f"{HERE}:crashes: 204 records in" in lint("crashes", "--from", "13", status=0)


def test_wrong_arguments_are_refused(lint: Lint) -> None:
    """The message has the rule and a remedy; the status is 2."""
    assert "must be a dataset" in lint("HERE", status=2)
    assert "--from must be below 64, the steps of" in lint("crashes", "--from", "64", status=2)
    assert "lint needs a dataset with an end. Lint its parts, or use take(n)" in lint("endless", status=2)


def odd() -> ps.Dataset:
    """Return a dataset that is read in order, and that only cloudpickle can send."""
    return ps.range(40).filter(lambda number: bool(number % 2)).batch(4)


def test_a_function_that_cannot_be_sent_is_no_defect_of_a_record(lint: Lint, monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, too, the message is that of the loader, with its remedies; threads need no pickle."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert "all of it must be picklable; got" in lint("odd", workers=2, status=2)
    assert "20 records in" in lint("odd", "--workers", "threads", workers=2, status=0)
