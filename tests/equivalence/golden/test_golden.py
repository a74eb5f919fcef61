"""Batches, fingerprints and states of this version equal the golden records."""

import base64
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from tests.equivalence.golden.datasets import DATASETS, FILES, RESUMES, write_files
from tests.equivalence.golden.functions import Keeps, Scale
from tests.equivalence.golden.recording import (
    PYTHON,
    comparable,
    continue_on,
    digests_of,
    load,
    read,
    record_dataset,
    record_resume,
    shards_of,
    state_of,
    usable,
)
from tests.equivalence.verbs import VERBS

RECORDS = read()
WITH_CODE = RECORDS["python"] == PYTHON  # another version of Python has other byte code, so other fingerprints
IN_THREADS = [name for name in DATASETS if name != "random map globals"][::3]
IN_PROCESSES = [*DATASETS][1::7]
ISOLATED = ["random map of batches", "stream folded"]
NEED_MEMFD = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="shared memory of processes is Linux's")


@pytest.fixture(scope="module", name="folder")
def golden_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files that the datasets read."""
    folder = tmp_path_factory.mktemp("golden")
    write_files(folder)
    return folder


def test_each_dataset_has_a_record() -> None:
    """No dataset is without a record, and no record without its dataset."""
    assert [*RECORDS["datasets"]] == [*DATASETS]
    assert [*RECORDS["resumes"]] == [*RESUMES]


def test_each_verb_is_in_a_dataset() -> None:
    """A public verb that no golden dataset uses would be free to yield other bytes."""
    text = Path(__file__).with_name("datasets.py").read_text()
    used = set(re.findall(r"\.(\w+)\(", text)) | {"__getitem__"}
    assert used >= set(VERBS)


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_equals_its_record(name: str, folder: Path) -> None:
    """Fingerprint, length, origins, batches and states are the recorded ones, to the byte."""
    recorded, found = RECORDS["datasets"][name], record_dataset(name, folder)
    assert comparable(found, with_code=WITH_CODE) == comparable(recorded, with_code=WITH_CODE)


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.filterwarnings("ignore:.*read again")  # of the stream that has no state
def test_a_recorded_state_gives_the_rest(name: str, folder: Path) -> None:
    """After a recorded state is loaded, a loader delivers the recorded rest of the epoch and of the next one."""
    dataset = DATASETS[name](folder)
    for key, shard in shards_of(name).items():
        with ps.Loader(dataset, shard=shard) as loader:
            for delivered, state in RECORDS["datasets"][name]["ranks"][key]["states"].items():
                check_rest(loader, name, key, int(delivered), state)


@pytest.mark.parametrize("name", RESUMES)
def test_states_of_other_ranks_or_batches_give_the_rest(name: str, folder: Path) -> None:
    """The states that are saved before a change equal the recorded ones; after it, the rest and its states do.

    The states after it are loaded as earlier versions saved them: as states of version 1, although they have "legs".
    """
    recorded = RECORDS["resumes"][name]
    found = record_resume(name, folder)
    assert comparable(found, with_code=WITH_CODE) == comparable(recorded, with_code=WITH_CODE)
    continued = continue_on(RESUMES[name], recorded["saved"], folder, with_code=WITH_CODE)
    assert comparable(continued, with_code=WITH_CODE) == comparable(recorded["ranks"], with_code=WITH_CODE)
    for rank, each in enumerate(recorded["ranks"]):
        shard = ps.Shard(rank, len(recorded["ranks"]), uneven=len(recorded["ranks"]) > 1)
        with ps.Loader(DATASETS[RESUMES[name].loaded](folder), shard=shard) as loader:
            load(loader, [usable({**each["state"], "penstock": 1}, loader, with_code=WITH_CODE)])
            assert [digests_of(loader), digests_of(loader)] == each["rest"]


@pytest.mark.parametrize("name", FILES)
def test_recorded_files_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded index and a recorded cache are found: no function is called again, and the batches are the same."""
    write_files(tmp_path)
    for path, content in RECORDS["files"][name].items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(base64.b64decode(content))

    def fails(*_: object) -> None:
        raise AssertionError("the function was called, so the file was of no use")

    monkeypatch.setattr(Scale, "__call__", fails)
    monkeypatch.setattr(Keeps, "__call__", fails)
    found = record_dataset(name, tmp_path)
    assert comparable(found, with_code=WITH_CODE) == comparable(RECORDS["datasets"][name], with_code=WITH_CODE)


@pytest.mark.parametrize("ordered", [True, False])
def test_a_state_with_later_batches_gives_the_others(folder: Path, *, ordered: bool) -> None:
    """A state of a loader that delivered step 4 before step 3 gives all other steps, and is saved as it was loaded."""
    recorded = RECORDS["datasets"]["range"]["ranks"]["0 of 1"]
    state = {**recorded["states"]["3"], "penstock": 2, "ahead": [[1, 2]], "rank": 0}
    with ps.Loader(DATASETS["range"](folder), ordered=ordered) as loader:
        load(loader, [usable({**state, "penstock": 1}, loader, with_code=WITH_CODE)])  # as earlier versions saved it
        assert comparable(state_of(loader), with_code=WITH_CODE) == comparable(state, with_code=WITH_CODE)
        assert digests_of(loader) == [recorded["epochs"][0][3], *recorded["epochs"][0][5:]]
        assert digests_of(loader) == recorded["epochs"][1]


@pytest.mark.parametrize("name", IN_THREADS)
@pytest.mark.filterwarnings("ignore:.*read again")
def test_threads_give_the_recorded_batches(name: str, folder: Path) -> None:
    """Batches of two threads equal the record, from the start and after a recorded state."""
    check_place(name, folder, {"num_workers": 2, "workers": "threads"})


@NEED_MEMFD
@pytest.mark.filterwarnings("ignore:.*read again")
def test_processes_give_the_recorded_batches(folder: Path) -> None:
    """Batches of worker processes equal the record, from the start and after a recorded state."""
    with ps.Loader(ps.range(8).batch(2), num_workers=2, workers="processes") as owner:
        for name in IN_PROCESSES:
            check_place(name, folder, {"workers": owner})


@NEED_MEMFD
@pytest.mark.parametrize("name", ISOLATED)
def test_isolated_loaders_give_the_recorded_batches(name: str, folder: Path) -> None:
    """Batches of an isolated loader equal the record, from the start and after a recorded state."""
    check_place(name, folder, {"isolated": True})


def check_place(name: str, folder: Path, place: dict[str, Any]) -> None:
    """Compare a loader with the record: two epochs, and the rest after the second state."""
    recorded = RECORDS["datasets"][name]["ranks"]["0 of 1"]
    with ps.Loader(DATASETS[name](folder), **place) as loader:
        assert [digests_of(loader), digests_of(loader)] == recorded["epochs"]
        assert loader.step == sum(map(len, recorded["epochs"])) - 1
        delivered, state = [*recorded["states"].items()][1]
        check_rest(loader, name, "0 of 1", int(delivered), state)


def check_rest(loader: ps.Loader[Any], name: str, rank: str, delivered: int, state: Any) -> None:
    """Compare the batches after a state with those of the record after so many batches."""
    epochs: list[list[str]] = RECORDS["datasets"][name]["ranks"][rank]["epochs"]
    load(loader, [usable(state, loader, with_code=WITH_CODE)])
    assert comparable(state_of(loader), with_code=WITH_CODE) == comparable(state, with_code=WITH_CODE)
    flat = list(itertools.chain(*epochs))
    expected = iter(flat[delivered:])
    for found in _until(loader, len(flat) - delivered):
        assert found == list(itertools.islice(expected, len(found))), f"{rank}, after {delivered} batches"
    assert not list(expected)


def _until(loader: ps.Loader[Any], count: int) -> Iterator[list[str]]:
    """Yield the digests of whole epochs until there are as many batches."""
    while count > 0:
        found = digests_of(loader)
        yield found
        count -= len(found)
