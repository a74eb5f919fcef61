"""SPDL's pipeline with 2 threads: one item per element, and for windows also one item per batch made by hand."""

# The rival's package carries few types and may be absent, so pyright is asked for less here.
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
from spdl.pipeline import PipelineBuilder

from benchmarks.macro import import_time, tiny, tokens
from benchmarks.rivals import Contestants
from benchmarks.scenario import Batch, Contestant, Output
from benchmarks.streams import passes

PER_ITEM, PER_BATCH = "SPDL, 2 threads, per item", "SPDL, 2 threads, per batch"
PREFIX = 8  # batches of a pass; per item it takes a fraction of a millisecond for each element


def _tiny(work: tiny.Work, _: ExitStack) -> tuple[Contestant, ...]:
    def batches() -> Iterator[Batch]:
        elements = range(min(work.count, PREFIX * work.batch_size))
        mapped = _builder().add_source(elements).pipe(tiny.add_one, concurrency=2, output_order="input")
        return _run(mapped.aggregate(work.batch_size).pipe(np.array))

    run, output = passes(batches), Output(tiny.CLAIM, batches)
    return (Contestant(PER_ITEM, "rival", run, tiny.UNIT, against=tiny.LIMITS, output=output),)


def _tokens(work: tokens.Work, _: ExitStack) -> tuple[Contestant, ...]:
    mapped = np.memmap(work.path, np.dtype("<u2"), "r")
    windows = np.lib.stride_tricks.sliding_window_view(mapped, work.length)[:: work.stride]
    order = np.random.default_rng(7).permutation(work.num_windows)
    gather = windows.__getitem__  # of one key a window, of an array of keys a batch

    def per_item() -> Iterator[Batch]:
        keys = order[: PREFIX * work.batch_size]
        read = _builder().add_source(keys).pipe(gather, concurrency=2, output_order="input")
        return _run(read.aggregate(work.batch_size).pipe(np.stack))

    def per_batch() -> Iterator[Batch]:
        keys = (order[start : start + work.batch_size] for start in range(0, len(order), work.batch_size))
        return _run(_builder().add_source(keys).pipe(gather, concurrency=2, output_order="input"))

    against, output = (tokens.LIMIT,), Output(tokens.CLAIM, per_batch, ordered=False)
    return (
        Contestant(PER_ITEM, "rival", passes(per_item), tokens.UNIT, against=against),
        Contestant(PER_BATCH, "rival", passes(per_batch), tokens.UNIT, against=against, output=output),
    )


def _builder() -> Any:  # noqa: ANN401 - its type changes with every stage
    return PipelineBuilder()


def _run(builder: Any) -> Iterator[Batch]:  # noqa: ANN401 - as above
    """Yield what comes out of the pipeline on 2 threads."""
    pipeline = builder.add_sink(2).build(num_threads=2)
    with pipeline.auto_stop():
        yield from pipeline


def _import(work: import_time.Work, _: ExitStack) -> tuple[Contestant, ...]:
    return (import_time.importing(work, "import spdl.pipeline", "rival"),)


CONTESTANTS: dict[str, Contestants] = {"tiny": _tiny, "tokens": _tokens, "import": _import}
