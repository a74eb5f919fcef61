"""`filter(predicate, index=path)`: the elements of a plain filter, with positions, from verdicts in a file."""

import errno
import os
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import GraphError, UsageError
from tests.dataset.functions import double, draw, is_odd, noisy
from tests.profiles import in_short


@dataclass(frozen=True)
class Multiple:
    """A predicate that keeps multiples of a number."""

    of: int

    def __call__(self, number: int) -> bool:
        """Return whether the number is a multiple."""
        return number % self.of == 0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the path of an index, in a folder of its own."""
    folder = tmp_path / "folder"
    folder.mkdir()
    return folder / "verdicts"


STEPS: dict[str, Callable[[ps.Dataset], ps.Dataset]] = {
    "map": lambda dataset: dataset.map(double),
    "shuffle": lambda dataset: dataset.shuffle(),
    "slice": lambda dataset: dataset[1::2],
    "repeat": lambda dataset: dataset.repeat(2),
    "batches": lambda dataset: dataset.batch(3).unbatch(),
    "fixed": lambda dataset: dataset.epoch(3),
    "concatenated": lambda dataset: ps.concatenate([dataset, ps.range(5, seed=2).shuffle()]),
    "mixed": lambda dataset: ps.mix(
        {"one": ps.range(9, seed=2).shuffle(), "other": ps.concatenate([dataset, dataset])}
    ),
}


@in_short(12)
@given(count=st.integers(0, 60), steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=3), of=st.integers(1, 4))
def test_an_index_keeps_the_elements_of_a_plain_filter(count: int, steps: list[str], of: int) -> None:
    """Epoch 0 has the elements of a plain filter in its order; later epochs have the same ones in some order."""
    below: ps.Dataset = ps.range(count, seed=7)
    for step in steps:
        below = STEPS[step](below)
    expected = [number for number in below if number % of == 0]
    with tempfile.TemporaryDirectory() as folder:
        index = os.path.join(folder, "verdicts")
        made, loaded = (below.filter(Multiple(of), index=index) for _ in range(2))
        assert os.listdir(folder) == ["verdicts"]
    assert list(made) == expected == list(below.filter(Multiple(of)))
    assert repr(made).splitlines()[0] == f"filter(Multiple, indexed): {len(expected)}"
    assert len(made) == len(expected)
    assert [made[position] for position in range(len(made))] == expected
    assert made == loaded == pickle.loads(pickle.dumps(made))
    assert sorted(made.shuffle()) == sorted(expected)
    for epoch in (1, 4):
        assert sorted(made.epoch(epoch)) == sorted(expected)


def test_an_indexed_filter_may_be_sliced_and_split(path: Path) -> None:
    """The parts are disjoint and keep their elements in every epoch, also above a shuffle."""
    dataset = ps.range(100, seed=1).shuffle().filter(is_odd, index=path)
    parts = [dataset[:10], dataset[10:]]
    for part, others in zip(parts, reversed(parts), strict=True):
        assert set(part) == set(part.epoch(5))
        assert not set(part.epoch(2)) & set(others.epoch(3))
    assert list(parts[0].epoch(1)) != list(parts[0].epoch(2))


def test_random_maps_above_are_those_above_a_plain_filter(path: Path) -> None:
    """An element's random numbers don't depend on its filter's index, and no two elements share any."""
    below = ps.range(40, seed=3).shuffle()
    dataset = below.filter(is_odd, index=path).random_map(noisy)
    assert list(dataset) == list(below.filter(is_odd).random_map(noisy))
    draws = list(below.filter(is_odd, index=path).random_map(draw).repeat(3))
    assert len(set(draws)) == len(draws) == 60


def test_the_predicate_is_called_once_for_each_element(path: Path, tmp_path: Path) -> None:
    """Later datasets and epochs load the verdicts and call no predicate."""
    calls = str(tmp_path / "calls")

    def logged(number: int) -> bool:
        with open(calls, "ab", buffering=0) as log:
            log.write(number.to_bytes(1, "big"))
        return number % 3 == 0

    for _ in range(3):
        dataset = ps.range(50).filter(logged, index=path)
        assert [list(dataset), len(dataset.epoch(2))] == [[*range(0, 50, 3)], 17]
    assert sorted(Path(calls).read_bytes()) == [*range(50)]


# ---------------------------------------------------------------------------------------------- the file


def with_closure(limit: int) -> Callable[[int], bool]:
    """Return a predicate with a value in its closure."""
    return lambda number: number < limit


def test_an_index_of_another_dataset_is_replaced(path: Path) -> None:
    """The index is computed again with one warning, which says what differs, and is loaded the next time.

    Predicates of one code with other closures or attributes have other verdicts.
    """
    rows, threes = ps.range(20), Multiple(3)
    cases: list[tuple[ps.Dataset, Callable[[Any], bool], ps.Dataset, Callable[[Any], bool], str]] = [
        (rows.map(double), threes, ps.range(21).map(double), threes, "source"),
        (ps.range(20, seed=1).shuffle(), threes, ps.range(20, seed=2).shuffle(), threes, "order"),
        (rows.map(double), threes, rows.map(abs), threes, "functions"),
        (rows, Multiple(2), rows, threes, "functions"),
        (rows, with_closure(4), rows, with_closure(7), "functions"),
    ]
    for one, first, other, second, part in cases:
        path.unlink(missing_ok=True)
        one.filter(first, index=path)
        with pytest.warns(UserWarning, match=f"another {part}") as caught:
            dataset = other.filter(second, index=path)
        assert [warning.filename for warning in caught] == [__file__]
        assert list(dataset) == [number for number in other if second(number)]
        assert other.filter(second, index=path) == dataset
        assert os.listdir(path.parent) == [path.name]


@in_short(15)
@given(data=st.data())
def test_a_damaged_index_is_replaced(data: st.DataObject) -> None:
    """A change of any byte after the first sixteen, or the loss of any, is noticed, reported and repaired."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder, "verdicts")
        ps.range(100).filter(is_odd, index=index)
        whole = index.read_bytes()
        changed = bytearray(whole)
        changed[data.draw(st.integers(16, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
        cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
        index.write_bytes(data.draw(st.sampled_from([bytes(changed), cut, whole + b"\0"])))
        with pytest.warns(UserWarning, match="damaged"):
            dataset = ps.range(100).filter(is_odd, index=index)
        assert list(dataset) == [*range(1, 100, 2)]
        assert index.read_bytes() == whole


def test_a_foreign_file_is_not_overwritten(path: Path) -> None:
    """A file that isn't an index is an error, and stays unchanged."""
    for content in (b"short", b"weights of a model that took a month to train"):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=r"another kind.*remove"):
            ps.range(5).filter(is_odd, index=path)
        assert path.read_bytes() == content
    assert os.listdir(path.parent) == [path.name]


def test_a_pipe_is_not_replaced(path: Path) -> None:
    """A path that isn't a regular file, such as a device or a pipe, is an error at once, and stays."""
    pipe = path.with_name("pipe")
    os.mkfifo(pipe)
    path.symlink_to(pipe)
    for index in (pipe, path):
        with pytest.raises(UsageError, match=r"pipe' is a device, pipe or socket.*Name another file"):
            ps.range(5).filter(is_odd, index=index)
    assert pipe.is_fifo()
    assert set(os.listdir(path.parent)) == {"pipe", path.name}


def test_a_link_stays_a_link(path: Path) -> None:
    """The file that a symbolic link names is written, whether it exists or not; the link stays."""
    path.symlink_to("target")
    target = path.with_name("target")
    for below in (ps.range(5), ps.range(6)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the second one replaces the first one's index
            made = below.filter(is_odd, index=path)
        assert path.is_symlink()
        assert below.filter(is_odd, index=target) == made


def never(number: int) -> bool:
    """Fail: the predicate must not be called."""
    raise AssertionError(number)


def test_an_unwritable_path_is_refused_before_computing(path: Path) -> None:
    """A missing folder, or one without write access, is an error before any predicate is called."""
    with pytest.raises(UsageError, match="can't be written: No such file"):
        ps.range(5).filter(never, index=path / "below" / "it")
    with pytest.raises(UsageError, match="can't be read"):
        ps.range(5).filter(never, index=path.parent)
    if os.geteuid():
        path.parent.chmod(0o500)
        with pytest.raises(UsageError, match="can't be written: Permission denied"):
            ps.range(5).filter(never, index=path)
        path.parent.chmod(0o700)


def test_an_index_is_loaded_from_a_read_only_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading an index writes nothing."""
    made = ps.range(9).filter(is_odd, index=path)
    real_open = os.open

    def read_only(name: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), name)
        return real_open(name, flags, *rest, **named)

    monkeypatch.setattr(os, "open", read_only)
    assert ps.range(9).filter(is_odd, index=path) == made
    with pytest.raises(UsageError, match="Read-only file system"):
        ps.range(9).filter(never, index=path.with_name("another"))


def test_a_full_disk_loses_no_verdict(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the file can't be written, the verdicts are used with a warning, and no partial file is left."""

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="No space left.*not kept"):
        assert list(ps.range(9).filter(is_odd, index=path)) == [1, 3, 5, 7]
    assert not os.listdir(path.parent)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks")
def test_an_index_needs_no_locks(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks works too, and only the index is left."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr("fcntl.flock", unsupported)
    made = ps.range(9).filter(is_odd, index=path)
    assert ps.range(9).filter(is_odd, index=path) == made
    assert os.listdir(path.parent) == [path.name]


# ---------------------------------------------------------------------------------------------- errors


def second(number: int, other: object) -> object:
    """Return the second argument."""
    del number
    return other


def test_datasets_without_lasting_elements_are_refused(path: Path) -> None:
    """A dataset without positions, with no end, or with changing elements is refused with a remedy."""
    cases: list[tuple[ps.Dataset, str]] = [
        (ps.range(5).filter(is_odd), r"filter\(is_odd\) can only be read in order"),
        (ps.range(5).repeat(), "has none. Use take"),
        (ps.range(5).random_map(draw), r"random_map\(draw\) has other elements"),
        (ps.range(5).random_map(second, rng="seed").map(double), r"random_map\(second\) has other elements"),
        (ps.range(5).map_with_origin(second), r"map_with_origin\(second\) has other elements"),
        (ps.range(5).map(double, on_error=ps.Substitute()), r"map\(double.* has other elements"),
    ]
    for below, message in cases:
        with pytest.raises(GraphError, match=message):
            below.filter(never, index=path)
    assert not os.listdir(path.parent)


def fails_at_33(number: int) -> bool:
    """Keep odd numbers; fail at 33."""
    if number == 33:
        raise LookupError("thirty-three")
    return number % 2 == 1


@pytest.mark.parametrize(("there_before", "step"), [(False, "filter"), (True, "map")])
def test_an_error_of_the_user_is_raised_with_its_place(path: Path, step: str, *, there_before: bool) -> None:
    """The error has step, position and key; no partial file is left, and an old one stays."""
    if there_before:
        ps.range(100)[10:].filter(is_odd, index=path)
    before = path.read_bytes() if there_before else None
    below = ps.range(100)[10:] if step == "filter" else ps.range(100)[10:].map(fails_at_33)
    warnings.simplefilter("ignore")  # about the replaced index; pytest resets this
    with pytest.raises(LookupError, match="thirty-three") as raised:
        below.filter(fails_at_33 if step == "filter" else bool, index=path)
    assert raised.value.__notes__ == ["in step 'fails_at_33' at epoch 0, position 33, key 33"]
    assert os.listdir(path.parent) == ([path.name] if there_before else [])
    assert before is None or path.read_bytes() == before


# -------------------------------------------------------------------------------------------------------- loaders
