"""`write`: a folder of shards, their description before and their manifest after them."""

import contextlib
import hashlib
import io
import json
import os
import socket
import struct
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, cast

from penstock._dataset import Dataset
from penstock._dataset import integers as integer_range
from penstock._frozen import frozen
from penstock._graph import (
    Node,
    all_details,
    argument_texts,
    chain_text,
    fingerprint,
    is_batch,
    need_count,
    need_finite,
    parse_bytes,
    sampler_texts,
)
from penstock._loader import Loader
from penstock._os import local_path
from penstock._plan import Limits
from penstock._processes import import_ahead
from penstock._progress import Progress, counted
from penstock._runtime import Workers, usable_processors
from penstock._writing._drafts import draft_of, drafted, file_entry, name_first, remove_leftovers
from penstock._writing._formats import Block, Format, format_of, modules_of
from penstock.errors import UsageError

_SAMPLE: Final = 64  # elements, spread over the dataset, whose mean size gives the rows of a shard
_DESCRIPTION: Final = "description.json"
_MANIFEST: Final = "manifest.json"
_VERSION: Final = 4  # of the bytes of shards; a change of it refuses folders that an older release began
_BLOCK_BYTES: Final = 1 << 20  # of the elements that a format gets at once
_MAX_BLOCK: Final = 4096  # elements
_PART_SECONDS: Final = 0.1  # for the elements that are computed before the progress counts them
_DIGITS: Final = 5  # of a shard's number in the name of its files; more where there are more shards
_COUNT: Final = struct.Struct("<q")

_ELSEWHERE: Final = "Write to another folder, or empty this one."
_AGAIN: Final = "Remove it, and call write again."

File: TypeAlias = dict[str, Any]
"""A file of a shard in the manifest: its name, bytes and checksum."""

Entry: TypeAlias = dict[str, Any]
"""A shard in the manifest: its number, elements and files, and whether it is new."""


class Writers(Protocol):
    """Whatever calls `Shards` for some shards, here or on other hosts."""

    def __call__(self, shards: "Shards", numbers: Sequence[int], /, *, label: str, progress: bool) -> Iterable[Entry]:
        """Return the entries of these shards, in any order; with a progress line of this label, if that is wanted."""
        ...


@frozen
class Written:
    """The result of a call of `write`: the state of its folder.

    Attributes:
        path: the folder.
        shards: the number of shards of the whole dataset.
        elements: the number of elements of the whole dataset.
        new: the number of shards that this call wrote; the others existed already, or are of other parts.
        complete: whether the folder has all shards and the manifest.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = ps.write(ps.range(8), folder, "jsonl", shard_bytes=4, num_workers=0, part=(0, 2))
        ...     second = ps.write(ps.range(8), folder, "jsonl", shard_bytes=4, num_workers=0, part=(1, 2))
        ...     first.shards, first.new, first.complete, second.complete
        (4, 2, False, True)
    """

    path: str
    shards: int
    elements: int
    new: int
    complete: bool


def write(
    dataset: Dataset[Any],
    path: str | os.PathLike[str],
    format: str = "arrow",
    *,
    shard_bytes: int | str = "256MB",
    num_workers: int | None = None,
    workers: Workers = "processes",
    part: tuple[int, int] = (0, 1),
    progress: bool = True,
) -> Written:
    """Write the elements of epoch 0 to files of a common format, in order, shard by shard.

    Each shard is a pure function of its number: any worker on any host writes it to the same bytes. A call that was
    killed is repeated, and continues with the shards that are missing. Several hosts share the work if each passes
    another `part` of the same folder; the last one to finish adds the manifest.

    `path` gets the shards `00000.arrow` and so on; `description.json`, the dataset and the form of the shards; and, at
    the end, `manifest.json`, with the size and the checksum of each file. Each is written under another name and
    renamed.

    Args:
        dataset: of elements, not batches, with positions and an end. Elements are dicts of named fields, but for
            `"jsonl"` and `"tokens"`.
        path: a folder; it is created.
        format: `"arrow"`, IPC files of Arrow, which readers map; `"parquet"`, with groups of about 4 MiB, a page index,
            and zstd; `"tar"`, in the naming of WebDataset, for fields of bytes or text; `"jsonl"`, a line of JSON for
            each element; `"tokens"`, the two files of Megatron, for arrays of integers. The first two need pyarrow.
        shard_bytes: about how many bytes of elements a shard has, before compression: a number, or text such as
            "1GiB". The mean size of 64 elements, spread over the dataset, decides how many elements that are.
        num_workers: the number of workers, each of which writes one shard at a time; default: one for each processor.
            0 writes in the caller's thread.
        workers: "processes" or "threads".
        part: (k, n) writes the shards k, k + n, k + 2 n, … only.
        progress: show progress on stderr, if that is a terminal or a notebook, and the work takes more than 0.5 s.

    Returns:
        The state of the folder after the call.

    Raises:
        GraphError: the dataset has no positions, or no end.
        UsageError: an argument is wrong, an element doesn't fit the format, or the folder has the shards of another
            dataset or of another form, or files that were changed.
        MissingDependencyError: pyarrow isn't installed.

    Example:
        >>> import tempfile
        >>> import penstock as ps
        >>> numbers = ps.range(10, seed=7).shuffle().map(lambda number: {"number": number})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     written = ps.write(numbers, folder, "jsonl", num_workers=0)
        ...     again = ps.read(ps.sources.JsonLines(f"{folder}/*.jsonl", cache=folder))
        ...     list(again) == list(numbers), written.shards, written.complete
        (True, 1, True)
    """
    count = usable_processors() if num_workers is None else need_count("num_workers", num_workers)
    writers = partial(_written_by_loader, count, workers)
    if count and workers == "processes" and (modules := modules_of(format)):
        # A process imports them while this one looks at the elements, and workers are forked from it.
        import_ahead(None, Limits().worker_threads, modules)
    return write_by(writers, dataset, path, format, shard_bytes=shard_bytes, part=part, progress=progress)


def write_by(
    writers: Writers,
    dataset: Dataset[Any],
    path: str | os.PathLike[str],
    format: str,
    *,
    shard_bytes: int | str,
    part: tuple[int, int] = (0, 1),
    progress: bool,
) -> Written:
    """Write a dataset as `write` does; `writers` writes the shards."""
    folder, total = _folder_of(path), _count(dataset)
    turn, turns = _checked_part(part)
    shards = _describe(dataset, total, format, parse_bytes("shard_bytes", shard_bytes), folder, progress=progress)
    os.makedirs(folder, exist_ok=True)
    remove_leftovers(folder)
    _claim(shards)
    listed = _listed_files(shards)
    if listed is not None and _are_all_there(folder, listed):
        return Written(folder, shards.count, total, 0, complete=True)
    found: dict[int, Entry] = {}
    try:
        for entry in writers(shards, range(turn, shards.count, turns), label="writing", progress=progress):
            found[entry["shard"]] = entry
        complete = _finish(
            shards, found, listed or {}, partial(writers, label="computing checksums", progress=progress)
        )
    finally:
        remove_leftovers(folder)
    return Written(folder, shards.count, total, sum(entry["new"] for entry in found.values()), complete)


@frozen
class Shards:
    """The shards of a dataset; a call writes one, unless it exists, and returns its entry in the manifest."""

    dataset: Dataset[Any]
    format: Format
    folder: str
    rows: int
    block: int
    part: int
    """The number of elements that are computed before the progress counts them, at most those of a block."""
    total: int
    description: Mapping[str, Any]
    values: str
    """A digest of what functions and samplers hold. It may be of no importance, such as a count of calls."""
    tally: str | None = None
    """The path of a `_Tally`."""

    @property
    def count(self) -> int:
        return -(-self.total // self.rows)

    def paths_of(self, shard: int) -> list[str]:
        digits = max(_DIGITS, len(str(self.count - 1)))  # so that the names have the order of the shards
        return [os.path.join(self.folder, f"{shard:0{digits}}{suffix}") for suffix in self.format.suffixes]

    def positions_of(self, shard: int) -> range:
        return range(shard * self.rows, min((shard + 1) * self.rows, self.total))

    def exists(self, shard: int) -> bool:
        return all(map(os.path.exists, self.paths_of(shard)))

    def need_description(self) -> None:
        """Check that the folder, as this host sees it, has the description.

        Raises:
            UsageError: it hasn't.
        """
        found = _read_json(os.path.join(self.folder, _DESCRIPTION), self.description, _ELSEWHERE) or {}
        if {**found, **self.description} != found:  # it has the values of the functions, too
            raise UsageError(
                f"host {socket.gethostname()!r} doesn't see the {_DESCRIPTION} that this call has written to "
                f"{self.folder!r}. Write to a folder that all hosts share, under the same path."
            )

    def __call__(self, shard: int) -> Entry:
        positions = self.positions_of(shard)
        new = not self.exists(shard)
        paths = self.paths_of(shard)
        if new:
            with contextlib.ExitStack() as finishing:
                drafts = [finishing.enter_context(drafted(path)) for path in paths]
                self.format.write(self._blocks(positions), drafts)
            files = [draft.entry(path) for draft, path in zip(drafts, paths, strict=True)]
        else:
            with _appending(self.tally) as tell:
                tell(len(positions))
            files = [file_entry(path) for path in paths]
        return {"shard": shard, "elements": len(positions), "files": files, "new": int(new)}

    def _blocks(self, positions: range) -> Iterator[Block]:
        # All epochs of this part are alike, so a loader that repeats epoch 0 of it logs no warning.
        parts = self.dataset.epoch(0)[positions.start : positions.stop].batch(self.part, merge=_same)
        begin, gathered = positions.start, list[Any]()
        with Loader(parts, num_workers=0) as loader, _appending(self.tally) as tell:
            for elements in loader:
                tell(len(elements))
                gathered = [*gathered, *elements] if gathered else elements
                del elements  # the next ones take the memory of those that were written, which is in the cache
                if len(gathered) >= self.block:
                    # A copy of a list touches all elements, so a part that is a block isn't copied.
                    block = [gathered if len(gathered) == self.block else gathered[: self.block]]
                    gathered = gathered[self.block :]
                    yield begin, block.pop()
                    begin += self.block
            if gathered:
                yield begin, gathered


def _same(elements: list[Any]) -> list[Any]:
    return elements


class _Tally:
    """The number of elements that all workers have written so far, in a file to which each worker appends counts."""

    def __init__(self, path: str, file: io.FileIO) -> None:
        self.path = path
        self._file = file
        self._counted = 0

    def count(self) -> int:
        """Return the number of elements."""
        self._counted += sum(count for (count,) in _COUNT.iter_unpack(self._file.read()))
        return self._counted


@contextlib.contextmanager
def _tallied(folder: str) -> Generator[_Tally]:
    path = draft_of(os.path.join(folder, "tally"))
    with open(path, "w+b", buffering=0) as file:
        try:
            yield _Tally(path, file)
        finally:
            os.remove(path)


@contextlib.contextmanager
def _appending(tally: str | None) -> Generator[Callable[[int], object]]:
    """Yield a function that appends a count to the file of a tally."""
    if tally is None:
        yield lambda _: None
        return
    with open(os.open(tally, os.O_WRONLY | os.O_APPEND), "wb", buffering=0) as file:
        yield lambda count: file.write(_COUNT.pack(count))


def _written_by_loader(
    count: int, workers: Workers, shards: Shards, numbers: Sequence[int], *, label: str, progress: bool
) -> Iterator[Entry]:
    """Yield the entries of shards that the workers of a loader write, or this thread if `count` is 0."""
    elements = sum(len(shards.positions_of(number)) for number in numbers)
    with (
        _tallied(shards.folder) as tally,
        Progress(label, elements, enabled=progress, amount=counted, measure=tally.count),
    ):
        writing = integer_range(shards.count).select(numbers).map(replace(shards, tally=tally.path))
        if count == 0 or not numbers:
            yield from _with_notes(shards, numbers, iter(writing))
            return
        with Loader(writing, num_workers=min(count, len(numbers)), workers=workers, prefetch=1) as loader:
            yield from _with_notes(shards, numbers, iter(loader))


def _with_notes(shards: Shards, numbers: Sequence[int], entries: Iterator[Entry]) -> Iterator[Entry]:
    """Yield the entries of shards; an error gets a note of its shard, which the loader's own notes call an element."""
    for number in numbers:
        try:
            entry = next(entries)
        except Exception as error:
            positions, notes = shards.positions_of(number), getattr(error, "__notes__", [])
            of_loader = (at for at, note in enumerate(notes) if note.startswith(f"in step {Shards.__name__!r} "))
            del notes[next(of_loader, len(notes)) :]
            error.add_note(
                f"while writing shard {number}, of the elements at positions [{positions.start}, {positions.stop}). "
                "Shards that are whole stay: the same call writes the others"
            )
            raise
        yield entry


def _describe(dataset: Dataset[Any], total: int, name: str, shard_bytes: int, folder: str, *, progress: bool) -> Shards:
    """Return the shards of a dataset; the number of their rows follows from elements spread over it."""
    identity, values = _identity(dataset.node)  # before a function is called, which may change the values that it holds
    count = min(total, _SAMPLE)
    positions = [number * total // count for number in range(count)]
    sample: list[Any] = []
    began = time.perf_counter()
    with Progress("measuring elements", count, enabled=progress, amount=counted) as line:
        for position in positions:
            sample.append(dataset[position])
            line.advance(1)
    seconds = max(time.perf_counter() - began, 1e-9)
    chosen = format_of(name, positions, sample)
    size = max(sum(map(chosen.size_of, sample, positions)), 1)
    rows = max(1, min(total, shard_bytes * count // size))
    block = max(1, min(_MAX_BLOCK, _BLOCK_BYTES * count // size))
    part = max(1, min(block, int(_PART_SECONDS * count / seconds)))
    description = {
        "version": _VERSION,
        "dataset": chain_text(dataset.node),
        "fingerprint": identity,
        "format": name,
        "elements": total,
        "elements_per_shard": rows,
    }
    as_read = json.loads(json.dumps(description))
    return Shards(dataset, chosen, folder, rows, block, part, total, as_read, values)


def _identity(node: Node) -> tuple[dict[str, str], str]:
    """Return digests of what decides a dataset's elements, and one of what its functions and samplers hold."""
    details = all_details(node)
    more = _digest([*details["source"], *details["order"], *argument_texts(node)])
    values = _digest([*details["functions"], *sampler_texts(node)])
    return {**fingerprint(node).parts(), **({"details": more} if more else {})}, values


def _digest(texts: Sequence[str]) -> str:
    return hashlib.blake2b(json.dumps(texts).encode(), digest_size=8).hexdigest() if texts else ""


def _claim(shards: Shards) -> None:
    """Write the description, or check that the folder has this one.

    Raises:
        UsageError: it has another one, or files with the names of write's and none.
    """
    folder, description = shards.folder, shards.description
    names = set(os.listdir(folder))  # before the description is read, which another call writes before its shards
    path = os.path.join(folder, _DESCRIPTION)
    found = _read_json(path, description, _ELSEWHERE)
    if found is None:
        taken = next((name for name in (*_names_of(shards), _MANIFEST) if name in names), None)
        if taken is not None:
            raise UsageError(
                f"{folder!r} has a file {taken!r}, as write names its own, but no {_DESCRIPTION}, so write didn't make "
                f"it. {_ELSEWHERE}"
            )
        _write_json(path, {**description, "values": shards.values}, name_first)
        found = _read_json(path, description, _ELSEWHERE)  # another call may have been faster
    if found is None:
        return
    values = found.pop("values", shards.values)
    if found != description:
        differing = [name for name, value in found.items() if description.get(name) != value]
        raise UsageError(
            f"{folder!r} has the shards of another call of write; the two differ in {', '.join(differing)}. It wrote "
            f"{found['dataset']!r} as {found['format']!r}. {_ELSEWHERE}"
        )
    if values != shards.values:
        warnings.warn(
            f"the dataset's functions or samplers hold other values than in the call that began {folder!r}, in "
            "closures, defaults, attributes or globals; the shards that are there stay. If elements depend on these "
            f"values: {_ELSEWHERE}",
            stacklevel=4,
        )


def _names_of(shards: Shards) -> Iterator[str]:
    return (os.path.basename(path) for shard in range(shards.count) for path in shards.paths_of(shard))


def _finish(
    shards: Shards,
    found: Mapping[int, Entry],
    listed: Mapping[str, File],
    find: Callable[[Shards, Sequence[int]], Iterable[Entry]],
) -> bool:
    """Write the manifest if all shards exist, and return whether they do.

    Raises:
        UsageError: a file that this call found has another content than the one in the manifest, `listed`.
    """
    if not all(map(shards.exists, range(shards.count))):
        return False
    others = [shard for shard in range(shards.count) if shard not in found]
    entries = {**found, **{entry["shard"]: entry for entry in (find(shards, others) if others else ())}}
    for file in (file for entry in entries.values() if not entry["new"] for file in entry["files"]):
        _need_same(shards.folder, file, listed.get(file["name"], file), "sha256")
    files = [{name: entries[shard][name] for name in ("elements", "files")} for shard in range(shards.count)]
    _write_json(os.path.join(shards.folder, _MANIFEST), {**shards.description, "shards": files})
    return True


def _listed_files(shards: Shards) -> dict[str, File] | None:
    """Return the files that the manifest lists, by name, or None if there is no manifest.

    Raises:
        UsageError: it isn't the manifest of these shards.
    """
    path = os.path.join(shards.folder, _MANIFEST)
    manifest = _read_json(path, (*shards.description, "shards"), _AGAIN)
    if manifest is None:
        return None
    with contextlib.suppress(KeyError, TypeError):
        listed = {file["name"]: file for shard in manifest.pop("shards") for file in shard["files"]}
        are_files = all(isinstance(file["bytes"], int) and isinstance(file["sha256"], str) for file in listed.values())
        if are_files and listed.keys() == {*_names_of(shards)} and manifest == shards.description:
            return listed
    raise UsageError(f"{path!r} isn't the manifest of this dataset: it was changed. {_AGAIN}")


def _are_all_there(folder: str, listed: Mapping[str, File]) -> bool:
    """Return whether the folder has all files that its manifest lists.

    Raises:
        UsageError: one has another size.
    """
    there = [name for name in listed if os.path.exists(os.path.join(folder, name))]
    for name in there:
        found = {"name": name, "bytes": os.path.getsize(os.path.join(folder, name))}
        _need_same(folder, found, listed[name], "bytes")
    return len(there) == len(listed)


def _need_same(folder: str, found: File, listed: File, what: str) -> None:
    if found[what] != listed[what]:
        path = os.path.join(folder, found["name"])
        raise UsageError(
            f"{path!r} was changed: the manifest has {what} {listed[what]}, and the file {found[what]}. {_AGAIN}"
        )


def _read_json(path: str, names: Iterable[str], remedy: str) -> dict[str, Any] | None:
    """Return the JSON of one of write's own files, or None if there is no file.

    Raises:
        UsageError: it isn't JSON with these names.
    """
    try:
        with open(path, encoding="utf-8") as file:
            found: Any = json.load(file)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UsageError(
            f"{path!r} isn't JSON, so it was damaged, or write didn't make it: {error}. {remedy}"
        ) from error
    lacking = [name for name in names if not isinstance(found, dict) or name not in found]
    if lacking:
        raise UsageError(f"{path!r} lacks {', '.join(lacking)}, so it was damaged, or write didn't make it. {remedy}")
    return cast("dict[str, Any]", found)


def _write_json(path: str, content: Mapping[str, Any], name: Callable[[str, str], object] = os.replace) -> None:
    with drafted(path, name) as draft:
        draft.write(json.dumps(content, indent=1).encode())


def _folder_of(path: str | os.PathLike[str]) -> str:
    path = local_path(path, "path")
    if os.path.lexists(path) and not os.path.isdir(path):
        raise UsageError(f"path must be a folder, or a new one; {path!r} is neither. Choose another, or remove it.")
    return path


def _count(dataset: object) -> int:
    if not isinstance(dataset, Dataset):
        raise UsageError(
            f"dataset must be a penstock Dataset; got {dataset!r:.200}. Make one with ps.read(source), or with "
            "ps.stream(lambda: …) of a generator."
        )
    if is_batch(dataset.node):
        raise UsageError("write takes elements, and the dataset has batches. Leave batch() out, or add unbatch().")
    return need_finite(dataset.node, "write()", "Leave that step out, and use it on the files that were written.")


def _checked_part(part: tuple[int, int]) -> tuple[int, int]:
    if len(part) != 2:
        raise UsageError(f"part must be (k, n), part k of n; got part={part!r}")
    turn, turns = need_count("k of part", part[0]), need_count("n of part", part[1], 1)
    if turn >= turns:
        raise UsageError(f"part must be (k, n) with k below n; got part={part!r}. The first part is (0, n).")
    return turn, turns
