"""The checkout's own files: those that a commit would contain."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def files(*suffixes: str, under: str = ".") -> Iterator[Path]:
    """Yield the committed and the new files with one of the suffixes, or with any if none is given."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", under],
        cwd=CHECKOUT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in sorted(set(listed.stdout.split("\0")) - {""}):
        path = CHECKOUT / name
        if path.is_file() and (not suffixes or path.suffix in suffixes):
            yield path


def name_of(path: Path) -> str:
    """Return the path below the checkout, with slashes."""
    return path.relative_to(CHECKOUT).as_posix()
