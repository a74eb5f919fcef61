"""Grain's MapDataset: inline (no read threads) and in processes, its index shuffle, and its iterator's state."""

# The rival's package has few types and may be absent, so pyright checks less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import importlib.util
import json
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import grain
import numpy as np
from absl import flags
from array_record.python import array_record_module
from grain.experimental import FirstFitPackIterDataset, WindowShuffleMapDataset, device_put, index_shuffle
from numpy.typing import NDArray

from benchmarks.macro import (
    formats,
    images,
    import_time,
    jax_feed,
    mix,
    packing,
    random_map,
    readings,
    resume,
    resume_kinds,
    shuffle,
    shuffle_blocks,
    tiny,
    tokens,
    tokens_as_int32,
    variations,
)
from benchmarks.processes import memory
from benchmarks.rivals import Contestants
from benchmarks.scenario import MILLISECONDS, NANOSECONDS, Batch, Contestant, Measurement, Output
from benchmarks.streams import passes, take_batches
from penstock.sources import ArrayRecord

NAME = "Grain inline"
INLINE = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
WINDOW = 1 << 15  # records of a shuffle by windows
PREFIX = 64  # batches of a pass; a whole one of 1 M elements takes seconds


class Windows:
    """The windows of `tokens`, one slice of the mapped file each."""

    def __init__(self, work: tokens.Work) -> None:
        self.work = work
        self.mapped = np.memmap(work.path, np.dtype("<u2"), "r")

    def __len__(self) -> int:
        return self.work.num_windows

    def __getitem__(self, key: int) -> NDArray[np.uint16]:
        start = key * self.work.stride
        return self.mapped[start : start + self.work.length]


def _tiny(work: tiny.Work, _: ExitStack) -> tuple[Contestant, ...]:
    dataset = grain.MapDataset.range(work.count).map(tiny.add_one).batch(work.batch_size).to_iter_dataset(INLINE)
    run, output = (
        passes(partial(take_batches, dataset, PREFIX)),
        Output(tiny.CLAIM, partial(take_batches, dataset, PREFIX)),
    )
    return (Contestant(NAME, "rival", run, tiny.UNIT, against=tiny.LIMITS, output=output),)


def _tokens(work: tokens.Work, _: ExitStack) -> tuple[Contestant, ...]:
    windows: Any = Windows(work)  # its parameter is a key, though Grain names it differently
    dataset = grain.MapDataset.source(windows).shuffle(seed=7).batch(work.batch_size).to_iter_dataset(INLINE)
    run, output = passes(partial(take_batches, dataset, PREFIX)), Output(tokens.CLAIM, lambda: dataset, ordered=False)
    return (Contestant(NAME, "rival", run, tokens.UNIT, against=(tokens.LIMIT,), output=output),)


def _tokens_as_int32(work: tokens.Work, _: ExitStack) -> tuple[Contestant, ...]:
    windows: Any = Windows(work)
    mapped = grain.MapDataset.source(windows).shuffle(seed=7).batch(work.batch_size).map(tokens_as_int32.as_int32)
    dataset = mapped.to_iter_dataset(INLINE)
    limit = tokens_as_int32.LIMIT
    return (tokens_as_int32.contestant(NAME, "rival", lambda: dataset, limit, ordered=False),)


def _packing(work: packing.Work, _: ExitStack) -> tuple[Contestant, ...]:
    source: Any = work
    documents = grain.MapDataset.source(source).map(lambda tokens: {"tokens": tokens}).to_iter_dataset(INLINE)
    packed = FirstFitPackIterDataset(
        documents, length_struct={"tokens": work.capacity}, num_packing_bins=packing.BINS, shuffle_bins=False
    )

    def sequences() -> Iterator[dict[str, Any]]:
        for each in packed:
            yield {"tokens": each["tokens"], "segment_ids": each["tokens_segment_ids"]}

    return (packing.contestant(work, f"{NAME}, first fit", "rival", sequences),)


def _shuffle(work: shuffle.Work, _: ExitStack) -> tuple[Contestant, ...]:
    return tuple(_index_shuffle(name, size) for name, size in work.sizes.items() if size < 2**32)


def _index_shuffle(name: str, size: int) -> Contestant:
    count = min(size, 10_000)

    def run(repeats: int) -> Measurement:
        started = time.perf_counter()
        for _ in range(repeats):
            for position in range(count):
                index_shuffle(position, max_index=size - 1, seed=7, rounds=4)
        return Measurement(repeats * count, time.perf_counter() - started)

    return Contestant(f"Grain's index_shuffle, n = {name}", "rival", run, NANOSECONDS, facts=lambda: {"bytes held": 0})


def _shuffle_blocks(work: shuffle_blocks.Work, _: ExitStack) -> tuple[Contestant, ...]:
    count = work.blocks * shuffle_blocks.RECORDS
    window = min(WINDOW, count)
    dataset = WindowShuffleMapDataset(grain.MapDataset.range(count), window_size=window, seed=7)

    def keys() -> NDArray[np.int64]:
        return np.array([dataset[position] for position in range(count)])

    return (shuffle_blocks.by_epoch(work, f"Grain's shuffle by windows of {window:,}", "rival", keys),)


def _random_map(work: random_map.Work, _: ExitStack) -> tuple[Contestant, ...]:
    contestants: list[Contestant] = []
    for draw in (random_map.draw_float, random_map.draw_integer):
        dataset = grain.MapDataset.range(work.count).seed(7).random_map(draw).batch(work.batch_size)
        run = passes(partial(take_batches, dataset.to_iter_dataset(INLINE), PREFIX // 4))
        against = (f"one generator, {draw.__name__}",)
        contestants.append(Contestant(f"{NAME}, {draw.__name__}", "rival", run, random_map.UNIT, against=against))
    return tuple(contestants)


class Slices:
    """Rows [start, stop) of the table of `mix`, one view each."""

    def __init__(self, work: mix.Work, start: int, stop: int) -> None:
        self.rows = work.table[start:stop]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, key: int) -> NDArray[np.uint8]:
        row: NDArray[np.uint8] = self.rows[key]
        return row


def _mix(work: mix.Work, _: ExitStack) -> tuple[Contestant, ...]:
    contestants: list[Contestant] = []
    for elements in ("ints", "rows"):
        for parts in mix.PARTS:
            size = (work.ints if elements == "ints" else len(work.table)) // parts
            components: list[Any] = []
            for number in range(parts):
                start, stop = number * size, (number + 1) * size
                source: Any = Slices(work, start, stop)  # its parameter is a key, though Grain names it differently
                records = grain.MapDataset.range(start, stop) if elements == "ints" else grain.MapDataset.source(source)
                function = mix.negate if elements == "ints" else mix.standardise
                components.append(records.shuffle(seed=number).map(function).repeat())
            mixed = grain.MapDataset.mix(components, [1.0] * parts).batch(32).to_iter_dataset(INLINE)
            what = f"{NAME}: {elements}, batches of 32, equal"
            run, against = mix.reading(iter(mixed)), mix.against(parts, what)
            contestants.append(Contestant(mix.pair_name(parts, what), "rival", run, NANOSECONDS, against=against))
    return tuple(contestants)


def _resume(work: resume.Work, _: ExitStack) -> tuple[Contestant, ...]:
    numbers = grain.MapDataset.range(work.rival_count).shuffle(seed=7).map(resume_kinds.negate)
    dataset = numbers.batch(work.batch_size).to_iter_dataset(INLINE)
    contestants: list[Contestant] = []
    for step in work.rival_steps:
        iterator = iter(dataset)
        for _batch in zip(range(step), iterator, strict=False):
            pass
        state = iterator.get_state()
        name = f"{NAME}, step {step:,}"
        ready = partial(_seconds, dataset, state, first_batch=False)
        first = partial(_seconds, dataset, state, first_batch=True)
        contestants += [
            Contestant(f"{name}: ready", "rival", resume.timed(ready), MILLISECONDS),
            Contestant(f"{name}: first batch", "rival", resume.timed(first), MILLISECONDS),
            resume.state_bytes(f"{name}: state", "rival", json.dumps(state).encode()),
        ]
    return tuple(contestants)


def _seconds(dataset: grain.IterDataset, state: dict[str, object], *, first_batch: bool) -> float:
    """Return the seconds from a state to an iterator at that state, or to its first batch."""
    started = time.perf_counter()
    iterator = iter(dataset)
    iterator.set_state(state)
    if first_batch:
        next(iterator)
    return time.perf_counter() - started


class Passes:
    """Owns the processes that compute a dataset, which continue from pass to pass; the dataset repeats.

    Restarting them for each pass would take longer than the pass. Batches that are ready when a pass begins cost it
    nothing.

    Args:
        dataset: computed in the processes, without end.
        workers: the number of processes.
        num_batches: of a pass.
    """

    def __init__(self, dataset: grain.IterDataset, workers: int, num_batches: int) -> None:
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # as a program's `app.run` does; the processes get the flags
        self._dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        self._num_batches = num_batches
        self._iterator: Any = None

    def __iter__(self) -> Iterator[Batch]:
        if self._iterator is None:
            self._iterator = iter(self._dataset)
        return take_batches(self._iterator, self._num_batches)

    def close(self) -> None:
        """End the processes."""
        if self._iterator is not None:
            self._iterator.close()


def _images(work: images.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    loaded = grain.MapDataset.range(work.count).shuffle(seed=7).map(work.load)
    threads = grain.ReadOptions(num_threads=images.NUM_WORKERS, prefetch_buffer_size=2 * work.batch_size)
    on_threads = loaded.to_iter_dataset(threads).batch(work.batch_size)
    repeated = loaded.repeat().batch(work.batch_size).to_iter_dataset(INLINE)
    in_processes = Passes(repeated, images.NUM_WORKERS, work.num_batches)
    scope.callback(in_processes.close)
    return (
        images.contestant(work, "Grain, 2 threads", "rival", lambda: on_threads),
        images.contestant(work, "Grain, 2 processes", "rival", lambda: in_processes),
    )


def _memory(work: memory.Work, _: ExitStack) -> tuple[Contestant, ...]:
    ways = (memory.Way("Grain", "rival", width, partial(open_memory, work, width)) for width in work.widths)
    return tuple(contestant for way in ways for contestant in memory.contestants(way))


@contextmanager
def open_memory(work: memory.Work, workers: int) -> Generator[Iterable[Batch]]:
    """Open a dataset of the large items, in that many processes."""
    count = work.items_each * workers
    dataset = grain.MapDataset.range(count).map(work.item).repeat().batch(work.batch_size)
    passes = Passes(dataset.to_iter_dataset(INLINE), workers, count // work.batch_size)
    try:
        yield passes
    finally:
        passes.close()


class Rows:
    """The rows of `jax_feed`, one view each."""

    def __init__(self, work: jax_feed.Work) -> None:
        self.columns = work.columns

    def __len__(self) -> int:
        return len(self.columns["x"])

    def __getitem__(self, key: int) -> dict[str, Any]:
        return {name: column[key] for name, column in self.columns.items()}


def _jax_feed(work: jax_feed.Work, scope: ExitStack) -> tuple[Contestant, ...]:
    """Return contestants that place batches in the training thread, and by Grain's own threads; both need JAX."""
    if importlib.util.find_spec("jax") is None:
        return ()
    feed: Any = importlib.import_module("benchmarks.rivals.jax")
    rows: Any = Rows(work)  # its parameter is a key, though Grain names it differently
    batches = grain.MapDataset.source(rows).shuffle(seed=7).repeat().batch(work.batch_size).to_iter_dataset(INLINE)

    def by_hand(_: ExitStack) -> Iterator[Any]:
        return map(feed.put, batches)

    def by_threads(scope: ExitStack) -> Iterator[Any]:
        iterator: Iterator[Any] = iter(device_put(batches, feed.sharding()))
        scope.callback(iterator.close)  # type: ignore[attr-defined] # Grain's has it
        return iterator

    step = feed.step_of(work)
    ways = (
        jax_feed.Way(feed.GRAIN, "rival", by_hand, step, ordered=False),
        jax_feed.Way(feed.GRAIN_PUT, "rival", by_threads, step, ordered=False),
    )
    return tuple(jax_feed.contestant(scope, work, way) for way in ways)


def _readings(work: readings.Work, _: ExitStack) -> tuple[Contestant, ...]:
    """Return Grain's dataset, and the same in its debug mode, which measures each node."""
    batches = work.batches // 100
    dataset = grain.MapDataset.range(32 * batches).map(readings.add_one).batch(32).to_iter_dataset(INLINE)

    def timed(mode: str, repeats: int) -> Measurement:
        grain.config.update("py_debug_mode", mode == "debug")
        try:
            return Measurement(batches * repeats, passes(lambda: dataset)(repeats).seconds)
        finally:
            grain.config.update("py_debug_mode", False)  # noqa: FBT003 - of Grain

    return (
        readings.contestant(NAME, "rival", partial(timed, "none")),
        readings.contestant(f"{NAME}, debug mode", "rival", partial(timed, "debug"), NAME),
    )


def _import(work: import_time.Work, _: ExitStack) -> tuple[Contestant, ...]:
    return (import_time.importing(work, "import grain", "rival"),)


def _formats(work: formats.Texts, _: ExitStack) -> tuple[Contestant, ...]:
    path = str(work.folder / "texts.array_record")
    writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
    for text in work.texts:
        writer.write(text.encode())
    writer.close()
    theirs, ours = grain.sources.ArrayRecordDataSource([path]), ArrayRecord(path)

    def record(content: bytes) -> formats.Record:
        text = content.decode()
        return {"text": text, "label": int(text.split(maxsplit=1)[0])}

    def many(keys: NDArray[np.int64]) -> list[formats.Record]:
        return [record(content) for content in ours.read(keys)]

    return (
        formats.as_rival(formats.one_by_one(work, "Grain over ArrayRecord, source[key]", lambda k: record(theirs[k]))),
        formats.one_by_one(work, "ArrayRecord, source[key]", lambda key: record(ours[key])),
        formats.at_once(work, f"ArrayRecord, {formats.KEYS} keys", many),
    )


def _variations(work: variations.Work, _: ExitStack) -> tuple[Contestant, ...]:
    """Return Grain without threads, and with as many read threads as ours has."""
    source: Any = work  # its parameter is a key, though Grain names it differently
    items = grain.MapDataset.source(source)
    merge = variations.merged if work.is_merged else None

    def inline() -> grain.IterDataset:
        return items.batch(work.batch_size, batch_fn=merge).to_iter_dataset(INLINE)

    def on_threads() -> grain.IterDataset:
        threads = grain.ReadOptions(num_threads=images.NUM_WORKERS, prefetch_buffer_size=2 * work.batch_size)
        return items.to_iter_dataset(threads).batch(work.batch_size, batch_fn=merge)

    if work.above or work.needs_torch:  # Grain's batches are arrays
        return ()
    return (
        variations.contestant(work, f"{work.name}: {NAME}", "rival", inline),
        variations.contestant(work, f"{work.name}: Grain, 2 threads", "rival", on_threads),
    )


CONTESTANTS: dict[str, Contestants] = {
    "formats": _formats,
    "tiny": _tiny,
    "tokens": _tokens,
    "tokens-as-int32": _tokens_as_int32,
    "packing": _packing,
    "shuffle": _shuffle,
    "shuffle-blocks": _shuffle_blocks,
    "random-map": _random_map,
    "mix": _mix,
    "resume": _resume,
    "images": _images,
    "jax-feed": _jax_feed,
    "memory": _memory,
    "import": _import,
    "variations": _variations,
    "readings": _readings,
}
