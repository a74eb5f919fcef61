"""After any damage to its files, a cache returns the element that was put, or nothing."""

import os
import shutil
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import in_short
from tests.programs.forked import started
from tests.storage.caches import MISSING
from tests.storage.filling import IDENTITY, is_element, opened
from tests.storage.test_disk_cache import FILLING

ELEMENTS = {position: {"position": position, "data": bytes([position]) * (5 * position)} for position in range(8)}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    """The name and the bytes of a cache's file that holds all of ELEMENTS."""
    path = tmp_path_factory.mktemp("written")
    cache = opened(path)
    for position, element in ELEMENTS.items():
        assert cache.put(position, element)
    cache.close()
    (file,) = path.rglob("*.segment")
    return file.name, file.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all examples use, one after another."""
    return tmp_path_factory.mktemp("scratch")


def found_in(path: Path, name: str, data: bytes) -> set[int]:
    """Return the elements that a cache with this file has; check that they are right, and that others can be put."""
    shutil.rmtree(path / IDENTITY, ignore_errors=True)
    (path / IDENTITY).mkdir()
    (path / IDENTITY / name).write_bytes(data)
    cache = opened(path)
    found = {position for position in ELEMENTS if cache.get(position) is not MISSING}
    assert all(cache.get(position) == ELEMENTS[position] for position in found)
    for each in (cache, opened(path)):
        for position, element in ELEMENTS.items():
            assert each.put(position, element)
            assert each.get(position) == element
        each.close()
    return found


def test_a_torn_end_costs_only_its_elements(scratch: Path, written: tuple[str, bytes]) -> None:
    """A file that is cut off anywhere has the entries before the cut, and is continued."""
    name, data = written
    counts = [len(found_in(scratch, name, data[:size])) for size in range(0, len(data) + 1, 7)]
    assert counts == sorted(counts)
    assert (counts[0], len(found_in(scratch, name, data))) == (0, len(ELEMENTS))
    assert found_in(scratch, name, data[:-1]) == set(range(7))


def test_a_file_of_another_version_has_no_elements(scratch: Path, written: tuple[str, bytes]) -> None:
    """Its elements are computed again: they were stored in another form."""
    name, data = written
    head = data[:8] + struct.pack("<I", struct.unpack_from("<I", data, 8)[0] - 1) + data[12:44]
    assert not found_in(scratch, name, head + struct.pack("<I", zlib.crc32(head)) + data[48:])


@in_short(10)
@given(data=st.data())
def test_a_damaged_byte_costs_only_its_element(scratch: Path, written: tuple[str, bytes], data: st.DataObject) -> None:
    """With one byte changed after the file's head, only its element is lost, and all others are right."""
    name, original = written
    offset = data.draw(st.integers(48, len(original) - 1))
    change = data.draw(st.integers(1, 255))
    damaged = bytearray(original)
    damaged[offset] ^= change
    found = found_in(scratch, name, bytes(damaged))
    lost = len(found_in(scratch, name, original[:offset]))
    assert found == ELEMENTS.keys() - {lost}


@in_short(10)
@given(filler=st.binary(max_size=300), kept=st.integers(0, 700))
def test_anything_may_follow(scratch: Path, written: tuple[str, bytes], filler: bytes, kept: int) -> None:
    """Zeros or noise at the end, as after a power failure, are no entries."""
    name, data = written
    found_in(scratch, name, data[:kept] + bytes(len(filler)))
    found_in(scratch, name, data[:kept] + filler)


def test_foreign_files_stay(tmp_path: Path) -> None:
    """Files and folders that no cache made are never read, changed or removed, under any name."""
    folder = tmp_path / IDENTITY
    (folder / "3-0.segment").mkdir(parents=True)
    strangers = {"notes.txt": b"", "1-0.segment": b"something else" * 20, "2-0.segment": b"text", "a.segment": b""}
    for name, data in strangers.items():
        (folder / name).write_bytes(data)
    cache = opened(tmp_path)
    cache.put(0, 1)
    assert opened(tmp_path).get(0) == 1
    assert {name: (folder / name).read_bytes() for name in strangers} == strangers
    assert (folder / "3-0.segment").is_dir()


def test_a_damaged_element_can_be_put_again(tmp_path: Path) -> None:
    """An element whose bytes are damaged counts as missing; after it is put again, every process finds it."""
    opened(tmp_path).put(0, b"a" * 100)
    (file,) = tmp_path.rglob("*.segment")
    file.write_bytes(file.read_bytes().replace(b"aaa", b"aba", 1))
    cache = opened(tmp_path)
    assert cache.get(0) is MISSING
    assert cache.put(0, b"a" * 100)
    for each in (cache, opened(tmp_path)):
        assert each.get(0) == b"a" * 100


def test_elements_after_an_interrupted_one_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C just after an entry was written costs its element alone, and leaves no bytes of it."""
    cache, writev = opened(tmp_path), os.writev

    def interrupted(descriptor: int, parts: list[bytes]) -> int:
        monkeypatch.undo()
        writev(descriptor, parts)
        raise KeyboardInterrupt

    cache.put(0, b"a")
    monkeypatch.setattr(os, "writev", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.put(1, b"b" * 50)
    assert cache.put(2, b"c")
    for each in (cache, opened(tmp_path)):
        assert [each.get(position) for position in range(3)] == [b"a", MISSING, b"c"]


def test_files_removed_meanwhile(tmp_path: Path) -> None:
    """Files removed while a cache is open cost at most their elements."""
    cache = opened(tmp_path)
    cache.put(0, "kept")
    shutil.rmtree(tmp_path / IDENTITY)
    assert cache.get(0) == "kept"
    cache.put(1, "later")
    assert cache.get(1) == "later"
    assert opened(tmp_path).get(0) is MISSING


@pytest.mark.usefixtures("forked_programs")
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """Processes that are killed one after another during writes leave only right elements, and one file."""
    found = 0
    for start in range(0, 3_000, 1_000):
        with started(FILLING.format(path=str(tmp_path), first=start, stop=start + 1_000, limit=1 << 30)) as program:
            assert program.stdout.readline() == "began\n"
            program.kill()
        cache = opened(tmp_path)
        there = [position for position in range(3_000) if cache.get(position) is not MISSING]
        assert all(is_element(position, cache.get(position)) for position in there)
        assert start in there
        assert len(there) > found
        found = len(there)
        cache.close()
    assert len(list(tmp_path.rglob("*.segment"))) == 1


def test_no_file_is_left_of_a_death_before_writing(tmp_path: Path) -> None:
    """The next process removes a file whose creator died before it had written the head."""
    folder = tmp_path / IDENTITY
    opened(tmp_path).put(0, 1)
    (whole,) = folder.iterdir()
    (folder / "1-1.segment").touch()
    (folder / "1-2.segment").write_bytes(whole.read_bytes()[:20])
    assert opened(tmp_path).get(0) == 1
    assert list(folder.iterdir()) == [whole]
