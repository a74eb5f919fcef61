"""`penstock index` writes the indexes of files beside them, and sources use them there."""

import io
import os
import re
import sys
import tarfile
from pathlib import Path

import pytest

from penstock.errors import CorruptRecordError
from penstock.sources import Tar
from tests.cli.command import main

Output = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write(folder: Path) -> Path:
    """Write a tar file of two records, and return its path."""
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w") as tar:
        for name in ("1.txt", "2.txt"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return folder / "a.tar"


def test_files_are_indexed_once_for_all_machines(tmp_path: Path, capsys: Output) -> None:
    """Another machine, whose cache is empty, doesn't read the headers again; a file that changed is indexed again."""
    path = write(tmp_path / "data")
    assert main(["index", str(path), str(path.parent / "*.tar")]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{shown}: Tar(2 records in 1 file)" for shown in (path, path.parent / "*.tar")
    ]
    [index] = path.parent.glob(".penstock/*")
    assert index.stat().st_mode == path.stat().st_mode  # whoever may read the data may read its index
    assert not (tmp_path / "cache").exists()
    content, time_ns = bytearray(path.read_bytes()), path.stat().st_mtime_ns
    content[512 + 150] ^= 1  # the checksum of the second header, which is compared when the file is indexed
    path.write_bytes(content)
    os.utime(path, ns=(time_ns, time_ns))
    assert [record["__key__"] for record in Tar(path).read([0, 1])] == ["1", "2"]
    os.utime(path)
    with pytest.raises(CorruptRecordError, match="right checksum"):
        Tar(path)


def test_an_index_that_cannot_be_read_or_written(
    tmp_path: Path, capsys: Output, caplog: pytest.LogCaptureFixture
) -> None:
    """The file is indexed again, in the cache, and a warning says why; the command's error names the file."""
    path = write(tmp_path / "data")
    assert main(["index", str(path)]) == 0
    [index] = path.parent.glob(".penstock/*")
    index.unlink()
    index.mkdir()
    assert len(Tar(path)) == 2
    assert re.search(rf"an index isn't used, as it can't be read \(.*{index.name}'\). Check its perm", caplog.text)
    index.rmdir()
    index.parent.rmdir()
    index.parent.write_text("in the way")
    assert main(["index", str(path)]) == 2
    assert "cannot write the index of" in capsys.readouterr().err
    assert len(Tar(path)) == 2


def test_the_sources_of_a_dataset_are_indexed_with_their_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    """A dataset names sources that ps.read(path) doesn't make; afterwards, another machine only reads their indexes."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.csv").write_text("x;y\n1;2\n3;4\n")
    (tmp_path / "sources_to_index.py").write_text(
        "import penstock as ps\n"
        f"table = ps.read(ps.sources.Csv({str(data / 'a.csv')!r}, delimiter=';'))\n"
        f"lines = ps.read({str(data / 'a.csv')!r}).map(len)\n"
        "numbers = ps.range(3)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert main(["index", "sources_to_index:table", "sources_to_index:lines"]) == 0
    assert capsys.readouterr().out.count("the files of its sources are indexed, 1 so far\n") == 2
    assert not (tmp_path / "cache").exists()
    assert len(list(data.glob(".penstock/*"))) == 2  # one for each kind of scan
    assert main(["index", "sources_to_index:numbers"]) == 2
    assert "no source that keeps an index" in capsys.readouterr().err
