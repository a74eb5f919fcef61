"""`examples/byte_handles`: the download equals the upload, and the parts of one block are parsed in place."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "byte_handles"


def run(script: str, hidden: str) -> list[str]:
    """Run an example as if a module were not installed; return the lines that it printed."""
    path = str(FOLDER / script)
    program = f"import runpy, sys; sys.modules[{hidden!r}] = None; runpy.run_path({path!r}, run_name='__main__')"
    command = [sys.executable, "-W", "error", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def with_and_without(package: str) -> list[str]:
    """Return what is hidden from runs of an example: nothing, if the package is installed, and the package."""
    return [*(["none"] if find_spec(package) else []), package]


def test_an_array_is_uploaded_from_its_memory() -> None:
    """With aiohttp and without, the download equals the upload, and the upload copied nothing."""
    for hidden in with_and_without("aiohttp"):
        lines = run("upload.py", hidden)
        assert ("http.client" in lines[0]) is (hidden == "aiohttp")
        assert lines[-4].startswith("sent     <Bytes: 442368 bytes of ndarray, writable")
        assert lines[-3].startswith("fetched  <Bytes: 442368 bytes of bytes, read-only")
        assert lines[-2:] == ["equal: True; of the sent array's memory: True", "restored: uint8 (16, 96, 96, 3)"]


def test_parts_of_a_block_are_parsed_in_place() -> None:
    """With simplejpeg and without, the picture, the label and the text are the original ones."""
    pytest.importorskip("PIL")
    for hidden in with_and_without("simplejpeg"):
        *first, picture, label, text, shared = run("decode.py", hidden)
        assert any("Pillow" in line for line in first) is (hidden == "simplejpeg")
        assert picture.startswith("picture: (120, 160, 3) from <Bytes: ")
        assert label.startswith("label:   {'label': 'stripes', 'source': 'generated'} from <Bytes: ")
        assert text.startswith("text:    1040 characters from <Bytes: ")
        assert shared == "the parts share the block's memory: True"
