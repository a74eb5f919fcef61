"""Blocks that worker processes share: each is decoded once, and killed processes leave nothing wrong."""

import mmap
import os
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from penstock.errors import SourceError
from penstock.sampling import Permutation
from penstock.sources import HDF5, MDS, ArrayRecord, Arrow, LeRobot, Parquet, Source, Zarr, read_records
from penstock.testing import assert_same
from tests.profiles import IS_LONG
from tests.programs.forked import outcome, started
from tests.sources import test_lerobot, test_mds
from tests.sources import test_table_files as table_files
from tests.sources.counted import Counted, loaded

pyarrow: Any = pytest.importorskip("pyarrow")
parquet: Any = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="blocks are shared on Linux")

GROUPS, ROWS = 24, 50
GROUP_BYTES = 28_000  # at least, decoded


def write(path: Path) -> Path:
    """Write a file of texts and arrays, and return its path."""
    numbers = np.arange(GROUPS * ROWS)
    texts = [f"é{number}" * 100 for number in numbers]
    tokens = [np.arange(number % 7) for number in numbers]
    parquet.write_table(pyarrow.table({"id": numbers, "text": texts, "tokens": tokens}), path, row_group_size=ROWS)
    return path


def memory_bytes() -> int:
    """Return the size of the shared blocks in this process, in bytes."""
    names = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    found = [os.stat(name) for name in names if os.path.islink(name) and "penstock-blocks" in os.readlink(name)]
    return 512 * sum({status.st_ino: status.st_blocks for status in found}.values())


def test_each_group_is_decoded_once_for_all_workers(tmp_path: Path) -> None:
    """The processes need every group in every epoch, and read each from the file once."""
    source = Counted(write(tmp_path / "a.parquet"), 1 << 28)
    loaded(source, epochs=2)
    assert len(source.reads()) == GROUPS
    assert memory_bytes() >= GROUPS * GROUP_BYTES
    del source.source
    assert memory_bytes() == 0


@pytest.mark.parametrize("killed", [1, GROUPS])
def test_a_process_is_killed_while_it_decodes(tmp_path: Path, killed: int) -> None:
    """The group that it was decoding is decoded by another process; the others are not decoded again."""
    source = Counted(write(tmp_path / "a.parquet"), 1 << 28, killed)
    loaded(source)
    assert len(source.reads()) == GROUPS + 1


def test_blocks_stay_within_the_bound(tmp_path: Path) -> None:
    """A process keeps as many groups as are within the bound, and frees the memory of the others."""
    source = Parquet(write(tmp_path / "a.parquet"), decoded_bytes=6 * GROUP_BYTES)
    expected = source.read(range(len(source)))
    copy = pickle.loads(pickle.dumps(source))
    for keys in (range(0, GROUPS * ROWS, 7), range(GROUPS * ROWS - 1, 0, -11)):
        assert_same([copy[key] for key in keys], [expected[key] for key in keys])
        assert 3 * GROUP_BYTES < memory_bytes() <= 8 * GROUP_BYTES


def test_a_group_takes_the_pages_of_one_that_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the bound is reached, groups of about one size give no page back to the system, and take no new one."""
    removed: list[int] = []

    class Recorded(mmap.mmap):
        """Memory that notes what is given back."""

        def madvise(self, option: int, *place: int) -> None:
            """Note it."""
            removed.append(option)
            super().madvise(option, *place)

    monkeypatch.setattr(mmap, "mmap", Recorded)
    source = Parquet(write(tmp_path / "a.parquet"), decoded_bytes=6 * GROUP_BYTES)
    keys = range(2 * ROWS, 20 * ROWS, 7)  # of groups whose numbers have as many digits
    expected = source.read(keys)
    copy = pickle.loads(pickle.dumps(source))
    assert_same([copy[key] for key in keys], expected)
    removed.clear()
    kept = memory_bytes()
    assert_same([copy[key] for key in keys], expected)
    assert (removed, memory_bytes()) == ([], kept)


def test_a_read_uses_no_group_longer_than_it_must(tmp_path: Path) -> None:
    """The groups that a read has finished, and those that are used least, give their places to what it decodes."""
    source = Parquet(write(tmp_path / "a.parquet"), decoded_bytes=10 * GROUP_BYTES)
    expected = source.read(range(len(source)))
    copy = pickle.loads(pickle.dumps(source))
    for groups in (range(8), range(12), range(4, 12), range(12, 19)):
        keys = [group * ROWS for group in groups]
        assert_same(copy.read(keys), [expected[key] for key in keys])
        assert memory_bytes() <= 10 * GROUP_BYTES + mmap.PAGESIZE  # and the table


def test_copies_that_read_any_groups_keep_the_bound(tmp_path: Path) -> None:
    """Three copies, each of which could keep the bound by itself, take hardly more together, however long they read."""
    source = Parquet(write(tmp_path / "a.parquet"), decoded_bytes=5 * GROUP_BYTES)
    sent = pickle.dumps(source)
    copies = [pickle.loads(sent) for _ in range(3)]
    for number, group in enumerate(map(Permutation(20 * GROUPS, seed=7), range(300))):
        copies[number % 3][group % GROUPS * ROWS]
    assert memory_bytes() <= 8 * GROUP_BYTES


KILLED = """
import os, pickle, signal, sys, warnings
from penstock.sources import Parquet
warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on Python warns of every fork while threads run
path, rows, group_bytes = {path!r}, {rows}, {group_bytes}
keys = range(0, len(Parquet(path)), rows)
expected = [row["text"] for row in Parquet(path).read(keys)]

def child(sent, lines):
    copy = pickle.loads(sent)
    def traced(frame, event, argument):
        nonlocal lines
        if frame.f_code.co_name not in ("_write", "_make_room", "_replace", "_begin_at", "_free", "_hole"):
            return None
        if event == "line":
            lines -= 1
            if not lines:
                os.kill(os.getpid(), signal.SIGKILL)
        return traced
    sys.settrace(traced)
    copy[keys[6]]
    os._exit(0)

killed, line, status = 0, 1, 1
while status:
    source = Parquet(path, decoded_bytes=4 * group_bytes)
    sent = pickle.dumps(source)
    copy = pickle.loads(sent)
    assert [copy[key]["text"] for key in keys[2:6]] == expected[2:6]  # the child replaces the first one
    del copy
    process = os.fork()
    if not process:
        child(sent, line)
    status = os.waitpid(process, 0)[1]
    assert status in (0, signal.SIGKILL), status
    killed, line = killed + (status > 0), line + {stride}
    copies = [pickle.loads(sent), pickle.loads(sent)]
    for copy in copies:
        for group in (8, 6, 7, 8, 2, 3):
            assert copy[keys[group]]["text"] == expected[group], (line, group)
    del copies, copy, source
assert killed * {stride} > 40, killed
"""


@pytest.mark.longer
@pytest.mark.usefixtures("forked_programs")
def test_a_process_is_killed_while_it_replaces_a_group(tmp_path: Path) -> None:
    """After a kill at any line of that, other processes read what the file has, from kept groups and decoded ones."""
    path = str(write(tmp_path / "a.parquet"))
    ended = outcome(KILLED.format(path=path, rows=ROWS, group_bytes=GROUP_BYTES, stride=1 if IS_LONG else 4))
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_bound_that_was_exceeded_once_drops_groups_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that decodes while another holds the bound drops groups, and then keeps those that it opens again."""
    source = Parquet(write(tmp_path / "a.parquet"), decoded_bytes=8 * GROUP_BYTES)
    sent = pickle.dumps(source)
    first, second = pickle.loads(sent), pickle.loads(sent)
    for group in range(8):
        first[group * ROWS]
    for group in (10, 11, 12):
        second[group * ROWS]
    opened: list[object] = []
    read: Callable[[object], object] = pyarrow.ipc.open_stream

    def counted(content: object) -> object:
        opened.append(content)
        return read(content)

    monkeypatch.setattr(pyarrow.ipc, "open_stream", counted)
    for _ in range(3):
        for group in (4, 5, 6, 7):
            second[group * ROWS]
    assert len(opened) == 4


def test_copies_that_need_the_same_groups_at_once(tmp_path: Path) -> None:
    """Copies that look for a group at the same moment all get it, though the one that decoded it goes on using it."""
    source = Parquet(write(tmp_path / "a.parquet"))
    keys = range(0, GROUPS * ROWS, ROWS)
    expected = source.read(keys)
    sent = pickle.dumps(source)
    with ThreadPoolExecutor(8) as threads:
        copies = [pickle.loads(sent) for _ in range(8)]
        for key, record in zip(keys, expected, strict=True):
            assert_same(list(threads.map(methodcaller("__getitem__", key), copies)), [record] * 8)


def test_a_copy_without_its_original_decodes_for_itself(tmp_path: Path) -> None:
    """A copy that is made after the original has ended, as on another machine, reads the same."""
    source = Parquet(write(tmp_path / "a.parquet"))
    expected, sent = source.read(range(len(source))), pickle.dumps(source)
    del source
    other = Parquet(tmp_path / "a.parquet")
    pickle.dumps(other)  # its memory may have the descriptor of the first one
    assert_same(pickle.loads(sent).read(range(len(expected))), expected)


Open = Callable[[], Source]


def arrow(folder: Path) -> Open:
    """Compressed record batches."""
    table_files.write_arrow(table_files.TABLE, folder / "a.arrow", compression="zstd")
    return partial(Arrow, folder / "a.arrow")


def columns(folder: Path) -> Open:
    """Row groups whose columns are all read at once."""
    texts = [None if number % 7 == 3 else "é" * (number % 9) for number in range(100)]
    table = pyarrow.table(
        {
            "text": texts,
            "empty": [""] * 100,
            "bytes": [b"\xff" * (number % 5) for number in range(100)],
            "large": pyarrow.array(map(str, range(100)), pyarrow.large_string()),
            "time": pyarrow.array(range(100), pyarrow.timestamp("us", "UTC")),
            "pairs": pyarrow.array([[[n, 1], [2, 3]] for n in range(100)], _list_of(_list_of(pyarrow.int16()))),
        }
    )
    parquet.write_table(table, folder / "a.parquet", row_group_size=10)
    return partial(Parquet, folder / "a.parquet")


def _list_of(kind: Any) -> Any:
    return pyarrow.list_(kind, 2)


def lists(folder: Path) -> Open:
    """Row groups of which a column is read value by value."""
    table = pyarrow.table({"text": [f"é{n}" for n in range(100)], "words": [["a"] * (n % 3) for n in range(100)]})
    parquet.write_table(table, folder / "a.parquet", row_group_size=10)
    return partial(Parquet, folder / "a.parquet")


def hdf5(folder: Path) -> Open:
    """Chunks of numbers and texts."""
    h5py: Any = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(400.0).reshape(100, 4), chunks=(10, 4), compression="gzip")
        file.create_dataset("text", data=[f"é{n}" for n in range(100)], dtype=h5py.string_dtype(), chunks=(10,))
    return partial(HDF5, folder / "a.h5")


def zarr(folder: Path) -> Open:
    """Chunks of an array."""
    library: Any = pytest.importorskip("zarr")
    made = library.create_array(str(folder / "a.zarr"), shape=(100, 3), chunks=(10, 3), dtype="float32")
    made[:] = np.arange(300).reshape(100, 3)
    return partial(Zarr, folder / "a.zarr")


def mds(folder: Path) -> Open:
    """A compressed shard."""
    return partial(MDS, test_mds.compressed(folder, "zstd", zstandard.compress(test_mds.WRITTEN)))


def array_record(folder: Path) -> Open:
    """Groups of records."""
    module: Any = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(folder / "a.array_record"), "group_size:10")
    for number in range(100):
        writer.write(f"record {number}".encode())
    writer.close()
    return partial(ArrayRecord, folder / "a.array_record")


def lerobot(folder: Path) -> Open:
    """Rows of episodes."""
    return partial(LeRobot, test_lerobot.write_new(folder / "robot"))


def files(folder: Path) -> Path:
    """Return a new folder for files."""
    (folder / "data").mkdir()
    return folder / "data"


@pytest.mark.usefixtures("started_zarr")
@pytest.mark.parametrize("make", [columns, lists, arrow, hdf5, zarr, mds, array_record, lerobot])
def test_copies_and_ranks_need_no_file_that_another_has_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Open]
) -> None:
    """One source decodes all blocks; its copy, and another rank's, read them after the files are gone.

    A rank of files that were changed doesn't; of a missing chunk, Zarr has zeros.
    """
    opened = make(folder := files(tmp_path))
    set_environment(monkeypatch, job(0, 1))
    source = opened()
    sent = pickle.dumps(source)
    copy: Any = pickle.loads(sent)
    set_environment(monkeypatch, job(1, 1))
    rank = opened()
    keys = np.arange(len(source))
    expected = read_records(source, keys)
    assert_same(copy.read([0]), expected[:1])  # it has found its index
    for path in folder.rglob("*"):
        os.utime(path)
    changed = opened()
    shutil.rmtree(folder)
    assert_same([copy.read(keys), read_records(rank, keys)], [expected, expected])
    assert_same([copy[key] for key in keys.tolist()], expected)
    if make is zarr:
        assert_same(read_records(changed, keys), [np.zeros_like(row) for row in expected])
    else:
        with pytest.raises(SourceError):
            read_records(changed, keys)


def set_environment(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Set environment variables until the test ends."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


FORKS = """
import os, pickle, sys, warnings
from penstock.sources import Parquet
warnings.simplefilter("ignore", DeprecationWarning)  # from 3.12 on Python warns of every fork while threads run
path, is_pickled = {path!r}, {is_pickled}
source, expected = Parquet(path), list(Parquet(path))
copy = pickle.loads(pickle.dumps(source)) if is_pickled else source
assert source[0]["text"] == copy[0]["text"]  # the parent uses this group
child = os.fork()
if child == 0:
    assert [row["text"] for row in source] == [row["text"] for row in expected]
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
os.remove(path)
assert [row["text"] for row in copy] == [row["text"] for row in expected]
"""


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize("is_pickled", [True, False])
def test_a_forked_child_decodes_for_its_parent(tmp_path: Path, *, is_pickled: bool) -> None:
    """A child that was forked shares the groups, pickled before or not, and its end ends no lock of the parent."""
    ended = outcome(FORKS.format(path=str(write(tmp_path / "a.parquet")), is_pickled=is_pickled))
    assert (ended.returncode, ended.stderr) == (0, "")


RANK = """
import os, sys
from pathlib import Path
os.environ.update({environment})
from tests.sources.counted import Counted, loaded
source = Counted(Path({path!r}), 1 << 28)
print("made", flush=True)
for _ in sys.stdin:
    loaded(source)
    print("loaded", flush=True)
"""


def job(rank: int, port: int) -> dict[str, str]:
    """Return the environment of a rank, as torchrun sets it."""
    return {"LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a-test", "MASTER_PORT": f"{port}"}


def names_of(pid: int) -> set[str]:
    """Return the names that a process offers to other ranks."""
    sockets = {os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.is_socket()}
    listed = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if "@penstock-" in line]
    return {fields[7] for fields in listed if f"socket:[{fields[6]}]" in sockets}


@pytest.mark.usefixtures("forked_programs")
def test_the_ranks_of_a_job_decode_each_group_once(tmp_path: Path) -> None:
    """Two programs with two workers each share the groups, also after the first is killed; both leave no name."""
    path = write(tmp_path / "a.parquet")
    programs = [RANK.format(environment=job(rank, os.getpid()), path=str(path)) for rank in range(2)]
    with started(programs[0]) as first, started(programs[1]) as second:
        ranks = [first, second]
        assert [rank.stdout.readline() for rank in ranks] == ["made\n"] * 2
        for rank in ranks:
            rank.stdin.write("load\n")
            rank.stdin.flush()
        assert [rank.stdout.readline() for rank in ranks] == ["loaded\n"] * 2
        (name,) = names_of(first.pid) | names_of(second.pid)
        first.kill()
        first.wait()
        second.stdin.write("load\n")
        second.stdin.flush()
        assert second.stdout.readline() == "loaded\n"
        assert len(path.with_suffix(".log").read_text().split()) == GROUPS
        second.kill()
    assert name not in Path("/proc/net/unix").read_text()


def test_each_rank_adds_its_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks share the groups that are within the sum of their bounds, for as long as they live; other jobs don't."""
    path = write(tmp_path / "a.parquet")
    expected = Parquet(path).read(range(GROUPS * ROWS))
    made: list[Parquet] = []
    for rank, port in ((0, 1), (1, 1), (0, 2)):
        set_environment(monkeypatch, job(rank, port))
        made.append(Parquet(path, decoded_bytes=6 * GROUP_BYTES))
    first, second, other = made
    for source in (first, second):
        assert_same([source[key] for key in range(0, GROUPS * ROWS, 7)], expected[::7])
    assert 8 * GROUP_BYTES < memory_bytes() <= 14 * GROUP_BYTES
    del source, second, made
    assert_same([first[key] for key in range(0, GROUPS * ROWS, 7)], expected[::7])
    assert 3 * GROUP_BYTES < memory_bytes() <= 8 * GROUP_BYTES
    path.unlink()
    assert_same(first[-1], expected[-1])
    with pytest.raises(SourceError):
        other[-1]
