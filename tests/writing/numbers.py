"""The dataset that tests write, also in processes of their own, and the content of a folder: no test is imported."""

import hashlib
import os
from functools import partial
from pathlib import Path
from typing import Any

import penstock as ps


def numbered(number: int) -> dict[str, Any]:
    """Return an element whose fields fit a tar file."""
    return {"__key__": f"n/{number:04}", "txt": f"number {number}", "raw": number.to_bytes(2, "little") * (number % 7)}


def numbers(count: int = 300) -> ps.Dataset[dict[str, Any]]:
    """Return a shuffled dataset of such elements."""
    return ps.range(count, seed=5).shuffle().map(numbered)


def waiting(folder: Path, own: int, element: dict[str, Any]) -> dict[str, Any]:
    """Return the text of an element; one process waits for the gate while it has a draft in the folder."""
    gate = folder.with_name("gate")
    if os.getpid() == own and gate.exists() and any(folder.glob(".*.jsonl.*.draft")):
        gate.read_bytes()
    return {"txt": element["txt"]}


def held(folder: Path, own: int) -> ps.Dataset[dict[str, Any]]:
    """Return a dataset whose elements wait so."""
    return numbers(60).map(partial(waiting, folder, own))


def digests(folder: Path) -> dict[str, str]:
    """Return the content of each file of a folder, as a digest."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
