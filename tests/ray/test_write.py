"""A dataset that the hosts of a Ray cluster write has the bytes of `ps.write`, whatever is killed."""

import doctest
import hashlib
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock.errors import UsageError, WorkerError

ray: Any = pytest.importorskip("ray")
door: Any = importlib.import_module("penstock.ray")

COUNT = 600
DRIVER = """
import sys, ray, penstock.ray
from tests.ray.test_write import slow
ray.init(sys.argv[1], log_to_driver=False)
penstock.ray.write(slow(), sys.argv[2], "jsonl", shard_bytes=1000)
"""


def numbered(number: int) -> dict[str, Any]:
    """Return an element whose fields fit any format."""
    return {"txt": f"number {number}", "raw": "x" * (number % 7)}


def numbers() -> ps.Dataset[dict[str, Any]]:
    """Return a shuffled dataset of such elements."""
    return ps.range(COUNT, seed=5).shuffle().map(numbered)


def slow() -> ps.Dataset[dict[str, Any]]:
    """Return the dataset, with elements that take some milliseconds."""

    def compute(element: dict[str, Any]) -> dict[str, Any]:
        sum(range(100_000))
        return element

    return numbers().map(compute)


def dying(marks: Path, times: int) -> ps.Dataset[dict[str, Any]]:
    """Return the dataset; so many of its elements kill the process of Ray that is the first to compute them."""
    own = os.getpid()

    def kill(element: dict[str, Any]) -> dict[str, Any]:
        number = int(element["txt"].split()[1])
        mark = marks / str(number)
        if os.getpid() != own and number % (COUNT // times) == 0 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return element

    return numbers().map(kill)


def digests(folder: Path) -> dict[str, str]:
    """Return the content of each file of a folder, as a digest."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize("form", ["arrow", "tar"])
def test_the_hosts_write_the_bytes_of_one_process(tmp_path: Path, form: str) -> None:
    """The folder equals that of `ps.write`, and another call finds it complete."""
    size = 60_000 if form == "tar" else 1_000
    written = door.write(numbers(), tmp_path / "ray", form, shard_bytes=size)
    alone = ps.write(numbers(), tmp_path / "alone", form, shard_bytes=size, num_workers=0)
    assert (written.complete, written.new, written.shards) == (True, alone.new, alone.shards)
    assert written.shards > 5
    assert digests(tmp_path / "ray") == digests(tmp_path / "alone")
    assert door.write(numbers(), tmp_path / "ray", form, shard_bytes=size).new == 0


def test_killed_processes_cost_only_their_shard(tmp_path: Path) -> None:
    """Processes that are killed by SIGKILL inside a shard leave nothing, and others write it."""
    marks = tmp_path / "marks"
    marks.mkdir()
    dataset = dying(marks, 4)
    assert door.write(dataset, tmp_path / "ray", "jsonl", shard_bytes=1_000).complete
    assert len(list(marks.iterdir())) == 4
    ps.write(dataset, tmp_path / "alone", "jsonl", shard_bytes=1_000, num_workers=0)
    assert digests(tmp_path / "ray") == digests(tmp_path / "alone")


def test_another_engine_finishes_what_a_killed_program_began(tmp_path: Path) -> None:
    """After a SIGKILL of the program that called it, `ps.write` writes the missing shards."""
    folder = tmp_path / "ray"
    command = [sys.executable, "-c", DRIVER, ray.get_runtime_context().gcs_address, str(folder)]
    with subprocess.Popen(command) as driver:
        while driver.poll() is None and not list(folder.glob("0*.jsonl")):
            os.sched_yield()
        driver.kill()
    assert not (folder / "manifest.json").exists()
    assert ps.write(slow(), folder, "jsonl", shard_bytes=1_000, num_workers=2).complete
    ps.write(slow(), tmp_path / "alone", "jsonl", shard_bytes=1_000, num_workers=0)
    assert digests(folder) == digests(tmp_path / "alone")


class Hiding:
    """A function that hides a file from another process that loads it, as a host wouldn't see the file elsewhere."""

    def __init__(self, path: str, own: int) -> None:
        self._path = path
        self._own = own

    def __call__(self, element: dict[str, Any]) -> dict[str, Any]:
        """Return the element."""
        return element

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if os.getpid() != self._own:
            Path(self._path).unlink(missing_ok=True)


class OddError(Exception):
    """An exception of a function of the dataset."""


def failing(element: dict[str, Any]) -> dict[str, Any]:
    """Return the element, but for one that no sample of elements has."""
    if element["txt"] == "number 123":
        raise OddError("an odd one")
    return element


def test_an_exception_has_its_type_and_its_place(tmp_path: Path) -> None:
    """The exception of a function arrives as itself, with the position and the host; the call can be repeated."""
    with pytest.raises(OddError, match="an odd one") as caught:
        door.write(numbers().map(failing), tmp_path / "ray", "jsonl", shard_bytes=1_000)
    notes = "\n".join(caught.value.__notes__)
    assert "position" in notes
    assert "On host" in notes
    assert not list((tmp_path / "ray").glob(".*"))
    assert not (tmp_path / "ray" / "manifest.json").exists()


def test_a_shard_that_kills_each_process_is_named(tmp_path: Path) -> None:
    """After the last retry the error names the shard and its positions."""
    own = os.getpid()

    def die(element: dict[str, Any]) -> dict[str, Any]:
        if os.getpid() != own:
            os.kill(os.getpid(), signal.SIGKILL)
        return element

    dataset = numbers().map(die)
    with pytest.raises(WorkerError, match=r"of shard \d+, of the elements at positions \[\d+, \d+\)"):
        door.write(dataset, tmp_path / "ray", "jsonl", shard_bytes=10_000, options={"max_retries": 0})


def test_a_host_with_another_version_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names both hosts and both versions; nothing was written."""
    monkeypatch.setattr(ps, "__version__", "9.9.9")
    with pytest.raises(UsageError, match=r"has Penstock 0\.1\.0, and host .*, which sends the dataset, has 9\.9\.9"):
        door.write(numbers(), tmp_path / "ray", "jsonl")
    assert not list((tmp_path / "ray").glob("*0*"))


@pytest.mark.parametrize(
    ("there", "text"),
    [
        (
            "def double(element):\n    return [element] * 3\n",
            r"differs from that on .* in its functions.*map\(double\)",
        ),
        (None, r"can't load the dataset that .*: ModuleNotFoundError.*double_module.* Install the modules"),
    ],
)
def test_a_host_with_other_modules_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: str | None, text: str
) -> None:
    """If a function has other code on a host, or its module is missing, the error says so; nothing was written."""
    here = "def double(element):\n    return [element] * 2\n"
    for name, content in (("here", here), ("there", there)):
        (tmp_path / name).mkdir()
        if content is not None:
            (tmp_path / name / "double_module.py").write_text(content)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "here"), *sys.path])
    monkeypatch.delitem(sys.modules, "double_module", raising=False)
    dataset = numbers().map(importlib.import_module("double_module").double)
    path = os.pathsep.join([str(tmp_path / "there"), os.environ.get("PYTHONPATH", "")])
    options = {"runtime_env": {"env_vars": {"PYTHONPATH": path}}}
    with pytest.raises(UsageError, match=text):
        door.write(dataset, tmp_path / "ray", "jsonl", options=options)
    assert not list((tmp_path / "ray").glob("*0*"))


def test_a_folder_that_hosts_do_not_share_is_refused(tmp_path: Path) -> None:
    """A host that doesn't see what the program has written under that path says so, and writes nothing."""
    dataset = numbers().map(Hiding(str(tmp_path / "description.json"), os.getpid()))
    with pytest.raises(UsageError, match=r"doesn't see the description\.json .*a folder that all hosts share"):
        door.write(dataset, tmp_path, "jsonl")
    assert not list(tmp_path.iterdir())


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    """Options must be a mapping."""
    with pytest.raises(UsageError, match="options must be a mapping"):
        door.write(numbers(), tmp_path, options=4)


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the docstring prints what it says."""
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module("penstock.ray._write")
    printed: list[str] = []
    runner = doctest.DocTestRunner()
    for example in doctest.DocTestFinder(exclude_empty=True).find(module):
        runner.run(example, out=printed.append)
    assert runner.failures == 0, "".join(printed)
