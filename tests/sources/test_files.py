"""Files and ImageFolder: the files that are found in a folder, their order, and errors for removed files."""

import errno
import logging
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import SourceError, UsageError
from penstock.sources import Files, ImageFolder, describe_key, read_records


def _write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode(errors="surrogateescape"))


def test_files_are_sorted_by_the_bytes_of_their_names(tmp_path: Path) -> None:
    """The order is that of the names' bytes, not that of the files' creation."""
    names = ["b", "a/z", "a.txt", "é", "B", "a/b/c", "Z", "10", "9"]
    _write(tmp_path, *names)
    source = Files(tmp_path)
    assert list(source.paths) == sorted(names, key=os.fsencode)
    assert [source[key]["bytes"].decode() for key in range(len(source))] == list(source.paths)
    assert list(Files(str(tmp_path) + "/").paths) == list(source.paths)


@pytest.mark.skipif(os.name != "posix", reason="names are bytes on POSIX only")
def test_names_that_are_no_text_pass_through(tmp_path: Path) -> None:
    """A name that can't be decoded is read, matched, pickled and named like any other."""
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_bytes(b"latin")
    except OSError:
        pytest.skip("this file system refuses such names")
    source = pickle.loads(pickle.dumps(Files(tmp_path, "*.txt")))
    assert os.fsencode(source[0]["path"]) == b"caf\xe9.txt"
    assert source[0]["bytes"] == b"latin"
    assert ascii(source.describe_key(0)) == ascii("file 'caf\\udce9.txt'")
    assert source.fingerprint() == Files(tmp_path).fingerprint()


def test_patterns_match_whole_names(tmp_path: Path) -> None:
    """`*` matches within a part of a name, and `**` matches any number of folders, also none."""
    _write(tmp_path, "a.txt", "b.png", "d/a.txt", "d/e/a.txt", "d/e/x[1].txt", ".hidden/a.txt", "d/.a.txt")
    for pattern, expected in (
        ("**/*", "a.txt b.png d/a.txt d/e/a.txt d/e/x[1].txt"),
        ("*", "a.txt b.png"),
        ("*.txt", "a.txt"),
        ("./*.txt", "a.txt"),
        ("**/*.txt", "a.txt d/a.txt d/e/a.txt d/e/x[1].txt"),
        ("d/**/*.txt", "d/a.txt d/e/a.txt d/e/x[1].txt"),
        ("**/e/*", "d/e/a.txt d/e/x[1].txt"),
        ("**", "a.txt b.png d/a.txt d/e/a.txt d/e/x[1].txt"),
        ("d/*/a.txt", "d/e/a.txt"),
        ("?.[pt][nx][gt]", "a.txt b.png"),
        ("**/x[[]1].txt", "d/e/x[1].txt"),
    ):
        assert list(Files(tmp_path, pattern).paths) == expected.split()


def test_links_are_followed_but_not_in_cycles(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Links to files and folders are followed, except to a folder above; a link to nothing is logged."""
    data, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    _write(data, "a", "d/b")
    _write(elsewhere, "c")
    (data / "up").symlink_to(data)
    (data / "d" / "self").symlink_to(".")
    (data / "other").symlink_to(elsewhere)
    (elsewhere / "back").symlink_to(data)
    (data / "link").symlink_to(elsewhere / "c")
    (data / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "classes").mkdir()
    (tmp_path / "classes" / "dog").symlink_to(elsewhere)
    _write(elsewhere, "1.png")
    assert list(ImageFolder(tmp_path / "classes").paths) == ["dog/1.png"]
    (elsewhere / "1.png").unlink()
    with caplog.at_level(logging.WARNING, "penstock"):
        source = Files(data)
    assert list(source.paths) == ["a", "d/b", "link", "other/c"]
    assert source[2]["bytes"] == b"c"
    assert "1 links below" in caplog.text
    assert "nowhere" in caplog.text


def test_other_entries_are_left_out(tmp_path: Path) -> None:
    """A named pipe, whose read would never end, is left out."""
    _write(tmp_path, "a")
    os.mkfifo(tmp_path / "pipe")
    assert list(Files(tmp_path).paths) == ["a"]


def test_a_list_of_files_keeps_its_order(tmp_path: Path) -> None:
    """Files of a list are named relative to their common folder, so that data can be moved."""
    _write(tmp_path, "x/b", "x/y/a")
    source = Files([tmp_path / "x" / "y" / "a", str(tmp_path / "x" / "b")])
    assert list(source.paths) == ["y/a", "b"]
    assert source[1] == {"path": "b", "bytes": b"x/b"}
    assert list(Files([tmp_path / "x" / "b"]).paths) == ["b"]


def test_the_fingerprint_follows_names_and_sizes(tmp_path: Path) -> None:
    """The fingerprint changes with names and sizes, not with the folder."""
    for folder in ("old", "new"):
        _write(tmp_path / folder, "a", "b/c")
    fingerprint = Files(tmp_path / "old").fingerprint()
    assert Files(tmp_path / "new").fingerprint() == fingerprint
    (tmp_path / "new" / "a").write_bytes(b"longer")
    (tmp_path / "old" / "a").rename(tmp_path / "old" / "A")
    assert len({fingerprint, Files(tmp_path / "new").fingerprint(), Files(tmp_path / "old").fingerprint()}) == 3


@pytest.mark.parametrize("kind", [Files, ImageFolder])
def test_a_file_that_vanished_is_named(tmp_path: Path, kind: type[Files] | type[ImageFolder]) -> None:
    """A file that was removed after it was listed is a SourceError with file, key, errno and remedy."""
    _write(tmp_path, "cat/1.png", "cat/2.png")
    source = kind(tmp_path)
    (tmp_path / "cat" / "2.png").unlink()
    with pytest.raises(SourceError, match=r"cannot read file 'cat/2.png' \(key 1 of .*restore it") as caught:
        read_records(source, np.array([0, 1]))
    assert caught.value.errno == errno.ENOENT
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert caught.value.keys == (1,)
    assert not hasattr(caught.value, "__notes__")
    assert source[0]["bytes"] == b"cat/1.png"
    assert describe_key(source, 1) == "key 1 (file 'cat/2.png')"
    assert source.path_of(-1) == str(tmp_path / "cat" / "2.png")


def test_a_folder_without_files_is_refused(tmp_path: Path) -> None:
    """The message names folder and pattern."""
    with pytest.raises(UsageError, match=rf"in '{tmp_path}' none matches the pattern '\*\*/\*'"):
        Files(tmp_path)
    _write(tmp_path, "d/a.txt")
    with pytest.raises(
        UsageError, match=r"none matches the pattern '\*.txt'. Check the path; use `\*\*/` before a pattern"
    ):
        Files(tmp_path, "*.txt")
    with pytest.raises(UsageError, match=r"got an empty list"):
        Files([])
    with pytest.raises(UsageError, match=r"pattern= requires a folder"):
        Files([tmp_path / "d" / "a.txt"], "*.txt")
    with pytest.raises(UsageError, match=r"must hold files; got the folder"):
        Files([tmp_path / "d"])


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """A path that doesn't exist is a SourceError with its errno; a file in place of a folder has its own remedy."""
    for make in (Files, ImageFolder):
        with pytest.raises(SourceError, match=r"cannot list the folder .*missing.* Check the path") as caught:
            make(tmp_path / "missing")
        assert caught.value.errno == errno.ENOENT
    with pytest.raises(SourceError, match=r"cannot read .*missing"):
        Files([tmp_path / "missing"])
    (tmp_path / "a.txt").write_bytes(b"")
    with pytest.raises(SourceError, match=r"cannot list the folder .*a\.txt.* Pass single files in a list"):
        Files(tmp_path / "a.txt")


def test_classes_are_numbered_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Labels are positions in `classes`, images count at any depth, and other files don't count."""
    _write(tmp_path, "dog/1.png", "Cat/2.JPEG", "Cat/sub/1.webp", "Cat/notes.txt", "ant/.hidden.png", "ant/x.jpg")
    _write(tmp_path, "readme.png", ".git/x.png")
    source = ImageFolder(tmp_path)
    assert source.classes == ("Cat", "ant", "dog")
    assert list(source.paths) == ["Cat/2.JPEG", "Cat/sub/1.webp", "ant/x.jpg", "dog/1.png"]
    assert source.labels.tolist() == [0, 0, 1, 2]
    assert [source[key]["label"] for key in range(4)] == [0, 0, 1, 2]
    assert type(source[0]["label"]) is int
    for labels in (source.labels, pickle.loads(pickle.dumps(source)).labels):
        with pytest.raises(ValueError, match=r"read-only"):
            labels[0] = 5


def test_a_class_without_images_is_refused_unless_allowed(tmp_path: Path) -> None:
    """An empty class is named in the error; with allow_empty it keeps its label."""
    _write(tmp_path, "a/1.png", "b/notes.txt", "c/1.png")
    with pytest.raises(UsageError, match=rf"every class must have at least one image; '{tmp_path}/b' .*allow_empty"):
        ImageFolder(tmp_path)
    source = ImageFolder(tmp_path, allow_empty=True)
    assert source.classes == ("a", "b", "c")
    assert source.labels.tolist() == [0, 2]
    shutil.rmtree(tmp_path / "b")
    assert ImageFolder(tmp_path).fingerprint() != source.fingerprint()


@pytest.mark.parametrize("extensions", ["txt", (".TXT",), ["txt", ".md"]])
def test_endings_are_given_with_or_without_dot(tmp_path: Path, extensions: str | tuple[str, ...]) -> None:
    """Endings are compared without regard to case."""
    _write(tmp_path, "a/1.png", "a/notes.Txt")
    assert list(ImageFolder(tmp_path, extensions=extensions).paths) == ["a/notes.Txt"]


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    """A folder without classes, one without images, and no extensions each have a message."""
    with pytest.raises(UsageError, match=r"holds none. For files without classes, use Files"):
        ImageFolder(tmp_path)
    _write(tmp_path, "1.png")
    with pytest.raises(UsageError, match=r"holds none. For files without classes, use Files"):
        ImageFolder(tmp_path)
    _write(tmp_path, "a/notes.txt")
    with pytest.raises(UsageError, match=r"no file below .* ends in .bmp, .gif"):
        ImageFolder(tmp_path, allow_empty=True)
    with pytest.raises(UsageError, match=r"extensions must name at least one ending"):
        ImageFolder(tmp_path, extensions=())


def test_many_files_are_pickled_compactly(tmp_path: Path) -> None:
    """A pickle is hardly larger than the names."""
    names = [f"class/{number:04}.png" for number in range(500)]
    _write(tmp_path, *names)
    source = ImageFolder(tmp_path)
    assert len(pickle.dumps(source)) < sum(map(len, names)) + 500 * 16 + 1_000
    assert list(source.paths[3:5]) == names[3:5]
    assert source.paths[-1] == names[-1]
    assert len(repr(source)) < len(str(tmp_path)) + 60
