"""The recipes of `docs/how-to/write-a-dataset.md` for Dask and Spark, on local clusters, whose processes are killed."""

import hashlib
import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as ps

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "write-a-dataset.md"
KILLS = 4
DATA = f"""
import os, signal
from pathlib import Path
import penstock as ps

def number(index):
    mark = Path(os.environ["MARKS"], str(index))
    if str(os.getpid()) != os.environ.get("OWN") and index % 100 == 7 and index < {KILLS * 100} and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {{"number": index, "squares": [index**2] * (index % 5)}}

def train():
    return ps.range(1000, seed=7).shuffle().map(number)
"""
DASK = """
import os
os.environ["OWN"] = str(os.getpid())
from dask.distributed import LocalCluster
cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
{block}
client.close()
cluster.close()
"""
SPARK = """
import os
os.environ["OWN"] = str(os.getpid())
{block}
spark.stop()
"""


def block(name: str) -> str:
    """Return the block of the page that needs a scheduler."""
    (found,) = re.findall(
        rf"^```python no-run: it needs {name}\n(.*?)^```$", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    return str(found)


def digests(folder: Path) -> dict[str, str]:
    """Return the content of each file of a folder, as a digest."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.parametrize(("name", "package", "program"), [("Dask", "distributed", DASK), ("Spark", "pyspark", SPARK)])
def test_schedulers_write_the_bytes_of_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str, program: str
) -> None:
    """Processes of the scheduler that are killed cost only time; the folder equals that of `ps.write`."""
    if importlib.util.find_spec(package) is None or (name == "Spark" and shutil.which("java") is None):
        pytest.skip(f"{name} isn't installed")
    folder, alone, marks = tmp_path / "train", tmp_path / "alone", tmp_path / "marks"
    marks.mkdir()
    (tmp_path / "data.py").write_text(DATA)
    text = block(name).replace('"/shared/train", "parquet"', f'{str(folder)!r}, "jsonl", shard_bytes=200')
    text = text.replace('"scheduler:8786"', "cluster.scheduler_address")
    assert str(folder) in text
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path]),
        "MARKS": str(marks),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": "--master local[2,8] --conf spark.ui.enabled=false pyspark-shell",
    }
    command = [sys.executable, "-c", program.format(block=text)]
    ended = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert len(list(marks.iterdir())) == KILLS
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("MARKS", str(marks))
    monkeypatch.delitem(sys.modules, "data", raising=False)
    dataset = importlib.import_module("data").train()
    assert ps.write(dataset, alone, "jsonl", shard_bytes=200, num_workers=0).complete
    assert digests(folder) == digests(alone)
