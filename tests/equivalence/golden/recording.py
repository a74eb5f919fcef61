"""Records of the golden datasets, made and read by loaders.

A record holds, for each dataset and each of its ranks: a digest of every batch of two epochs (structure, types, dtypes,
shapes and bytes), the first batch as text, and the states after some numbers of batches, as they are in JSON. It holds
the dataset's fingerprint and length, and the origins of some rows, seeds included. `Resume` records hold the states
that were loaded into other datasets or ranks, the batches after that, and a state among them. The files of an index and
of a cache are recorded, too.

The NumPy version in a state is replaced, and the parts of a fingerprint that cover byte code are compared only under
the version of Python that recorded them.
"""

import base64
import hashlib
import itertools
import json
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

import numpy as np

import penstock as ps
from tests.equivalence.golden.datasets import DATASETS, FILES, RANKS, RESUMES, Resume, write_files
from tests.equivalence.kinds import as_array, is_dict, is_list_or_tuple, is_numpy

Record: TypeAlias = dict[str, Any]

RECORDS: Final = Path(__file__).with_name("records.json")
PYTHON: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
NO_NUMPY: Final = "any"
EPOCHS: Final = 2
_SAVED_AFTER: Final = (3, 2)  # batches of each epoch
_ORIGIN: Final = ("epoch", "position", "key", "ordinal", "component")  # a later field doesn't change the records
_TEXT: Final = 160  # characters of a batch that are shown
_DIGITS: Final = 16  # hexadecimal, of a batch's SHA-256


def record_all(folder: Path, known: Record) -> Record:
    """Return the records of all datasets: those that are known, and the others computed inline.

    Args:
        folder: an empty folder, for the files that some datasets read.
        known: records as this function returns them, of which any may be missing.
    """
    write_files(folder)
    datasets = known.get("datasets", {})
    resumes = known.get("resumes", {})
    files = known.get("files", {})
    return {
        "python": PYTHON,
        "datasets": {name: datasets.get(name) or record_dataset(name, folder) for name in DATASETS},
        "resumes": {name: resumes.get(name) or record_resume(name, folder) for name in RESUMES},
        "files": {name: files.get(name) or kept_files(folder, FILES[name]) for name in FILES},
    }


def kept_files(folder: Path, name: str) -> dict[str, str]:
    """Return the content, in base64, of a file or of all files in a folder, by their paths."""
    paths = [path for path in [folder / name, *sorted((folder / name).rglob("*"))] if path.is_file()]
    return {str(path.relative_to(folder).as_posix()): base64.b64encode(path.read_bytes()).decode() for path in paths}


def record_dataset(name: str, folder: Path, **place: Any) -> Record:
    """Return the record of one dataset, computed by a loader with these arguments."""
    dataset = DATASETS[name](folder)
    ranks = {key: _record_rank(dataset, shard, place) for key, shard in shards_of(name).items()}
    return {
        "fingerprint": dict(dataset.fingerprint),
        "length": _length(dataset),
        "origins": origins_of(dataset),
        "ranks": ranks,
    }


def shards_of(name: str) -> dict[str, ps.Shard]:
    """Return the ranks on which a dataset is recorded, by their names in the record."""
    count = RANKS.get(name, 1)
    shards = [ps.Shard(0, 1), *(ps.Shard(rank, count, uneven=True) for rank in range(count) if count > 1)]
    return {f"{shard.rank} of {shard.count}": shard for shard in shards}


def _length(dataset: ps.Dataset) -> int | None:
    try:
        return len(dataset)
    except ps.errors.NoLengthError:
        return None


def origins_of(dataset: ps.Dataset) -> dict[str, Any]:
    """Return the origins of some rows, of a dataset whose steps can be looked up."""
    if _length(dataset) is None:
        return {}
    with ps.Loader(dataset) as loader:
        places = [(0, 0), (1, 0), (len(loader) + 1, 0)]
        origins = {f"step {step} row {row}": loader.origin(step, row) for step, row in places}
        return {place: {field: getattr(origin, field) for field in _ORIGIN} for place, origin in origins.items()}


def _record_rank(dataset: ps.Dataset, shard: ps.Shard, place: Mapping[str, Any]) -> Record:
    """Return one rank's batches and states: at the start, within each epoch, and between them."""
    epochs: list[list[str]] = []
    states: Record = {}
    first = ""
    with ps.Loader(dataset, shard=shard, **place) as loader:
        states["0"] = state_of(loader)
        for epoch in range(EPOCHS):
            epochs.append([])
            for number, batch in enumerate(loader, 1):
                first = first or text_of(batch)
                epochs[-1].append(digest_of(batch))
                if number == _SAVED_AFTER[epoch]:
                    states[str(sum(map(len, epochs)))] = state_of(loader)
            if epoch == 0:
                states[str(len(epochs[0]))] = state_of(loader)
    return {"first": first, "epochs": epochs, "states": states}


def record_resume(name: str, folder: Path) -> Record:
    """Return the saved states, and the batches of other ranks, or of a changed dataset, that loaded them."""
    resume = RESUMES[name]
    saved: list[Record] = []
    for rank, batches in enumerate(resume.batches):
        # One for each rank: an iterable that another rank has left in the middle would go on from there.
        dataset = DATASETS[resume.saved](folder)
        count = len(resume.batches)
        with ps.Loader(dataset, shard=ps.Shard(rank, count, uneven=count > 1)) as loader:
            for _ in itertools.islice(loader, batches):
                pass
            saved.append(state_of(loader))
    return {"saved": saved, "ranks": continue_on(resume, saved, folder)}


def continue_on(resume: Resume, saved: list[Record], folder: Path, *, with_code: bool = True) -> list[Record]:
    """Return each rank's batches once the states are loaded: the rest of an epoch with a state, and another epoch."""
    found: list[Record] = []
    for rank in range(resume.ranks):
        dataset = DATASETS[resume.loaded](folder)
        with ps.Loader(dataset, shard=ps.Shard(rank, resume.ranks, uneven=resume.ranks > 1)) as loader:
            load(loader, [usable(state, loader, with_code=with_code) for state in saved])
            batches = iter(loader)
            head = digests_of(itertools.islice(batches, 1))
            state = state_of(loader)
            found.append({"head": head, "state": state, "rest": [digests_of(batches), digests_of(loader)]})
    return found


def load(loader: ps.Loader[Any], states: list[Record]) -> None:
    """Load one state, or those of several ranks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the dataset's functions differ")  # of those resumes that change the dataset
        loader.load_state_dict(states[0] if len(states) == 1 else states)


def state_of(loader: ps.Loader[Any]) -> Record:
    """Return a loader's state, without the version of NumPy, and without the digests of steps, which serve messages."""
    state = loader.state_dict()
    state["fingerprint"] = {key: value for key, value in state["fingerprint"].items() if key != "steps"}
    return {key: NO_NUMPY if key == "numpy" else value for key, value in state.items()}


def usable(state: Record, loader: ps.Loader[Any], *, with_code: bool = True) -> Record:
    """Return a recorded state as this machine's NumPy, and where code doesn't count its Python, would have saved it."""
    own = loader.state_dict()
    state = {**state, "numpy": own["numpy"]}
    if not with_code:
        functions, details = own["fingerprint"]["functions"], own["fingerprint"].get("details", {})
        state["fingerprint"] = {**state["fingerprint"], "functions": functions}
        if "functions" in details:
            state["fingerprint"]["details"] = {
                **state["fingerprint"].get("details", {}),
                "functions": details["functions"],
            }
    return state


def comparable(recorded: Any, *, with_code: bool) -> Any:
    """Return records or states as text that is equal only for equal ones, order of keys included.

    Args:
        recorded: any part of the records.
        with_code: whether the parts of fingerprints that cover the byte code of functions count.
    """
    return json.dumps(recorded if with_code else _without_code(recorded), indent=1)


def _without_code(recorded: Any) -> Any:
    if is_dict(recorded):
        is_fingerprint = recorded.keys() >= {"source", "order"}
        kept = {key: value for key, value in recorded.items() if not is_fingerprint or key != "functions"}
        if is_fingerprint and "details" in kept:
            kept["details"] = {key: value for key, value in kept["details"].items() if key != "functions"}
        return {key: _without_code(value) for key, value in kept.items()}
    return list(map(_without_code, recorded)) if is_list_or_tuple(recorded) else recorded


def digests_of(batches: Iterable[Any]) -> list[str]:
    """Return the digest of each batch."""
    return list(map(digest_of, batches))


def digest_of(batch: Any) -> str:
    """Return the first digits of the SHA-256 of a batch: its structure, types, dtypes, shapes and bytes."""
    whole = hashlib.sha256()
    for part in _parts(batch):
        whole.update(len(part).to_bytes(8, "little") + part)
    return whole.hexdigest()[:_DIGITS]


def _parts(element: Any) -> Iterator[bytes]:
    if is_dict(element):
        yield f"dict {len(element)}".encode()
        for key, value in element.items():
            yield repr(key).encode()
            yield from _parts(value)
    elif is_list_or_tuple(element):
        yield f"{type(element).__name__} {len(element)}".encode()
        for value in element:
            yield from _parts(value)
    elif is_numpy(element):
        array = as_array(element)
        kind = "array" if isinstance(element, np.ndarray) else "scalar"
        yield f"{kind} {array.dtype.str} {array.shape}".encode()
        yield array.tobytes()
    else:
        yield f"{type(element).__name__} {element!r}".encode()


def text_of(batch: Any) -> str:
    """Return the begin of a batch as text, the same under all versions of NumPy."""
    text = str(_plain(batch))
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}…"


def _plain(element: Any) -> Any:
    if is_dict(element):
        return {key: _plain(value) for key, value in element.items()}
    if is_list_or_tuple(element):
        return type(element)(map(_plain, element))
    return as_array(element).tolist() if is_numpy(element) else element


def read() -> Record:
    """Return the records that are checked in."""
    return cast("Record", json.loads(RECORDS.read_text()))


def write(records: Record) -> None:
    """Write the records, each list of numbers or digests and each state on one line."""
    RECORDS.write_text(f"{_json(records, 0)}\n", newline="\n")


def _json(value: Any, depth: int) -> str:
    line = json.dumps(value, ensure_ascii=False)
    if not is_dict(value) or "penstock" in value or len(line) <= 100:
        return line
    inner = [f"{'  ' * (depth + 1)}{json.dumps(key)}: {_json(each, depth + 1)}" for key, each in value.items()]
    return "{\n" + ",\n".join(inner) + f"\n{'  ' * depth}}}"
