"""What `docs/how-to/feed-jax.md` shows works, where JAX is installed; elsewhere its blocks aren't run."""

import re
from pathlib import Path

import pytest

pytest.importorskip("jax")
pytest.importorskip("orbax.checkpoint")

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "feed-jax.md"
BLOCK = re.compile(r"^```python no-run: it needs JAX\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is one program."""
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 5
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks), str(PAGE), "exec"), {"__name__": "__main__"})
