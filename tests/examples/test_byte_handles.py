"""`examples/byte_handles`: the download equals the upload, and the parts of one block are parsed in place."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "byte_handles"

# Put before the script to hide a module, as if it were not installed.
HIDDEN = "import runpy, sys; sys.modules[{0!r}] = None; runpy.run_path({1!r}, run_name='__main__')"


def run(script: str, hidden: str) -> list[str]:
    """Run an example with a hidden module, if one is given; return the lines that it printed."""
    program = HIDDEN.format(hidden, str(FOLDER / script))
    command = [sys.executable, "-W", "error", *(["-c", program] if hidden else [str(FOLDER / script)])]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("hidden", ["", "aiohttp"])
def test_an_array_is_uploaded_from_its_memory(hidden: str) -> None:
    """With aiohttp and without, the download equals the upload, and the upload copied nothing."""
    if not hidden:
        pytest.importorskip("aiohttp")
    lines = run("upload.py", hidden)
    assert ("http.client" in lines[0]) is bool(hidden)
    assert lines[-4].startswith("sent     <Bytes: 442368 bytes of ndarray, writable")
    assert lines[-3].startswith("fetched  <Bytes: 442368 bytes of bytes, read-only")
    assert lines[-2:] == ["equal: True; of the sent array's memory: True", "restored: uint8 (16, 96, 96, 3)"]


@pytest.mark.parametrize("hidden", ["", "simplejpeg"])
def test_parts_of_a_block_are_parsed_in_place(hidden: str) -> None:
    """With simplejpeg and without, the picture, the label and the text are the original ones."""
    pytest.importorskip("PIL")
    if not hidden:
        pytest.importorskip("simplejpeg")
    *first, picture, label, text, shared = run("decode.py", hidden)
    assert any("Pillow" in line for line in first) is bool(hidden)
    assert picture.startswith("picture: (120, 160, 3) from <Bytes: ")
    assert label.startswith("label:   {'label': 'stripes', 'source': 'generated'} from <Bytes: ")
    assert text.startswith("text:    1040 characters from <Bytes: ")
    assert shared == "the parts share the block's memory: True"
