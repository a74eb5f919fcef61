"""The dataset that tests write, also in processes of their own: it needs no test's imports."""

from typing import Any

import penstock as ps


def numbered(number: int) -> dict[str, Any]:
    """Return an element whose fields fit a tar file."""
    return {"__key__": f"n/{number:04}", "txt": f"number {number}", "raw": number.to_bytes(2, "little") * (number % 7)}


def numbers(count: int = 300) -> ps.Dataset[dict[str, Any]]:
    """Return a shuffled dataset of such elements."""
    return ps.range(count, seed=5).shuffle().map(numbered)
