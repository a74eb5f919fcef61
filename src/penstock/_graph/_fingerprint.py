"""What identifies a dataset in a state: its source, its order, and, softly, its functions.

A state may only be loaded into a dataset whose source and order are the same; both are hard parts. The batch size is
not part of the order, since batches can be cut anew. Functions are a soft part: a difference is worth a warning.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, assert_never

import numpy as np

from penstock._graph._code import code_identity
from penstock._graph._nodes import Batch, Filter, Map, Node, Read, Reindex, Unbatch, chain
from penstock.sampling import FixedOrder, ScalarSampler, Select, apply_block
from penstock.sources._as_source import source_fingerprint


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The parts of a dataset's identity, each 16 hexadecimal digits."""

    source: str
    order: str
    functions: str


def fingerprint(node: Node) -> Fingerprint:
    """Return the dataset's fingerprint; the same in every process and on every machine."""
    steps_ = chain(node)
    read = steps_[0]
    source = f"{read.length}:{source_fingerprint(read.source)}" if isinstance(read, Read) else ""
    return Fingerprint(
        _digest([source]),
        _digest(text for step in steps_ for text in _order_parts(step)),
        _digest(text for step in steps_ for text in _function_parts(step)),
    )


def _digest(texts: Any) -> str:  # noqa: ANN401 - an iterable of strings
    hasher = hashlib.blake2b(digest_size=8)
    for text in texts:
        hasher.update(f"{len(text)}:{text}".encode())
    return hasher.hexdigest()


def _order_parts(step: Node) -> Iterator[str]:
    match step:
        case Read(seed=seed):
            yield f"seed {seed}"
        case Reindex(sampler=sampler):
            yield f"reindex {_sampler_text(sampler)}"
        case Filter():
            yield "filter"
        case Batch():
            yield "batch"
        case Unbatch():
            yield "unbatch"
        case Map(on_error=on_error):
            yield f"map {'skip' if on_error == 'skip' else ''}"
        case _:
            assert_never(step)


def _sampler_text(sampler: ScalarSampler) -> str:
    """Return what identifies a sampler: its own `fingerprint()`, its repr if it is one of ours, or what it maps to."""
    if isinstance(sampler, FixedOrder):
        return f"FixedOrder {sampler.cycle} {_sampler_text(sampler.sampler)}"
    if isinstance(sampler, Select):  # the repr of a long array leaves out its middle
        return f"Select {hashlib.blake2b(sampler.keys.data, digest_size=16).hexdigest()}"
    own = getattr(sampler, "fingerprint", None)
    if callable(own):
        return str(own())
    if type(sampler).__module__.startswith("penstock."):
        return repr(sampler)
    probes = np.unique(np.linspace(0, max(len(sampler) - 1, 0), 64).astype(np.int64))[: len(sampler)]
    parts = [type(sampler).__qualname__, str(len(sampler))]
    for epoch in (0, 1):
        parts += [part.tobytes().hex() for part in apply_block(sampler, np.full_like(probes, epoch), probes)]
    return " ".join(parts)


def _function_parts(step: Node) -> Iterator[str]:
    match step:
        case Map(function=function, name=name, seed=seed, form=form):
            yield f"map {name} {seed} {form} {_function_text(function)}"
        case Filter(predicate=predicate, name=name):
            yield f"filter {name} {_function_text(predicate)}"
        case Batch(merge=merge):
            yield f"merge {_function_text(merge)}"
        case Read() | Reindex() | Unbatch():
            pass
        case _:
            assert_never(step)


def _function_text(function: Callable[..., Any]) -> str:
    """Return what identifies a function, but for what may change while it is used."""
    return code_identity(function, with_state=False)
