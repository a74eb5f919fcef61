"""The golden datasets: each public verb and each kind of source, sampler and stream, alone and combined.

A description here never changes, since its record was made with it; a new verb gets a new entry. `write_files` makes
the files that some of the datasets read, the same in every folder.
"""

import contextlib
import functools
import io
import json
import sqlite3
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

import penstock as ps
from penstock.batching import Pad
from tests.equivalence.golden.functions import (
    Backwards,
    Counter,
    Keeps,
    PerEpoch,
    Power,
    Runs,
    Scale,
    Served,
    Squares,
    Stretch,
    TorchLike,
    Total,
    ascending,
    copies,
    document,
    double,
    draws,
    episode,
    fails_for_fifths,
    global_draws,
    half,
    has_many,
    is_dense,
    is_kept,
    make_doubler,
    numbers_from_20,
    pair,
    scaled,
    seed_number,
    size_of,
    tokens_of,
    total,
    weighed,
    weight_of,
    with_origin,
    with_seed,
)

Make: TypeAlias = Callable[[Path], ps.Dataset]
"""Describes a dataset; the path is that of the folder with the files."""


class Resume(NamedTuple):
    """States of one dataset that are loaded into another one, on other ranks."""

    saved: str
    """The dataset whose states are saved, by its name in `DATASETS`."""
    batches: tuple[int, ...]
    """How many batches each of its ranks has delivered by then."""
    loaded: str
    """The dataset that continues."""
    ranks: int
    """The number of ranks that continue."""


FILES: Final[Mapping[str, str]] = {"filter index own fingerprint": "keeps.index", "cache on disk": "cache"}
"""The file or folder that a dataset makes in the folder with the files, and from which the next run reads."""


def write_files(folder: Path) -> None:
    """Write the files that the datasets read."""
    for label in ("cat", "dog"):
        (folder / "images" / label).mkdir(parents=True)
        for number in range(5):
            (folder / "images" / label / f"{number}.jpg").write_bytes(f"{label} {number}".encode() * (number + 1))
    lines = [json.dumps({"number": number, "text": "x" * (number % 3)}) for number in range(21)]
    (folder / "lines.jsonl").write_text("\n".join(lines[:12]) + "\n", newline="\n")
    (folder / "more.jsonl").write_text("\n".join(lines[12:]), newline="\n")
    np.arange(64, dtype="<u2").tofile(folder / "tokens.bin")
    np.arange(100, 145, dtype="<u2").tofile(folder / "tokens2.bin")
    _write_tar(folder / "samples.tar")
    _write_mds(folder / "mds")
    (folder / "rows.csv").write_text("number,text\n" + '7,"a\nb"\n8,c\n' * 7, newline="\n")
    _write_database(folder / "rows.db")
    (folder / "examples.tfrecord").write_bytes(bytes.fromhex(_EXAMPLES))
    np.arange(26, dtype="<f4").reshape(13, 2).tofile(folder / "map.bin")


_EXAMPLES: Final = (  # {"x": [n, 100 * n]}
    "0f000000000000006d532b090a0d0a0b0a017812061a040a02000059eacb05"
    "0f000000000000006d532b090a0d0a0b0a017812061a040a020164547fe0fd"
    "100000000000000095fbfe180a0e0a0c0a017812071a050a0302c801bf90dbbd"
)


def _write_mds(folder: Path) -> None:
    folder.mkdir()
    columns = {"column_names": ["x", "y"], "column_encodings": ["int", "str"], "column_sizes": [8, None]}
    shards: list[dict[str, Any]] = []
    for number, count in enumerate((4, 7)):
        samples = [
            np.array([len(f"{x}")], "<u4").tobytes() + np.array([x], "<i8").tobytes() + f"{x}".encode()
            for x in range(10 * number, 10 * number + count)
        ]
        offsets = np.cumsum([4 * (count + 2), *map(len, samples)])
        (folder / f"{number}.mds").write_bytes(np.array([count, *offsets], "<u4").tobytes() + b"".join(samples))
        raw = {"basename": f"{number}.mds", "bytes": int(offsets[-1])}
        shards.append({**columns, "format": "mds", "version": 2, "samples": count, "raw_data": raw})
    (folder / "index.json").write_text(json.dumps({"shards": shards}), newline="\n")


def _write_database(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE numbers (id INTEGER PRIMARY KEY, text TEXT)")
        database.executemany("INSERT INTO numbers VALUES (?, ?)", ((3 * x, f"t{x}") for x in range(15)))
        database.commit()


def _write_tar(path: Path) -> None:
    with tarfile.open(path, "w") as tar:
        for number in range(17):
            for field, content in (("bin", bytes([number]) * 4), ("txt", f"sample {number}".encode())):
                member = tarfile.TarInfo(f"part/{number:03}.{field}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def _arrays() -> ps.Dataset:
    columns = {
        "x": np.arange(69, dtype="<f4").reshape(23, 3),
        "y": np.arange(23, dtype="<i2") * 3,
        "flag": np.arange(23) % 4 == 1,
        "text": np.array([f"t{number}" for number in range(23)]),
        "phase": np.arange(23) * np.complex128(1j),
    }
    return ps.read(columns, seed=11)


def _numbers(count: int = 29, seed: int = 5) -> ps.Dataset:
    return ps.range(count, seed=seed)


def _kept(count: int = 29) -> ps.Dataset:
    return ps.range(count, seed=5).filter(is_kept)


def _sizes(count: int) -> list[int]:
    return [1 + number * 7 % 5 for number in range(count)]


def _episode_lengths(count: int) -> list[int]:
    return [2 + number % 4 for number in range(count)]


def _two(dataset: ps.Dataset, other: ps.Dataset) -> dict[str, ps.Dataset]:
    return {"web": dataset, "code": other}


def _map(folder: Path) -> Any:
    return np.memmap(folder / "map.bin", np.dtype("<f4"), "r", shape=(13, 2))


SOURCES: Final[Mapping[str, Make]] = {
    "range": lambda _: ps.range(23, seed=7).shuffle().batch(4),
    "range downwards": lambda _: ps.range(50, 3, -2, seed=-(2**63)).shuffle().batch(5, remainder="drop"),
    "range large seed": lambda _: ps.range(1000, 1017, seed=2**63 + 11).shuffle().batch(3),
    "arrays": lambda _: _arrays().shuffle().batch(4, remainder="pad", mask="is_data"),
    "one array": lambda _: ps.read(np.arange(34).reshape(17, 2) * 2, seed=3).shuffle().batch(5),
    "memory map": lambda folder: ps.read({"x": _map(folder)}, seed=3).shuffle().batch(4),
    "list of dicts": lambda _: ps.read([half(number) for number in range(13)], seed=3).shuffle().batch(4),
    "list of arrays": lambda _: ps.read([np.full(1 + n % 3, n) for n in range(11)]).padded_batch(3, fill=-1),
    "files": lambda folder: ps.read(ps.sources.Files(folder / "images", "**/*.jpg"), seed=2).shuffle().batch(3),
    "image folder": lambda folder: ps.read(ps.sources.ImageFolder(folder / "images"), seed=2).shuffle().batch(3),
    "json lines": lambda folder: (
        ps.read(ps.sources.JsonLines([folder / "lines.jsonl", folder / "more.jsonl"], cache=folder, progress=False))
        .shuffle()
        .batch(4)
    ),
    "tar": lambda folder: ps.read(ps.sources.Tar(folder / "samples.tar", cache=folder), seed=2).shuffle().batch(4),
    "tfrecord": lambda folder: (
        ps.read(ps.sources.TFRecord(folder / "examples.tfrecord", parse="example", cache=folder), seed=2)
        .shuffle()
        .batch(2)
    ),
    "mds": lambda folder: ps.read(ps.sources.MDS(folder / "mds", cache=folder), seed=2).shuffle().batch(4),
    "csv": lambda folder: (
        ps.read(ps.sources.Csv(folder / "rows.csv", {"number": int}, cache=folder), seed=2).shuffle().batch(4)
    ),
    "sqlite": lambda folder: ps.read(ps.sources.Sqlite(folder / "rows.db", "numbers"), seed=2).shuffle().batch(4),
    "token windows": lambda folder: (
        ps.read(ps.sources.Tokens(str(folder / "tokens*.bin"), 9, dtype="<u2", stride=8), seed=2).shuffle().batch(4)
    ),
    "token documents": lambda folder: ps.read(
        ps.sources.Tokens(folder / "tokens.bin", dtype="<u2", documents=[0, 3, 3, 11, 30, 41, 64])
    ).padded_batch(2, length=24, fill=7),
    "own source": lambda _: ps.read(Squares(18), seed=9).shuffle().batch(4),
    "torch-like source": lambda _: ps.read(TorchLike(), seed=9).shuffle().batch(4),
    "async source": lambda _: ps.read(Served(), seed=9).shuffle().batch(4),
}

ORDERS: Final[Mapping[str, Make]] = {
    "reindex probed": lambda _: _numbers().reindex(Backwards(29)).batch(4),
    "reindex own fingerprint": lambda _: _numbers(11).shuffle().reindex(Stretch(11)).batch(4),
    "shuffle twice": lambda _: _numbers().shuffle().shuffle().batch(4),
    "shuffle by blocks": lambda _: _numbers().shuffle(blocks=4, live=2, rows=6).batch(6),
    "shuffle by blocks of a source": lambda folder: (
        ps.read(ps.sources.Tar(folder / "samples.tar", cache=folder), seed=2)
        .shuffle(blocks=True, live=2, rows=4)
        .batch(4)
    ),
    "shard": lambda _: _numbers().shuffle().shard(1, 3).batch(3),
    "take and skip": lambda _: _numbers().skip(3).shuffle().take(17).shuffle().batch(4),
    "select": lambda _: _numbers().shuffle().select([0, -1, 7, 7, 3, -2]).batch(2),
    "select by mask": lambda _: _numbers(12).select([number % 3 != 1 for number in range(12)]).shuffle().batch(3),
    "split": lambda _: _numbers().split({"train": 0.7, "val": 0.3}, seed=4)["train"].shuffle().batch(4),
    "split other part": lambda _: _numbers().shuffle().split({"train": 0.7, "val": 0.25})["val"].batch(2),
    "subset": lambda _: _numbers().subset(9).batch(2),
    "sample": lambda _: _numbers(12).sample([0.5, *range(11)], 31).batch(4),
    "balance": lambda _: _numbers(14).balance(["cat"] * 9 + ["dog"] * 3 + ["owl"] * 2).batch(3),
    "slices": lambda _: _numbers().shuffle()[::2][1:][::-1].batch(4),
    "repeat": lambda _: _numbers(7).shuffle().repeat(3).batch(4),
    "slice of a repeat": lambda _: _numbers(7).shuffle().repeat(3)[2:17].batch(4),
    "repeat the same": lambda _: _numbers(7).shuffle().random_map(with_seed, rng="seed").repeat(2, reshuffle=False),
    "repeat without end": lambda _: _kept(9).repeat().batch(4).limit(7),
    "epoch": lambda _: _numbers().shuffle().random_map(with_seed, rng="seed").epoch(3).batch(4),
    "shuffled batches": lambda _: _numbers(30).shuffle().batch(4, remainder="drop").shuffle().map(double),
}

ELEMENTS: Final[Mapping[str, Make]] = {
    "map": lambda _: _numbers().map(half).batch(4),
    "map held values": lambda _: _numbers().map(weighed).batch(4).map(double),
    "map partial": lambda _: _numbers().map(functools.partial(scaled, factor=3, shift=1), name="scaled").batch(4),
    "map method": lambda _: _numbers().map(Power(3).of, name="power").batch(4),
    "map own fingerprint": lambda _: _numbers().map(Scale(7), name="scale").batch(4),
    "map per worker": lambda _: _numbers().map(ps.PerWorker(make_doubler), name="doubler").batch(4),
    "map skip": lambda _: _numbers().shuffle().map(fails_for_fifths, on_error="skip").batch(4),
    "map substitute": lambda _: _numbers().shuffle().map(fails_for_fifths, on_error=ps.Substitute(attempts=8)).batch(4),
    "random map": lambda _: _numbers().shuffle().random_map(draws).batch(4),
    "random map twice": lambda _: _numbers().shuffle().random_map(draws).random_map(draws).batch(4),
    "random map seeds": lambda _: (
        _numbers()
        .shuffle()
        .random_map(with_seed, rng="seed")
        .random_map(with_seed, rng="seed")
        .random_map(with_seed, rng="seed", name="named")
        .batch(4)
    ),
    "random map globals": lambda _: _numbers(9).shuffle().random_map(global_draws, globals=True).batch(2),
    "random map of batches": lambda _: _numbers().shuffle().batch(4, remainder="drop").random_map(draws),
    "origin": lambda _: _numbers().shuffle()[3:].map_with_origin(with_origin).batch(4),
    "origin of batches": lambda _: _numbers().shuffle().batch(4, remainder="pad").map_with_origin(with_origin),
    "origin of unbatched rows": lambda _: (
        _numbers().shuffle().batch(4).map(double).unbatch().map_with_origin(with_origin).batch(5)
    ),
    "origin of padded rows": lambda _: (
        _numbers().shuffle().batch(6, remainder="pad").map(double).unbatch().map_with_origin(with_origin).batch(5)
    ),
    "filter": lambda _: _kept().batch(4),
    "filter of a shuffle": lambda _: _numbers(40).shuffle().filter(is_kept).random_map(draws).batch(6),
    "filter index": lambda folder: _numbers().filter(is_kept, index=folder / "kept.index").shuffle().batch(4),
    "flat map": lambda _: _numbers(14).shuffle().flat_map(copies).map_with_origin(with_origin).batch(4),
    "flat map counts": lambda _: (
        _numbers(14)
        .flat_map(copies, counts=[number % 4 for number in range(14)])
        .shuffle()
        .random_map(with_seed, rng="seed")
        .batch(4)
    ),
    "windows": lambda _: _numbers(9).map(episode).windows(2, 1, lengths=_episode_lengths(9)).shuffle().batch(4),
    "windows padded": lambda _: (
        _numbers(9).map(episode).windows(3, 2, lengths=_episode_lengths(9), partial="pad", mask="is_data").batch(4)
    ),
    "windows random": lambda _: (
        _numbers(9)
        .map(episode)
        .windows(2, 2, lengths=_episode_lengths(9), partial="pad")
        .shuffle()
        .random_map(with_seed, rng="seed")
        .batch(4)
    ),
    "windows of arrays": lambda _: (
        ps.read({"x": np.arange(60).reshape(5, 12)}, seed=4)
        .windows(4, 3, lengths=[12, 9, 4, 12, 7], partial="pad")
        .shuffle()
        .batch(3)
    ),
    "filter index own fingerprint": lambda folder: (
        _numbers().filter(Keeps(3), name="keeps", index=folder / "keeps.index").shuffle().batch(4)
    ),
    "filter index random": lambda folder: (
        _numbers()
        .shuffle()
        .filter(Keeps(4), name="keeps", index=folder / "keeps4.index")
        .random_map(with_seed, rng="seed")
        .batch(4)
    ),
    "cache": lambda _: _numbers().map(half).cache().shuffle().batch(4),
    "cache on disk": lambda folder: _numbers().map(Scale(2), name="scale").cache(folder / "cache").shuffle().batch(4),
}

BATCHES: Final[Mapping[str, Make]] = {
    "batch of six": lambda _: _numbers().map(Scale(7), name="scale").batch(6, remainder="drop"),
    "batch merge": lambda _: _numbers().shuffle().batch(4, merge=total, remainder="keep"),
    "batch merge padded": lambda _: _numbers().shuffle().batch(6, merge=total, remainder="pad"),
    "batch of batches": lambda _: _numbers(26).shuffle().batch(3, remainder="drop").batch(2),
    "batch of padded batches": lambda _: _numbers(26).shuffle().batch(4, remainder="pad").batch(3),
    "padded batch": lambda _: (
        _numbers(14).shuffle().map(tokens_of).padded_batch(4, fill=-1, mask="is_token", remainder="pad")
    ),
    "unbatch": lambda _: _numbers().batch(4).map(double).unbatch().shuffle().batch(6),
    "rebatch": lambda _: _numbers().shuffle().batch(4).map(double).rebatch(3, remainder="drop"),
    "pack": lambda _: _numbers(31).shuffle().map(document).pack(8).batch(2),
    "pack split": lambda _: _numbers(31).shuffle().map(document).pack(7, how="split").batch(3),
    "pack cut documents": lambda _: _numbers(31).shuffle().map(ascending).pack(4).batch(2),
    "pack split cut documents": lambda _: _numbers(31).shuffle().map(ascending).pack(3, how="split").batch(2),
    "pack dict": lambda _: (
        _numbers(31)
        .shuffle()
        .map(pair)
        .pack({"inputs": 4, "targets": 3}, fill={"inputs": -1}, meta=("name",), long="drop")
    ),
    "pack planned": lambda _: _numbers(31).map(document).pack(8, lengths=_sizes(31)).shuffle().batch(2),
    "pack planned split": lambda _: _numbers(31).map(tokens_of).pack(7, lengths=_sizes(31), how="split").batch(2),
    "bucket": lambda _: _numbers(31).shuffle().map(document).bucket(size_of, [2, 5], rows=4),
    "bucket budget": lambda _: (
        _numbers(31)
        .shuffle()
        .map(tokens_of)
        .bucket("tokens", [2, 3, 5], budget=12, multiple_of=2, remainder="drop", pad=Pad(fill=-1, mask="is_token"))
    ),
    "bucket planned": lambda _: (
        _numbers(31).map(document).bucket(size_of, [2, 5], rows=4, lengths=_sizes(31), remainder="drop").shuffle()
    ),
    "bucket planned rows": lambda _: (
        _numbers(31).map(document).bucket(size_of, [2, 5], rows=[4, 2], lengths=_sizes(31)).random_map(draws)
    ),
    "window shuffle": lambda _: _kept(40).window_shuffle(7).window_shuffle(5, name="second").batch(4),
    "window shuffle of batches": lambda _: _kept(40).batch(3).window_shuffle(4).rebatch(4),
    "combine": lambda _: _kept(40).combine(Runs).random_map(draws).batch(2),
    "combine without held": lambda _: _kept(40).combine(Total).batch(4),
    "limit of elements": lambda _: _kept(40).map(Scale(3), name="scale").limit(9).batch(2),
    "limit": lambda _: _kept(40).batch(3).limit(5),
}

JOINTS: Final[Mapping[str, Make]] = {
    "mix": lambda _: (
        ps.mix(_two(_numbers(40).shuffle(), _numbers(30).shuffle()), {"web": 3, "code": 1}, seed=8)
        .map_with_origin(with_origin)
        .batch(4)
    ),
    "mix fractions": lambda _: ps.mix(_two(_numbers(40), _numbers(30)), {"web": 0.7, "code": 0.3}, stop="all").batch(4),
    "mix without end": lambda _: (
        ps.mix(_two(_numbers(7).shuffle(), _numbers(4).shuffle()), stop="never", seed=8).take(50).batch(4)
    ),
    "mix scheduled": lambda _: ps.mix(
        _two(_numbers(40).shuffle(), _numbers(30).shuffle()), {0: {"web": 1}, 9: {"web": 1, "code": 2}}
    ).batch(4),
    "mix scheduled further": lambda _: ps.mix(
        {**_two(_numbers(40).shuffle(), _numbers(30).shuffle()), "books": _numbers(20, 6).shuffle()},
        {0: {"web": 1}, 9: {"web": 1, "code": 2}, 24: {"books": 1, "code": 1}},
    ).batch(4),
    "mix of mixes": lambda _: (
        ps.mix(_two(ps.mix(_two(_numbers(9).shuffle(), _numbers(8))), _numbers(20).random_map(seed_number, rng="seed")))
        .map_with_origin(with_origin)
        .batch(3)
    ),
    "mix in order": lambda _: (
        ps.mix(_two(_kept(40), _numbers(30).shuffle()), {"web": 2, "code": 1}, stop="all", seed=8)
        .random_map(draws)
        .batch(6)
    ),
    "mix in order scheduled": lambda _: (
        ps.mix(_two(_kept(60), _kept(50)), {0: {"web": 1}, 9: {"web": 1, "code": 3}, 30: {"code": 1}}, seed=8)
        .map_with_origin(with_origin)
        .batch(4)
    ),
    "mix by tokens": lambda _: (
        ps.mix(_two(_numbers(30).map(tokens_of), _numbers(30).shuffle().map(tokens_of)), measure="tokens", seed=8)
        .pack(9)
        .batch(2)
    ),
    "mix by measure": lambda _: ps.mix(_two(_numbers(30), _numbers(30).shuffle()), measure=weight_of).batch(4),
    "concatenate": lambda _: (
        ps.concatenate([_numbers(9).shuffle(), _numbers(8).random_map(seed_number, rng="seed")], seed=3)
        .shuffle()
        .batch(4)
    ),
    "concatenate in order": lambda _: ps.concatenate(_two(_kept(20), _numbers(9).shuffle())).random_map(draws).batch(3),
    "concatenate a short part": lambda _: (
        ps.concatenate([_kept(7), _numbers(9).shuffle(), _kept(12)]).map_with_origin(with_origin).batch(2)
    ),
    "interleave": lambda _: ps.interleave([_numbers(9).shuffle(), _numbers(4), _numbers(6)], seed=3).batch(4),
    "interleave in order": lambda _: ps.interleave(_two(_kept(20), _numbers(9).shuffle())).batch(4),
    "zip": lambda _: ps.zip(_two(_numbers(15).shuffle(), _numbers(15).map(half))).random_map(draws).batch(4),
    "zip shortest": lambda _: ps.zip([_kept(20), _numbers(9).shuffle()], unequal="shortest", seed=3).batch(4),
}

STREAMS: Final[Mapping[str, Make]] = {
    "stream": lambda _: ps.stream(Counter(46), seed=4).map(half).batch(6),
    "stream per epoch": lambda _: ps.stream(PerEpoch(), seed=4).random_map(with_seed, rng="seed").batch(3),
    "stream per epoch repeated": lambda _: ps.stream(PerEpoch(), seed=4).repeat(2).batch(4),
    "stream without a state": lambda _: ps.stream(numbers_from_20, seed=4).batch(4),
    "stream folded": lambda _: (
        ps.stream(Counter(70), seed=4)
        .map(tokens_of)
        .filter(has_many)
        .window_shuffle(5)
        .pack(9)
        .batch(3)
        .random_map(draws)
    ),
    "stream repeated": lambda _: ps.stream(Counter(10), seed=4).repeat(3).batch(4),
    "folds over batches": lambda _: (
        _numbers(40).shuffle().batch(4).filter(is_dense).window_shuffle(3).unbatch().flat_map(copies).batch(4)
    ),
}

DATASETS: Final[Mapping[str, Make]] = {**SOURCES, **ORDERS, **ELEMENTS, **BATCHES, **JOINTS, **STREAMS}
"""Every golden dataset by its name."""

RANKS: Final[Mapping[str, int]] = {
    "arrays": 2,
    "range": 2,
    "shuffled batches": 2,
    "random map of batches": 2,
    "origin of batches": 4,
    "batch merge padded": 3,
    "filter of a shuffle": 3,
    "map skip": 2,
    "repeat without end": 2,
    "pack": 2,
    "pack split": 3,
    "pack planned": 2,
    "bucket": 2,
    "bucket planned": 4,
    "combine": 2,
    "mix": 2,
    "mix without end": 2,
    "mix in order": 2,
    "mix by tokens": 2,
    "concatenate in order": 3,
    "stream": 2,
    "stream folded": 3,
    "folds over batches": 2,
}
"""On how many ranks a dataset is also read."""

RESUMES: Final[Mapping[str, Resume]] = {
    "batches of another size": Resume("map own fingerprint", (3,), "batch of six", 1),
    "more ranks": Resume("range", (3,), "range", 2),
    "fewer ranks": Resume("arrays", (2, 2), "arrays", 1),
    "filter on more ranks": Resume("filter of a shuffle", (1, 2, 1), "filter of a shuffle", 2),
    "stream on more ranks": Resume("stream", (1, 2), "stream", 3),
    "pack on fewer ranks": Resume("pack", (2, 1), "pack", 1),
    "combine on fewer ranks": Resume("combine", (1, 0), "combine", 1),
    "mixture in order on more ranks": Resume("mix in order", (3, 2), "mix in order", 3),
    "another schedule": Resume("mix scheduled", (5,), "mix scheduled further", 1),
}
"""Changes between a save and a load, by their names."""
