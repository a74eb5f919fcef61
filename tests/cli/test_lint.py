"""`penstock lint` computes every record of a dataset, and lists those that fail and leaves that batches can't hold."""

import json
import os
import re
import signal
import sys
from collections import deque
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


def findings(output: str, dataset: str = "") -> dict[str, dict[str, Any]]:
    """Return the findings of the JSON output by their checks."""
    listed = json.loads(output)["findings"]
    return {each["check"]: each for each in listed if dataset in each["dataset"]}


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=LINUX)])
def test_every_defect_is_found(workers: str, capsys: Output) -> None:
    """Records that fail are named though `on_error` would replace them; the others are compared leaf by leaf."""
    assert main(["lint", f"{HERE}:defects", "--num-workers", workers, "--ranks", "4", "--json"]) == 1
    found = findings(capsys.readouterr().out)
    assert found.keys() == {"failed", "ranks", *LEAVES}
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


def test_missing_values_of_any_dtype_are_found(capsys: Output) -> None:
    """NaT counts as NaN does, and a structured array has the values of all its fields."""
    assert main(["lint", f"{HERE}:with_gaps", "--num-workers", "0", "--allow", "constant"]) == 1
    text = capsys.readouterr().out
    assert "['time'] has NaT in 1 record; the first is key 5" in text
    assert "['table'] has NaN in 1 record; the first is key 6" in text
    assert "2 findings" in text


def test_missing_values_of_dtypes_that_ml_dtypes_adds(capsys: Output) -> None:
    """NumPy counts them as no floats, and some of them are integers."""
    pytest.importorskip("ml_dtypes")
    assert main(["lint", f"{HERE}:with_halves", "--num-workers", "0", "--allow", "constant"]) == 1
    text = capsys.readouterr().out
    assert "['half'] is infinite in 1 record; the first is key 7" in text
    assert "1 finding" in text


def test_what_is_read_in_order_goes_on_after_failures(capsys: Output) -> None:
    """An element whose function fails is left out and listed; a record that can't be read ends the inspection."""
    assert main(["lint", f"{HERE}:in_order", "--num-workers", "0"]) == 1
    text = capsys.readouterr().out
    assert "1 record of 65 can't be computed\n              key 11: ValueError: truncated" in text
    assert "['kind'] is 7 in all 64 records" in text
    assert main(["lint", f"{HERE}:in_order", "--from", "2"]) == 2


def test_batches_decide_which_leaves_fit(capsys: Output) -> None:
    """Leaves of several lengths may be padded, not stacked; functions above the batch get the first and last batch."""
    assert main(["lint", f"{HERE}:padded", "--num-workers", "0", "--ranks", "3"]) == 1
    text = capsys.readouterr().out
    assert "3 ranks can't share it: a global batch must divide by the number of ranks; got batch(8)" in " ".join(
        text.split()
    )
    assert "ragged" not in text
    assert main(["lint", f"{HERE}:stacked", "--num-workers", "0"]) == 1
    assert "['boxes'] has several shapes" in capsys.readouterr().out
    assert main(["lint", f"{HERE}:stacked", "--num-workers", "0", "--allow", "ragged"]) == 0
    text = capsys.readouterr().out
    assert text.endswith("no findings\n")
    assert re.search(r"a batch takes [1-9]\d* bytes, and 3 in flight [1-9]\d* bytes, of ", text)
    assert main(["lint", f"{HERE}:above", "--num-workers", "0"]) == 1
    assert "batch 8 can't be made: ValueError: too large (in step 'no_negatives')" in capsys.readouterr().out
    assert main(["lint", f"{HERE}:huge", "--num-workers", "0"]) == 1
    assert "a batch takes 8796.09 GB, and 3 in flight 26388.28 GB, of " in capsys.readouterr().out


def test_a_dataset_without_a_batch_is_a_finding(capsys: Output) -> None:
    """It has no elements, also after a filter, or too few for a batch."""
    for name, why in (("nothing", "no elements"), ("refused", "no elements"), ("few", "elements, 5, is below")):
        assert main(["lint", f"{HERE}:{name}", "--num-workers", "0", "--json"]) == 1
        found = findings(capsys.readouterr().out)
        assert found.keys() == {"empty"}
        assert why in found["empty"]["text"]


def test_a_loader_is_checked_as_it_is(capsys: Output) -> None:
    """Its ranks share the batches, and its memory holds the rank's part of a batch; --ranks checks other ones."""
    assert main(["lint", f"{HERE}:loader", "--num-workers", "0", "--json"]) == 1
    found = findings(capsys.readouterr().out)
    assert found.keys() == {"memory"}
    assert "the loader's memory= has room for 1 of them, which is too small for" in found["memory"]["text"]
    with loader() as made, pytest.raises(UsageError, match="memory=1500000 is too small"):
        deque(made, maxlen=1)  # keeps a batch until it has the next one, as a training does
    assert main(["lint", f"{HERE}:loader", "--num-workers", "0", "--ranks", "4", "--allow", "memory"]) == 1
    assert "4 ranks can't share it" in capsys.readouterr().out


def test_records_of_two_splits_are_compared(capsys: Output) -> None:
    """A record counts as the same one if its largest leaf is, whatever its label and its functions."""
    names = [f"{HERE}:defects", f"{HERE}:validation"]
    assert main(["lint", *names, "--num-workers", "0", "--json"]) == 1
    found = findings(capsys.readouterr().out, "defects")["shared"]
    assert found["count"] == 10
    assert min(found["records"]) == "key 60 (file '60.jpg') and key 0 (file '60.jpg')"
    assert main(["lint", *names, "--from", "1"]) == 2


@LINUX
def test_a_record_that_crashes_workers_is_named(capsys: Output) -> None:
    """The other records of its part are inspected."""
    assert main(["lint", f"{HERE}:crashes", "--num-workers", "1"]) == 1
    text = capsys.readouterr().out
    assert "1 record of 256 can't be computed\n              key 50: WorkerError: it ends the process" in text


@LINUX
def test_workers_that_do_not_start_are_no_finding() -> None:
    """Before a worker process has started, it has computed no record: the error is raised."""
    with pytest.raises(WorkerError, match="ended with exit code 4 before it had started"):
        main(["lint", f"{HERE}:unstartable", "--num-workers", "1"])


@pytest.mark.parametrize("workers", ["0", pytest.param("1", marks=LINUX)])
def test_a_function_that_raises_system_exit_fails(workers: str, capsys: Output) -> None:
    """Its record is named, as one that raises another exception; what is read in order ends there."""
    assert main(["lint", f"{HERE}:leaves", "--num-workers", workers]) == 1
    text = capsys.readouterr().out
    assert "2 records of 64 can't be computed\n              key 2: SystemExit: no codec\n" in text
    assert main(["lint", f"{HERE}:leaves_in_order", "--num-workers", workers]) == 1
    assert "SystemExit: no codec\n" in capsys.readouterr().out


def test_an_inspection_is_stopped_and_continued(capsys: Output) -> None:
    """Ctrl-C shows the findings so far, and the step from which on the next call inspects the rest."""
    assert main(["lint", f"{HERE}:interrupted", "--num-workers", "0"]) == 130
    text = capsys.readouterr().out
    records = int(re.findall(r"interrupted: (\d+) records in", text)[0])
    assert 0 < records <= 44  # how many were complete depends on their times
    assert f"continue with --from {records // 4}\nno findings so far\n" in text
    assert main(["lint", f"{HERE}:crashes", "--num-workers", "0", "--from", "13"]) == 0
    assert f"{HERE}:crashes: 204 records in" in capsys.readouterr().out


def test_wrong_arguments_are_refused(capsys: Output) -> None:
    """The message has the rule and a remedy; the status is 2."""
    for arguments, message in (
        ([f"{HERE}:HERE"], "must be a dataset"),
        ([f"{HERE}:crashes", "--from", "64"], "--from must be below 64, the steps of"),
        ([f"{HERE}:endless"], "lint needs a dataset with an end. Lint its parts, or use take(n)"),
    ):
        assert main(["lint", *arguments]) == 2
        assert message in capsys.readouterr().err
