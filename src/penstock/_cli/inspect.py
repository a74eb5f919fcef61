"""`penstock inspect`: the contents of a saved state in words, and whether it fits a dataset.

A file is JSON or a checkpoint that `torch.save` wrote. States are found in it at any depth, as values or as JSON text.
Nothing is unpickled but tensors and plain values, which is what `torch.load(weights_only=True)` reads.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import penstock
from penstock import _optional
from penstock._caught import Caught
from penstock._cli.datasets import METAVAR, named_dataset
from penstock._cli.terminal import ENDED, FAILED
from penstock._printable import printable
from penstock._state import LoaderState, Segment, from_json
from penstock.errors import GraphError, StateError, UsageError

_DESCRIPTION = """\
Shows what a saved state of a loader holds: the next step, the epoch, the position, the ranks
and the dataset's fingerprint. FILE is JSON, or a checkpoint of torch.save that contains a state.

With --against, it says for each state whether it fits the dataset, and what differs if not.
NAME is a dataset in MODULE, or a function without arguments that returns one.
"""
_DEEPEST: Final = 32  # values within values in a checkpoint
_WIDTH: Final = 12  # of the names of lines


class Found(NamedTuple):
    """A state in a file."""

    place: str
    """The file, and the keys in it, as in "run.pt['data']"."""
    state: LoaderState


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add this command's parser; `add` makes it."""
    parser = add(
        "inspect",
        help="show what a saved state holds, and which dataset it fits",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", help="a JSON file, or a checkpoint of torch.save")
    parser.add_argument(
        "--against",
        metavar=METAVAR,
        action="append",
        default=[],
        help="a dataset to compare with, such as data:train; may be given several times",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status: `FAILED` if a state fits none of the datasets."""
    datasets = {name: named_dataset(name) for name in arguments.against}
    status = ENDED
    for found in [each for file in arguments.files for each in states_in(Path(file))]:
        sys.stdout.write(f"{printable(found.place)}\n" + "".join(map(_line, _described(found.state))))
        fits = [_compare(name, dataset, found.state) for name, dataset in datasets.items()]
        if fits and not any(fits):
            status = FAILED
    return status


def states_in(path: Path) -> list[Found]:
    """Return the states in a file, with their places.

    Raises:
        UsageError: the file can't be read, or has no state.
        StateError: a state is damaged, or of another version.
        MissingDependencyError: the file is a checkpoint, and torch isn't installed.
    """
    found = [_found(f"{path}{keys}", state) for keys, state in _search(_content(path), "", 0)]
    if not found:
        raise UsageError(
            f"{path} has no state of a loader: no value that loader.state_dict() returned. Save that value with the "
            "checkpoint, as it is or as JSON text"
        )
    return found


def _found(place: str, state: object) -> Found:
    try:
        return Found(place, from_json(state))
    except StateError as error:
        raise StateError(f"{place}: {error}") from error


def _content(path: Path) -> object:
    try:
        with path.open("rb") as file:
            begin = file.read(64)
        if not begin:
            raise UsageError(f"{path} is empty, as a program leaves it that is killed before it has written")
        head = begin.lstrip()
        if head[:1] not in {b"{", b"[", b'"'}:
            return _checkpoint(path, head)
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror or error}") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} begins as JSON and is none: {error}") from error


def _checkpoint(path: Path, head: bytes) -> object:
    is_zip = head.startswith(b"PK")
    if not is_zip and not head.startswith(b"\x80"):  # a pickle, as older versions of torch write
        raise UsageError(f"{path} is neither JSON nor a checkpoint of torch: it begins with {head[:8]!r}")
    torch = cast("Any", _optional.need("torch", "torch", extra="torch"))
    with Caught(Exception) as caught:  # torch has many for a damaged file
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    error = caught.taken()
    if isinstance(error, OSError):
        raise error
    # Not the text of torch's error, which advises to read the file with `weights_only=False`.
    raise UsageError(
        f"{path} is neither JSON nor a checkpoint of tensors and plain values, the only ones that are read without "
        f"running code from the file ({type(error).__name__}). Save the state in a file of its own, with "
        "json.dumps(loader.state_dict())"
    ) from error


def _search(value: object, keys: str, depth: int) -> Iterator[tuple[str, object]]:
    """Yield the states in a value, with the keys that lead to them."""
    if depth > _DEEPEST:
        return
    if isinstance(value, str) and value.lstrip().startswith("{") and '"penstock"' in value:
        yield keys, value
    elif isinstance(value, Mapping):
        known = cast("Mapping[object, object]", value)
        if "penstock" in known and "fingerprint" in known:
            yield keys, known
            return
        for key, each in known.items():
            yield from _search(each, f"{keys}[{key!r}]", depth + 1)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(cast("list[object]", value)):
            yield from _search(each, f"{keys}[{number}]", depth + 1)


def _line(entry: tuple[str, str]) -> str:
    return f"  {entry[0]:<{_WIDTH}}{printable(entry[1])}\n"


def _described(state: LoaderState) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the lines about a state."""
    shape = state.shape
    yield "next batch", f"step {state.step:,}, in epoch {state.epoch:,} from position {state.position:,} on"
    ranks = "1 rank" if shape.ranks == 1 else f"{shape.ranks:,} ranks"
    rows = "1 row" if shape.batch == 1 else f"{shape.batch:,} rows"
    yield "batches", f"{rows} over {ranks}, remainder={shape.remainder!r}"
    if state.cursor is not None:
        yield "dataset", f"read in order; this is the state of rank {state.rank:,}, and the others have their own"
    elif state.ahead is not None:
        yield "dataset", f"has positions; this is the state of rank {state.rank:,}, since ordered=False"
    else:
        yield "dataset", "has positions; all ranks have this state"
    if state.ahead:
        spans = ", ".join(_span(state.step + start, state.step + stop - 1) for start, stop in state.ahead)
        yield "delivered", f"later steps, too: {spans}"
    if state.segments != (Segment(0, 0, 0, shape.batch),):
        for segment in state.segments:
            at = f"epoch {segment.epoch:,}, position {segment.position:,}"
            yield "since", f"step {segment.step:,}: batches of {segment.batch:,}, from {at} on"
    yield from state.fingerprint.items()
    yield "NumPy", state.numpy


def _span(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"


def _compare(name: str, dataset: penstock.Dataset[object], state: LoaderState) -> bool:
    """Print whether a state fits a dataset, and return it."""
    own = state.cursor is not None or state.ahead is not None
    shard = penstock.Shard(state.rank, state.shape.ranks, uneven=True) if own else penstock.Shard(0, 1)
    try:
        with warnings.catch_warnings(record=True) as caught, penstock.Loader(dataset, shard=shard) as loader:
            warnings.simplefilter("always")
            loader.load_state_dict(state.to_json())
            batch = loader.state_dict()["shape"]["batch"]
    except (StateError, GraphError, UsageError) as error:
        sys.stdout.write(_line(("doesn't fit", f"{name}: {error}")))
        return False
    notes = [str(each.message) for each in caught]
    if batch != state.shape.batch:
        notes.append(f"its batches have {batch:,} rows, so the rest of the epoch is cut into batches of that size")
    sys.stdout.write(_line(("fits", "; ".join([name, *notes]))))
    return True
