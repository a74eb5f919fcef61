"""A cache on disk keeps copies, is shared, stays within its limit, and makes few files."""

import logging
import os
import pickle
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import UsageError
from tests.programs.forked import outcome, started
from tests.storage.caches import MISSING
from tests.storage.filling import IDENTITY, element_of, is_element, opened


def size_of(path: Path) -> int:
    """Return the bytes of all files below a directory."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_what_was_put_is_read_later(tmp_path: Path) -> None:
    """The same cache and another one return it, each time as a new copy."""
    cache = opened(tmp_path)
    assert cache.get(3) is MISSING
    for key in (3, (3,), (0, 3), (-1, 2**62, 3)):
        assert cache.put(key, {"key": key, "array": np.arange(4)})
    for each in (cache, opened(tmp_path)):
        for key in (3, (3,), (0, 3), (-1, 2**62, 3)):
            got: Any = each.get(key)
            assert got["key"] == key
            got["array"][:] = 7
        again: Any = each.get(3)
        assert again["array"].tolist() == [0, 1, 2, 3]
        assert each.get((3, 0)) is MISSING


def test_the_first_is_kept(tmp_path: Path) -> None:
    """A second element for a key changes nothing."""
    cache = opened(tmp_path)
    assert cache.put(0, "first")
    assert cache.put(0, "second")
    assert cache.get(0) == "first"
    assert opened(tmp_path).put(0, "third")
    assert opened(tmp_path).get(0) == "first"


def test_identities_share_nothing(tmp_path: Path) -> None:
    """Another dataset with the same directory finds no element of the first, even if the folder is renamed."""
    opened(tmp_path).put(0, "ours")
    assert opened(tmp_path, identity="abc124").get(0) is MISSING
    (tmp_path / IDENTITY).rename(tmp_path / "abc125")
    assert opened(tmp_path, identity="abc125").get(0) is MISSING


def test_many_elements_are_few_files(tmp_path: Path) -> None:
    """Thousands of elements, put by one process after another, are in one file."""
    for start in (0, 500, 1000):
        cache = opened(tmp_path)
        for position in range(start, start + 500):
            cache.put(position, position)
        cache.close()
    assert len(list(tmp_path.rglob("*.segment"))) == 1
    cache = opened(tmp_path)
    assert [cache.get(position) for position in range(1500)] == list(range(1500))
    assert len(cache) == 1500


def test_the_bound_holds(tmp_path: Path) -> None:
    """All files of the identity, of any process, take at most the limit; kept elements stay."""
    kept: dict[int, bool] = {}
    for start in (0, 40):
        cache = opened(tmp_path, 100_000)
        for position in range(start, start + 60):
            kept[position] = cache.put(position, bytes(2_000)) or kept.get(position, False)
        assert size_of(tmp_path) <= 100_000
        assert cache.held_bytes == size_of(tmp_path)
        cache.close()
    assert 40 < sum(kept.values()) < 50
    for limit_bytes in (0, 10):
        assert not opened(tmp_path / "none", limit_bytes).put(0, 1)
        assert size_of(tmp_path / "none") == 0
    cache = opened(tmp_path, 100_000)
    assert [cache.get(position) == bytes(2_000) for position in range(100)] == [kept[number] for number in range(100)]


def test_the_directory_is_its_owners(tmp_path: Path) -> None:
    """No other user may read or write the files, since a read may unpickle."""
    opened(tmp_path / "deep" / "cache").put(0, 1)
    for made in [tmp_path / "deep" / "cache", *(tmp_path / "deep" / "cache").rglob("*")]:
        assert stat.S_IMODE(made.stat().st_mode) & 0o077 == 0


def test_describing_touches_nothing(tmp_path: Path) -> None:
    """Making, comparing and copying a cache neither creates nor opens a file."""
    cache = opened(tmp_path / "cache")
    copy = pickle.loads(pickle.dumps(cache))
    assert copy == cache
    assert hash(copy) == hash(cache)
    assert cache != opened(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_cannot_be_is_named(tmp_path: Path) -> None:
    """A path with a file in its way is a UsageError."""
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"the path of a cache must be a directory .* got '.*file'"):
        opened(tmp_path / "file").open()
    with pytest.raises(UsageError, match=r"must be hexadecimal digits; got '\.\./a'"):
        opened(tmp_path, identity="../a")


def test_others_entries_are_found(tmp_path: Path) -> None:
    """A process that has the cache open finds elements that another process puts, at the latest after `open`."""
    first, second = opened(tmp_path), opened(tmp_path)
    first.put(0, "first")
    assert second.get(0) == "first"
    second.put(1, "second")
    first.open()
    assert first.get(1) == "second"
    first.put(2, "third")
    second.open()
    assert second.get(2) == "third"
    assert len(list(tmp_path.rglob("*.segment"))) == 2


FILLING = """
from tests.storage.filling import element_of, opened
cache = opened({path!r}, {limit})
for position in range({first}, {stop}):
    cache.put(position, element_of(position))
    if position == {first}:
        print("began", flush=True)
"""


def fill_by_two(path: Path, limit: int, *each: tuple[int, int]) -> None:
    """Let two processes put the elements of some positions at once."""
    programs = [started(FILLING.format(path=str(path), first=first, stop=stop, limit=limit)) for first, stop in each]
    for program in programs:
        with program:
            assert program.communicate() == ("began\n", "")
    assert [program.returncode for program in programs] == [0, 0]


@pytest.mark.usefixtures("forked_programs")
def test_two_processes_at_once(tmp_path: Path) -> None:
    """Two processes that put overlapping positions at once both succeed, and all elements are kept."""
    fill_by_two(tmp_path, 1 << 30, (0, 80), (40, 120))
    cache = opened(tmp_path)
    assert all(is_element(position, cache.get(position)) for position in range(120))
    assert cache.get(120) is MISSING


@pytest.mark.usefixtures("forked_programs")
def test_two_processes_share_the_bound(tmp_path: Path) -> None:
    """Two processes that fill the cache at once exceed the limit by a few elements at most."""
    limit_bytes = 10_000_000
    fill_by_two(tmp_path, limit_bytes, (0, 60), (100, 160))
    assert limit_bytes * 0.8 < size_of(tmp_path) < limit_bytes + 2 * 1_200_000


def test_threads_share_a_cache(tmp_path: Path) -> None:
    """Threads that put and get the same positions in different orders read the right elements."""
    cache = opened(tmp_path)
    wrong: list[int] = []

    def use(factor: int) -> None:
        for number in range(101):
            position = number * factor % 101
            cache.put(position, element_of(position))
            if not is_element(position, cache.get(position)):
                wrong.append(position)

    threads = [threading.Thread(target=use, args=(factor,)) for factor in (1, 2, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(cache) == 101
    assert size_of(tmp_path) == cache.held_bytes


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    """Parent and child put elements at once, and all of them can be read afterwards."""
    cache = opened(tmp_path)
    cache.put(0, "before")
    child = os.fork()
    if child == 0:
        works = cache.get(0) == "before" and all(cache.put(key, f"child {key}") for key in range(1, 50))
        os._exit(0 if works else 1)
    assert all(cache.put(key, f"parent {key}") for key in range(50, 99))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    read = opened(tmp_path)
    assert [read.get(key) for key in range(1, 50)] == [f"child {key}" for key in range(1, 50)]
    assert [read.get(key) for key in range(50, 99)] == [f"parent {key}" for key in range(50, 99)]


FULL_DISK = """
import logging, resource
logging.basicConfig(format="%(message)s")
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
from tests.storage.filling import opened
cache = opened({path!r})
print([cache.put(position, bytes(9_000)) for position in range(20)].count(True))
print([cache.get(position) == bytes(9_000) for position in range(20)].count(True))
"""


@pytest.mark.usefixtures("forked_programs")
def test_a_full_disk_declines_and_says_so_once(tmp_path: Path) -> None:
    """When a write fails, kept elements stay readable, nothing is raised, and one line is logged."""
    run = outcome(FULL_DISK.format(path=str(tmp_path)))
    assert (run.returncode, run.stdout) == (0, "11\n11\n")
    assert run.stderr.count("takes no more elements") == 1
    assert len(run.stderr.splitlines()) == 1
    cache = opened(tmp_path)
    assert len([position for position in range(20) if cache.get(position) == bytes(9_000)]) == 11


def test_a_directory_that_can_only_be_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """If files can't be created, kept elements are read, others are refused, and one line is logged."""
    opened(tmp_path).put(0, "kept")
    folder = tmp_path / IDENTITY
    hidden = tmp_path / "hidden"
    cache = opened(tmp_path)
    assert cache.get(0) == "kept"
    folder.rename(hidden)
    with caplog.at_level(logging.WARNING, logger="penstock"):
        assert not cache.put(1, "declined")
        assert not cache.put(2, "declined")
    assert len(caplog.records) == 1
    assert cache.get(0) == "kept"
