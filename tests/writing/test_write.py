"""A folder that `write` wrote has the same bytes whoever wrote it, in how many calls, and whatever killed them."""

import array
import contextlib
import datetime
import hashlib
import io
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock._os import this_host
from penstock._writing._drafts import Draft, file_entry
from penstock.errors import UsageError
from tests.cli.command import main
from tests.constants import SetConstant
from tests.processes.helping import watched
from tests.profiles import IS_LONG, in_short
from tests.programs.forked import outcome, started
from tests.writing.numbers import digests, held, numbers

pyarrow = pytest.importorskip("pyarrow")
STRIDE = 1 if IS_LONG else 3  # of the operations before which a call is killed
FORMATS = ("arrow", "parquet", "tokens", "tar", "jsonl")


class Slow(io.FileIO):
    """A file that takes at most three bytes at once."""

    def write(self, content: Any, /) -> int:
        """Write the first bytes, and return how many."""
        return super().write(memoryview(content)[:3])


def test_a_draft_is_written_whole_and_has_its_checksum(tmp_path: Path) -> None:
    """If the system takes fewer bytes than it is given, the rest follows; the entry is that of the file."""
    path = tmp_path / "a.bin"
    contents: list[Any] = [b"", b"0123456", memoryview(b"89"), array.array("i", range(5)), bytearray(b"end")]
    with Slow(str(path), "w") as file:
        draft = Draft(file, str(path))
        sizes = [draft.write(content) for content in contents]
        assert draft.tell() == sum(sizes) == file.tell()
    assert path.read_bytes() == b"".join(map(bytes, contents))
    assert draft.entry(str(path)) == file_entry(str(path))


def read_back(folder: Path, form: str) -> list[Any]:
    """Return the elements of a folder by readers of the formats."""
    paths = sorted(folder.glob(f"*.{form}"))
    if form == "arrow":
        return [row for path in paths for row in pyarrow.ipc.open_file(path).read_all().to_pylist()]
    if form == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        return [row for path in paths for row in parquet.read_table(path).to_pylist()]
    if form == "tokens":
        return [ids.tolist() for ids in ps.read(folder)]
    if form == "tar":
        samples = list(ps.read(ps.sources.Tar(list(map(str, paths)), cache=folder)))
        return [sample | {"txt": sample["txt"].decode()} for sample in samples]
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def modules_here(number: int) -> dict[str, str]:
    """Return the names of modules that the process has, of those that pyarrow imports."""
    return {"found": " ".join(name for name in ("pyarrow.lib", "pandas") if name in sys.modules), "text": "x" * number}


def test_workers_are_forked_with_what_writes_tables(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each worker has pyarrow and pandas from its start: one process imported them for all."""
    pytest.importorskip("pandas")
    ps.write(ps.range(40).map(modules_here), tmp_path, "parquet", shard_bytes=200, num_workers=2)
    assert {row["found"] for row in read_back(tmp_path, "parquet")} == {"pyarrow.lib pandas"}
    assert [record.getMessage() for record in caplog.records if record.name == "penstock"] == []


@pytest.mark.parametrize("form", FORMATS)
def test_any_workers_and_parts_write_the_same_bytes(tmp_path: Path, form: str) -> None:
    """The folders of one thread, of processes, and of three parts in any order are equal; read back, they have all."""
    dataset: ps.Dataset[Any] = numbers()
    if form == "jsonl":
        dataset = dataset.map(lambda element: {"txt": element["txt"]})
    if form == "tokens":
        dataset = dataset.map(lambda element: list(element["raw"]))
    size = 60_000 if form == "tar" else 1000
    written = ps.write(dataset, tmp_path / "alone", form, shard_bytes=size, num_workers=0)
    assert written.complete
    assert written.new == written.shards > 3
    ps.write(dataset, tmp_path / "many", form, shard_bytes=size, num_workers=2)
    parts = [
        ps.write(dataset, tmp_path / "parts", form, shard_bytes=size, num_workers=0, part=(k, 3)) for k in (2, 0, 1)
    ]
    assert [part.complete for part in parts] == [False, False, True]
    assert sum(part.new for part in parts) == written.shards
    expected = digests(tmp_path / "alone")
    manifest = json.loads((tmp_path / "alone" / "manifest.json").read_text())
    assert sum(entry["elements"] for entry in manifest["shards"]) == manifest["elements"] == 300
    for entry in (file for shard in manifest["shards"] for file in shard["files"]):
        size = (tmp_path / "alone" / entry["name"]).stat().st_size
        assert (size, expected[entry["name"]]) == (entry["bytes"], entry["sha256"])
    assert digests(tmp_path / "many") == expected
    assert digests(tmp_path / "parts") == expected
    assert read_back(tmp_path / "alone", form) == list(dataset)


@pytest.mark.parametrize(("form", "part"), [("arrow", 1), ("tar", 7), ("arrow", 15), ("tar", 16)])
def test_parts_of_any_size_are_written_as_blocks(
    tmp_path: Path, set_constant: SetConstant, monkeypatch: pytest.MonkeyPatch, form: str, part: int
) -> None:
    """However many elements are computed at once, a shard has the same bytes, with record batches of the same rows."""
    set_constant("_MAX_BLOCK", 16)
    set_constant("_PART_SECONDS", 1e9)
    ps.write(numbers(), tmp_path / "whole", form, shard_bytes=60_000, num_workers=0)
    set_constant("_PART_SECONDS", part)
    clock = itertools.count(0, 64).__next__  # a second for each of the elements that are measured
    monkeypatch.setattr("penstock._writing._write.time", SimpleNamespace(perf_counter=clock))
    ps.write(numbers(), tmp_path / "parts", form, shard_bytes=60_000, num_workers=0)
    assert digests(tmp_path / "parts") == digests(tmp_path / "whole")


class Unusual(dict[str, Any]):
    """A dict of another type."""


def test_the_form_of_dicts_changes_no_byte(tmp_path: Path) -> None:
    """A table has the same bytes if elements have their fields in another order, or are no plain dicts."""

    def plain(number: int) -> dict[str, Any]:
        return {"label": number, "text": "x" * (number % 7), "none": None if number % 3 else 0.5}

    def other(number: int) -> Mapping[str, Any]:
        element = plain(number)
        return (element, Unusual(element), dict(reversed(element.items())), MappingProxyType(element))[number % 4]

    for form in ("arrow", "parquet"):
        written = [tmp_path / f"{form}-{make.__name__}" for make in (plain, other)]
        for folder, make in zip(written, (plain, other), strict=True):
            ps.write(ps.range(500).map(make), folder, form, shard_bytes=2000, num_workers=0)
        shards = [{name: found for name, found in digests(folder).items() if name[0] == "0"} for folder in written]
        assert len(shards[0]) > 3
        assert shards[0] == shards[1]


WRITING = """
import penstock as ps
from tests.writing.numbers import numbers
ps.write(numbers(), {folder!r}, "tar", shard_bytes=12000, num_workers={workers})
"""


def processes_of(group: int) -> list[psutil.Process]:
    """Return the processes of a group."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(process.pid) == group:
                found.append(process)
    return found


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(
    ("workers", "kills"),
    [(0, (1, 4)), (2, (1,)), pytest.param(2, (1, 4), marks=pytest.mark.long)],  # each call starts processes anew
)
def test_a_killed_call_continues_with_the_missing_shards(tmp_path: Path, workers: int, kills: tuple[int, ...]) -> None:
    """Killed by SIGKILL after its first shards, it leaves whole ones only; the next call writes the others."""
    ps.write(numbers(), tmp_path / "whole", "tar", shard_bytes=12_000, num_workers=0)
    expected, folder = digests(tmp_path / "whole"), tmp_path / "killed"
    killed = 0
    for wanted in kills:
        with started(WRITING.format(folder=str(folder), workers=workers)) as run, watched(run.pid) as has_ended:
            while len(list(folder.glob("0*.tar"))) < wanted:
                assert not has_ended(0.002)
            processes = processes_of(run.pid)
            with contextlib.suppress(ProcessLookupError):  # on a busy machine it may have ended since
                os.killpg(run.pid, signal.SIGKILL)
                killed += 1
            psutil.wait_procs(processes)  # a worker may be just renaming a shard
        found = {name: digest for name, digest in digests(folder).items() if name.endswith(".tar") and name[0] != "."}
        assert found.items() <= expected.items()
    assert killed
    times = {path.name: path.stat().st_mtime_ns for path in folder.glob("0*.tar")}
    again = ps.write(numbers(), folder, "tar", shard_bytes=12_000, num_workers=2)
    assert again.new == again.shards - len(times)
    assert {name: (folder / name).stat().st_mtime_ns for name in times} == times
    assert digests(folder) == expected
    assert ps.write(numbers(), folder, "tar", shard_bytes=12_000).new == 0


HOST = """
import sys, pathlib, penstock as ps
from tests.writing.numbers import held
folder, own = sys.argv[1:]
ps.write(held(pathlib.Path(folder), int(own)), folder, "jsonl", shard_bytes=1000, num_workers=0)
"""


def test_hosts_of_one_name_keep_the_drafts_of_each_other(tmp_path: Path) -> None:
    """A process in another PID namespace doesn't see the process of a draft, as on another host of the same name."""
    elsewhere = ["unshare", "--pid", "--fork"]
    if shutil.which("unshare") is None or subprocess.run([*elsewhere, "true"], capture_output=True).returncode:
        pytest.skip("this user may not make PID namespaces")
    folder, gate, own = tmp_path / "shared", tmp_path / "gate", os.getpid()
    os.mkfifo(gate)
    writer = os.open(gate, os.O_RDWR)
    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(
            ps.write, held(folder, own), folder, "jsonl", shard_bytes=1000, num_workers=0, progress=False
        )
        while not any(folder.glob(".*.jsonl.*.draft")):
            os.sched_yield()
        command = [*elsewhere, sys.executable, "-c", HOST, str(folder), str(own)]
        ended = subprocess.run(command, capture_output=True, check=False)
        gate.unlink()
        os.close(writer)
        assert written.result().complete
    assert ended.returncode == 0, ended.stderr
    ps.write(held(folder, own), tmp_path / "alone", "jsonl", shard_bytes=1000, num_workers=0)
    assert digests(folder) == digests(tmp_path / "alone")


def is_killed_at(folder: Path, point: int) -> bool:
    """Write a folder in a child that kills itself before an operation on a file of it.

    Args:
        folder: the folder.
        point: the number of the operation, from 1.

    Returns:
        Whether it had so many.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside a thread
        child = os.fork()
    if child == 0:
        operations = itertools.count(1)

        def kill(event: str, arguments: tuple[object, ...]) -> None:
            of_folder = event in {"open", "os.mkdir", "os.rename", "os.link", "os.remove", "os.listdir", "os.scandir"}
            if of_folder and str(folder) in str(arguments[0]) and next(operations) == point:
                os.kill(os.getpid(), signal.SIGKILL)

        signal.alarm(60)
        sys.addaudithook(kill)
        try:
            ps.write(numbers(40), folder, "tar", shard_bytes=12_000, num_workers=0, progress=False)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.longer
def test_a_call_killed_before_any_operation_is_continued(tmp_path: Path) -> None:
    """At each of at least thirty points it leaves whole shards only, and the next call writes the others alone.

    The short profile tries every third point.
    """
    ps.write(numbers(40), tmp_path / "whole", "tar", shard_bytes=12_000, num_workers=0)
    expected, point = digests(tmp_path / "whole"), 1
    while is_killed_at(folder := tmp_path / f"{point}", point):
        left = {path.name: path.stat().st_mtime_ns for path in folder.glob("0*.tar")}
        found = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in left}
        assert found.items() <= expected.items()
        again = ps.write(numbers(40), folder, "tar", shard_bytes=12_000, num_workers=0)
        assert again.new == again.shards - len(left)
        assert {name: (folder / name).stat().st_mtime_ns for name in left} == left
        assert digests(folder) == expected
        point += STRIDE
    assert point > 30


@in_short(10)
@given(st.integers(0, 40), st.integers(1, 400), st.integers(1, 5))
def test_shards_divide_the_elements(count: int, size: int, parts: int) -> None:
    """Whatever the sizes, the shards of all parts have each element once, in order."""
    dataset = ps.range(count).map(lambda number: {"n": number})
    with tempfile.TemporaryDirectory() as folder:
        ends = [
            ps.write(dataset, folder, "jsonl", shard_bytes=size, num_workers=0, part=(part, parts)).complete
            for part in range(parts)
        ]
        assert ends[-1]
        assert read_back(Path(folder), "jsonl") == [{"n": number} for number in range(count)]


def test_tables_keep_arrays_and_their_types(tmp_path: Path) -> None:
    """Lists, tensors, missing values, numbers of NumPy and of Python have columns of their types."""

    def make(number: int) -> dict[str, Any]:
        return {
            "ids": np.arange(number % 3, dtype=np.uint16),
            "image": np.full((2, 3), number, np.float32),
            "score": np.float32(number / 3),
            "name": None if number == 4 else str(number),
        }

    ps.write(ps.range(9).map(make), tmp_path, "arrow", num_workers=0)
    table = pyarrow.ipc.open_file(tmp_path / "00000.arrow").read_all()
    tensors = table["image"].combine_chunks().to_numpy_ndarray()
    assert np.array_equal(tensors, np.stack([make(number)["image"] for number in range(9)]))
    assert [str(field.type) for field in table.schema if field.name != "image"] == [
        "list<item: uint16>",
        "float",
        "string",
    ]
    assert table["name"].to_pylist()[3:6] == ["3", None, "5"]


def test_the_size_of_a_shard_counts_what_is_in_its_values(tmp_path: Path) -> None:
    """Shards have about `shard_bytes` also if elements have lists, dicts and texts of any size."""
    values: tuple[object, ...] = (
        *([5] * 1000, {"a": ({"b": 2.5},) * 500}, ["x" * 100] * 80, np.array(["x" * 100] * 80, object)),
        *("\N{GREEK SMALL LETTER PI}" * 4000, bytearray(8000)),
    )
    for number, value in enumerate(values):
        dataset = ps.read([{"x": value}] * 8)
        assert ps.write(dataset, tmp_path / f"{number}", shard_bytes=20_000, num_workers=0).shards in {4, 8}


@pytest.mark.parametrize(
    ("form", "nested"), [("arrow", "a dict"), ("parquet", "a list"), ("arrow", "a list in a dict")]
)
def test_a_block_without_a_value_keeps_its_numbers(tmp_path: Path, form: str, nested: str) -> None:
    """Where all values of a later block are missing, the others keep their bits, those that aren't numbers included."""
    numbers = [0.5, float("nan"), None]

    def make(number: int) -> dict[str, Any]:
        value = [numbers[number % 3]] if "list" in nested else numbers[number % 3]
        return {"x": {"note": "good" if number == 0 else None, "scores": {"a": value} if "dict" in nested else value}}

    ps.write(ps.range(9000).map(make), tmp_path, form, num_workers=0)
    assert repr(read_back(tmp_path, form)) == repr(list(map(make, range(9000))))


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_later_decimals_may_be_larger(tmp_path: Path, form: str) -> None:
    """The first elements decide the digits after the point alone, also in lists and dicts."""
    prices = [Decimal("1.25")] * 70 + [Decimal("123456.75")]
    dataset = ps.read([{"price": price, "nested": [{"price": price}]} for price in prices])
    ps.write(dataset, tmp_path, form, num_workers=0)
    assert list(ps.read(tmp_path)) == list(dataset)


def test_more_than_99999_shards_have_the_order_of_their_names(tmp_path: Path) -> None:
    """A folder is read in the order of names, so all names are equally long."""
    for part in (10_000, 10_001, 100_000):
        ps.write(ps.range(100_001), tmp_path, "jsonl", shard_bytes=1, num_workers=0, part=(part, 100_001))
    assert list(ps.read(tmp_path / "*.jsonl")) == [10_000, 10_001, 100_000]


def test_a_dataset_without_elements_is_read_back(tmp_path: Path) -> None:
    """The folder has no shards."""
    for form in FORMATS:
        assert ps.write(ps.range(0), tmp_path / form, form, num_workers=0).complete
        assert len(ps.read(tmp_path / form)) == 0


def test_a_folder_without_some_shards_is_not_read(tmp_path: Path) -> None:
    """It would be a shorter dataset; the shards that are there can be read by a glob, and all of them by the folder."""
    dataset = ps.range(10)
    ps.write(dataset, tmp_path, "jsonl", shard_bytes=10, num_workers=0, part=(0, 2))
    with pytest.raises(UsageError, match=r"has no manifest\.json, .* Call write again"):
        ps.read(tmp_path)
    assert list(ps.read(tmp_path / "*.jsonl")) == [0, 1, 2, 3, 4]
    ps.write(dataset, tmp_path, "jsonl", shard_bytes=10, num_workers=0)
    assert list(ps.read(tmp_path)) == list(dataset)


def test_a_description_of_another_program_is_no_sign_of_write(tmp_path: Path) -> None:
    """A folder with a `description.json` of the user's is read."""
    for content in ("{}", "no JSON", "[1]"):
        (tmp_path / "description.json").write_text(content)
        (tmp_path / "a.jsonl").write_text("1\n")
        assert list(ps.read(tmp_path)) == [1]


def test_odd_names_of_a_tar_file_come_back(tmp_path: Path) -> None:
    """Names of files that a reader doesn't leave out, also those that are no UTF-8, are keys and fields."""
    for number, (key, field) in enumerate((("./a", "x"), ("a/b.c/d", "tar.gz"), ("a\udc80", "x"), ("é\n", "ü"))):
        element = {"__key__": key, field: b"1"}
        ps.write(ps.read([element]), tmp_path / f"{number}", "tar", num_workers=0)
        assert list(ps.read(tmp_path / f"{number}")) == [element]


def test_tokens_keep_their_dtype_and_documents(tmp_path: Path) -> None:
    """The shards are files of Megatron, of the elements' dtype, read as the documents or as windows."""
    dataset = ps.range(30).map(lambda number: np.full(number % 4, number, np.uint16))
    written = ps.write(dataset, tmp_path, "tokens", shard_bytes=40, num_workers=0)
    assert written.shards > 2
    again = list(ps.read(tmp_path))
    assert [(ids.dtype, ids.tolist()) for ids in again] == [(np.uint16, ids.tolist()) for ids in dataset]
    files = sorted(str(path.with_suffix("")) for path in tmp_path.glob("*.idx"))
    assert len(files) == written.shards
    assert ps.sources.Megatron(files, 2)[0].tolist() == [1, 2]
    ps.write(ps.range(3).map(lambda number: [number]), tmp_path / "other", "tokens", num_workers=0)
    with pytest.raises(UsageError, match=r"have uint16 and int32. Read them as two datasets"):
        ps.sources.Megatron([files[0], tmp_path / "other" / "00000"])


def late(value: object, usual: object = 1) -> Callable[[int], dict[str, object]]:
    """Return a function whose element 77 has another value, which the sample of elements doesn't have."""
    return lambda number: {"x": value if number == 77 else usual}


UNFIT: list[tuple[Callable[[], ps.Dataset[Any]], dict[str, Any], str]] = [
    (lambda: ps.range(4).batch(2), {}, "the dataset has batches. Leave batch"),
    (lambda: ps.range(4).window_shuffle(2), {}, r"in order. Leave that step out, and use it on the files"),
    (lambda: ps.range(4), {"format": "csv"}, "format must be one of 'arrow', 'parquet', 'tokens', 'tar', 'jsonl'"),
    (lambda: ps.range(4), {}, "elements must be dicts .* position 0 is of type int"),
    (lambda: ps.range(4), {"part": (4, 4)}, "k below n"),
    (lambda: ps.range(4), {"path": "s3://bucket/folder"}, "path of a local file or folder"),
    (lambda: ps.range(4), {"path": "~/folder"}, "~ isn't expanded"),
    (lambda: ps.range(4), {"path": __file__}, "must be a folder, or a new one; .* is neither. Choose"),
    (lambda: ps.range(200).map(late("a")), {}, "'x' at position 77 is a str, which doesn't fit into int64"),
    (lambda: ps.range(200).map(late(0.5)), {}, "'x' at position 77 is a float"),
    (
        lambda: ps.read([{"x": object()}]),
        {},
        "'x' at position 0 is a object, .* any type of Arrow. ",
    ),
    (lambda: ps.read([{"jpg": 0}]), {"format": "tar"}, "'jpg' at position 0 is a int"),
    (lambda: ps.read([{"JPG": b""}]), {"format": "tar"}, "lower-case end"),
    (lambda: ps.read([{"__key__": "a", "x": b""}] * 9), {"format": "tar"}, "key 'a' again"),
    (lambda: ps.range(4), {"format": "tokens"}, "the one at position 0 is of type int. Choose the tokens"),
    (
        lambda: ps.range(200).map(lambda n: np.arange(n % 3) if n != 77 else np.ones(2)),
        {"format": "tokens"},
        r"the one at position 77 is float64 of shape \(2,\)",
    ),
    (
        lambda: ps.range(200).map(lambda n: [n] if n != 77 else [2**31]),
        {"format": "tokens"},
        r"fit into int32, .*; those at position 77 are in \[2147483648, 2147483648\]",
    ),
    (lambda: ps.read([np.ones(1, "u4")]), {"format": "tokens"}, "position 0 has uint32. Convert"),
    (
        lambda: ps.range(9).map(lambda n: np.ones(n, "u2" if n < 5 else "u1")),
        {"format": "tokens"},
        "position 0 has uint16, that at position 5 has uint8",
    ),
    (lambda: ps.read([float("nan")]), {"format": "jsonl"}, "JSON has no such value"),
    # of these 154 elements the one at position 77 is measured
    (lambda: ps.range(154).map(late(object(), "a")), {"format": "jsonl"}, "at position 77.* a object"),
    (lambda: ps.range(154).map(late(object(), "a")), {"format": "tar"}, "at position 77.* a object"),
]


def test_what_does_not_fit_is_refused_with_its_place(tmp_path: Path) -> None:
    """The error names the rule, the value and its position; no shard with a part of the elements is left."""
    for number, (dataset, arguments, text) in enumerate(UNFIT):
        call: dict[str, Any] = {"path": tmp_path / f"{number}", "num_workers": 0, **arguments}
        with pytest.raises(UsageError, match=text):
            ps.write(dataset(), **call)
        assert not list(tmp_path.glob("*/0*")) + list(tmp_path.glob("*/.*"))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_names_its_shard(tmp_path: Path, workers: int) -> None:
    """The elements of the shard whose writer raises, or whose process crashes, are named by their positions."""

    def fails(number: int) -> int:
        if number == 77:
            raise KeyError(number)
        return number

    dataset = ps.range(200).map(fails)
    with pytest.raises(KeyError) as caught:
        ps.write(dataset, tmp_path, "jsonl", shard_bytes=99, num_workers=workers, workers="threads", part=(0, 2))
    rows = json.loads((tmp_path / "description.json").read_text())["elements_per_shard"]
    shard = 77 // rows
    assert "position 77, key 77" in caught.value.__notes__[0]
    assert caught.value.__notes__[-1] == (
        f"while writing shard {shard}, of the elements at positions [{shard * rows}, {(shard + 1) * rows}). "
        "Shards that are whole stay: the same call writes the others"
    )
    assert not any("Shards" in note for note in caught.value.__notes__[:-1])


FULL_DISK = """
import resource
import penstock as ps
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    ps.write(ps.range(4).map(lambda number: dict(x=bytes(130_000))), {folder!r}, {form!r}, num_workers=0)
except OSError as error:
    print(error, *error.__notes__, sep="\\n")
"""


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("form", ["arrow", "tar"])
def test_an_error_of_a_full_disk_names_the_file(tmp_path: Path, form: str) -> None:
    """The system's error doesn't; its notes name the elements, and no file is left that isn't whole."""
    ended = outcome(FULL_DISK.format(folder=str(tmp_path), form=form))
    assert ended.returncode == 0, ended.stderr
    found = ended.stdout.splitlines()
    assert found[0].startswith("[Errno 27] File too large: ")
    assert re.search(rf"/00000\.{form}'$", found[0])
    assert "of the elements at positions" in found[-1]
    assert not list(tmp_path.glob("*.draft")) + list(tmp_path.glob(f"*.{form}"))


DAY, MOMENT = datetime.date(2020, 1, 1), datetime.datetime(2020, 1, 1, 5, 6)
MASKED = cast("Any", np.ma.array([[1, 2]], mask=np.array([[False, True]])))
REFUSED: list[tuple[str, Any, str]] = [
    *(("tar", {"__key__": key, "x": b""}, "__key__ must be text") for key in ("", "a/", "/a", "a.b", "__meta__/a", 1)),
    *(("tar", {"__key__": key, "x": b""}, "__key__ must be text") for key in ("a\0b", "a\ud800")),
    *(("tar", {field: b""}, "lower-case end of a file's name") for field in ("", "X", "a/b", ".x", "a\0b", "a\ud800")),
    ("tar", {"__key__": "a"}, "the one at position 0 has none. Filter"),
    ("tar", {"x": "\ud800"}, "text that UTF-8 has; field 'x' at position 0"),
    ("jsonl", {1: "a", "1": "b"}, "value at position 0: a dict with the key 1, which is no text"),
    ("jsonl", [{"a": ({None: 0},)}], "value at position 0: a dict with the key None"),
    ("jsonl", np.datetime64(1, "ns"), "value at position 0: a datetime64"),
    ("jsonl", np.longdouble(1), "value at position 0: a longdouble"),
    ("jsonl", "\ud800", "value at position 0: 'utf-8' codec"),
    ("arrow", {}, "an element of a table must have a field; the one at position 0"),
    ("arrow", {1: "x"}, "dicts with text for keys; the one at position 0 has the key 1. Rename it"),
    ("parquet", {b"x": 1}, "dicts with text for keys; the one at position 0 has the key b'x'. Rename it"),
    ("arrow", {"x": "\ud800"}, "'x' at position 0 is a str"),
    ("arrow", {"x": np.zeros((2, 2), complex)}, "'x' at position 0 is a complex"),
    ("arrow", {"x": np.zeros((2, 2), object)}, "'x' at position 0 is a object"),
    ("arrow", {"x": np.zeros((2, 0))}, "'x' at position 0 is a float"),
    ("arrow", {"x": MASKED}, "must not be masked.*Field 'x' at position 0"),
    ("arrow", {"x": MASKED[0]}, "must not be masked.*Field 'x' at position 0"),
    ("arrow", {"x": {"a": MASKED[0]}}, "'x' at position 0 is a dict, .*: tables have no mask"),
    ("arrow", {"x": [MASKED[0]]}, "'x' at position 0 is a list, .*: tables have no mask"),
    ("arrow", {"x": {"a", "b"}}, "'x' at position 0 is a set, .*: pyarrow .* of a set, but its order"),
    ("arrow", {"x": [{"a": {1}}]}, "'x' at position 0 is a list, .*: .* of a set, but its order"),
    ("arrow", {"x": [DAY, MOMENT]}, "'x' at position 0 is a list, .* of a datetime"),
    ("arrow", {"x": {"a": ["a", b"b"]}}, "'x' at position 0 is a dict, .*: pyarrow would make string of a bytes"),
    ("arrow", {"x": MOMENT.astimezone(datetime.UTC).timetz()}, "'x' at position 0 is a time, .*no time zone"),
    ("arrow", {"x": np.datetime64("20000-01-01")}, "'x' at position 0 is a datetime64"),
    ("arrow", {"x": np.array([1, 2], "m8[10ms]")}, r"'x' at position 0 is a timedelta64\[10ms\] .*: Arrow .* of 10 ms"),
    ("arrow", {"x": np.ones((2, 2), "M8[25s]")}, r"'x' at position 0 is a datetime64\[25s\]"),
    ("arrow", {"x": {"a": [np.timedelta64(1, ("s", 2))]}}, "'x' at position 0 is a dict, .*: Arrow has no unit of 2 s"),
    ("parquet", {"x": {}}, "Parquet has no such column"),
    ("parquet", {"x": np.zeros((2, 2), "M8[s]")}, r"times in seconds; those of field 'x' have. Call .astype"),
]


def test_an_element_that_would_not_come_back_is_refused(tmp_path: Path) -> None:
    """A reader leaves nothing out that was written, and finds no other value."""
    for number, (form, element, text) in enumerate(REFUSED):
        with pytest.raises(UsageError, match=text):
            ps.write(ps.read([element]), tmp_path / f"{number}", form, num_workers=0)


OTHER_TYPES: list[tuple[object, object, str]] = [
    ("a", 1, "a int, .* string"),
    ("a", b"b", "a bytes, .* string"),
    (1, datetime.datetime(2000, 1, 1), "a datetime, .* int64"),
    ({"a": "b"}, {"a": 1}, "a dict, .* struct<a: string>"),
    ({"a": 1}, {"b": 1}, "a dict, .* struct<a: int64>"),
    (["a"], [1], "a list, .* list<item: string>"),
    (np.float32(1), 0.1, "a float, .* float"),
    (np.array([[1, 2]]), MASKED, "must not be masked"),
    (MOMENT, MOMENT.astimezone(datetime.UTC), "a datetime, .* timestamp"),
]


def test_a_block_of_another_type_is_refused(tmp_path: Path, set_constant: SetConstant) -> None:
    """No value is written as text, or as a number near it, also where a whole block has values of its type."""
    set_constant("_MAX_BLOCK", 1)
    for number, (usual, value, form) in enumerate(OTHER_TYPES):
        with pytest.raises(UsageError, match=f"'x' at position 77 is {form}|{form}.*'x' at position 77"):
            ps.write(ps.range(200).map(late(value, usual)), tmp_path / f"{number}", num_workers=0)


SEVERAL_TYPES: list[tuple[object, object, str]] = [
    ("a", b"b", "at position 3 .*: pyarrow would make binary of a str"),
    (DAY, MOMENT, "at position 3 doesn't fit those before it: .*date"),
    (MOMENT, MOMENT.astimezone(datetime.UTC), "at position 3 .*: a column has either times with a time zone or"),
    ([1], ["a"], "at position 3 doesn't fit those before it"),
    (np.ones(1, "m8[s]"), np.ones(1, "m8[ms]"), "at position 3 .*: times of NumPy in a column must have one dtype"),
    (np.ones(1, "M8[s]"), np.ones(1), "at position 3 .*: times of NumPy in a column must have one dtype"),
    ([np.ones(1, "m8[s]")], [np.ones(1, "m8[ms]")], "at position 3 .*: times of NumPy in a column must have one"),
]


def test_several_types_among_the_first_elements_are_refused(tmp_path: Path) -> None:
    """No column gets values of a type that has room for fewer of their bits, whichever type comes first."""
    for number, (usual, value, text) in enumerate(SEVERAL_TYPES):
        for values in ([usual, value], [value, usual]):
            elements = [{"x": values[place > 2]} for place in range(6)]
            with pytest.raises(UsageError, match=f"'x' have several types, and the one {text}"):
                ps.write(ps.read(elements), tmp_path / f"{number}", num_workers=0)


def test_the_nanoseconds_of_pandas_are_not_dropped(tmp_path: Path) -> None:
    """Times and durations of pandas are written if pyarrow keeps all of their digits, and refused otherwise."""
    pandas = pytest.importorskip("pandas")
    for make in (pandas.Timestamp, pandas.Timedelta):
        elements = [{"x": make(1000)}, {"x": make(1001)}]
        with pytest.raises(UsageError, match=r"'x' at position 1 is a .* but not those of value.to_numpy\(\)"):
            ps.write(ps.read(elements), tmp_path / "refused", num_workers=0)
        ps.write(ps.read(elements[:1]), tmp_path / make.__name__, num_workers=0)
        assert read_back(tmp_path / make.__name__, "arrow") == elements[:1]


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_days_of_numpy_come_back(tmp_path: Path, form: str) -> None:
    """Penstock reads a column of dates as days, so it writes days: alone, missing, in arrays, lists and dicts."""

    def make(number: int) -> dict[str, Any]:
        day = np.datetime64("2020-01-01") + number
        square = np.full((2, 2), day)
        return {"day": None if number == 1 else day, "days": square[0, :number], "square": square, "in": {"a": [day]}}

    ps.write(ps.range(3).map(make), tmp_path, form, num_workers=0)
    assert repr(list(ps.read(tmp_path))) == repr(
        [{**(made := make(n)), "in": {"a": np.array(made["in"]["a"])}} for n in range(3)]
    )


def test_a_shard_that_was_changed_gets_no_new_checksum(tmp_path: Path) -> None:
    """A call that writes a missing shard compares the others with the manifest, and names the one to remove."""
    dataset = ps.range(100)
    ps.write(dataset, tmp_path, "jsonl", shard_bytes=100, num_workers=0)
    expected = digests(tmp_path)
    changed = tmp_path / "00001.jsonl"
    (tmp_path / "00000.jsonl").unlink()
    for content, what in ((b"x" * changed.stat().st_size, "sha256"), (b"x", "bytes")):
        changed.write_bytes(content)
        with pytest.raises(
            UsageError, match=rf"00001\.jsonl' was changed: the manifest has {what} .* Remove it, and call"
        ):
            ps.write(dataset, tmp_path, "jsonl", shard_bytes=100, num_workers=0)
        assert digests(tmp_path)["manifest.json"] == expected["manifest.json"]
        (tmp_path / "00000.jsonl").unlink(missing_ok=True)
    changed.unlink()
    assert ps.write(dataset, tmp_path, "jsonl", shard_bytes=100, num_workers=0).new == 2
    assert digests(tmp_path) == expected


def test_damaged_descriptions_and_manifests_are_refused(tmp_path: Path) -> None:
    """The error has the file and the remedy; a call after that completes the folder, or none has been begun."""
    shards = (
        '{"version": 4, "dataset": "", "fingerprint": {}, "format": "jsonl", "elements": 4, "elements_per_shard": 4'
    )
    for number, (name, content, text) in enumerate(
        (
            ("description.json", b"", "isn't JSON.*Expecting value.*another folder"),
            ("description.json", b"[]", "lacks version, dataset,.*another folder"),
            ("description.json", b'{"version": 4}', "lacks dataset,.*another folder"),
            ("manifest.json", b"\xff", "isn't JSON.*Remove it, and call"),
            ("manifest.json", b"[]", "lacks version,.*Remove it, and call"),
            ("manifest.json", f'{shards}, "shards": []}}'.encode(), "isn't the manifest of this dataset.*Remove it"),
            ("manifest.json", f'{shards}, "shards": [1]}}'.encode(), "isn't the manifest of this dataset.*Remove it"),
        )
    ):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        if name == "manifest.json":
            ps.write(ps.range(4), folder, "jsonl", num_workers=0)
        (folder / name).write_bytes(content)
        with pytest.raises(UsageError, match=rf"{name}' {text}"):
            ps.write(ps.range(4), folder, "jsonl", num_workers=0)
        (folder / name).unlink()
        assert ps.write(ps.range(4), folder, "jsonl", num_workers=0).complete


def test_files_with_odd_names_of_drafts_are_kept(tmp_path: Path) -> None:
    """Only the drafts of processes that have ended are removed, as far as they can be."""
    odd = [".draft", ".x.draft", f".x.{this_host()}.x.1.draft"]
    for name in odd:
        (tmp_path / name).touch()
    dead = tmp_path / f".00000.jsonl.{this_host()}.{2**22 + 1}.1.draft"  # above the numbers of Linux's processes
    dead.touch()
    fixed = dead.with_name(dead.name.replace("00000", "00001"))
    fixed.mkdir()  # it can't be removed, as the draft of another user can't
    assert ps.write(ps.range(4), tmp_path, "jsonl", num_workers=0).complete
    assert {path.name for path in tmp_path.glob(".*")} == {*odd, fixed.name}


def test_the_command_writes_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`penstock write MODULE:NAME PATH --part K/N` writes what the function writes, and prints it."""
    ps.write(numbers(), tmp_path / "alone", "tar", shard_bytes=60_000, num_workers=0)
    options = ["--format", "tar", "--shard-bytes", "60000", "--num-workers", "0", "--part"]

    def run(name: str, part: str) -> tuple[int, str]:
        status = main(["write", name, str(tmp_path / "parts"), *options, part])
        printed = capsys.readouterr()
        return status, (printed.err if status else printed.out).rstrip()

    for part, end in (("1/2", "other parts are missing"), ("0/2", "complete")):
        status, text = run("tests.writing.numbers:numbers", part)
        assert status == 0
        assert text.endswith(end)
    assert digests(tmp_path / "parts") == digests(tmp_path / "alone")
    assert main(["write", "tests.writing.numbers:numbers", str(tmp_path / "one"), "--num-workers", "0"]) == 0
    assert "300 elements in 1 shard, " in capsys.readouterr().out
    for name, text in (("data", "MODULE:NAME"), ("no_such:x", "no module"), ("json:dumps_", "has no")):
        status, message = run(name, "0/1")
        assert status == 2
        assert text in message
