"""Fingerprints: digests of a dataset's source, its order and its functions, by which a state identifies a dataset.

A state is a position in a dataset, so loading it into another dataset would silently continue with other data. The
state therefore holds a fingerprint, and loading compares it.

- A different source or order is an error. The batch size is not part of the order, since a loader may resume with
  another one.
- A different function is a warning: users fix their functions in the middle of a run.
- Of a mixture only the past counts: the schedule up to the state's position, and the parts that occur in it. So a run
  may resume with another schedule from there on, or with one more part. After epoch 0, or where the number of elements
  before the state's position isn't known, all of the schedule counts.

A sampler or a source of the user's counts by its `fingerprint()`, or by a sample of what it maps to.

The digests are compared with those in saved states, and the golden records hold them. So the texts that are hashed here
never change, whatever the names in the code: a new kind of text goes into `details`, which old states don't have.

A cache on disk and the index of a filter are keyed by more: `function_identities` cover the complete code of the
functions, and `source_identities` the paths, sizes and times of the sources' files, and all that other sources hold.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias, assert_never

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._graph._code import code_identity, held_values
from penstock._graph._describe import chain_text, function_name
from penstock._graph._gather import Batch, is_batch, outermost_batch
from penstock._graph._key import key_identity
from penstock._graph._length import is_indexable
from penstock._graph._nodes import (
    Cache,
    Combine,
    Filter,
    Fold,
    Gather,
    Map,
    Node,
    Read,
    Reindex,
    SourceNode,
    Split,
    Stream,
    chain,
    walk,
)
from penstock.batching import Stack
from penstock.errors import GraphError, InternalError
from penstock.sampling import CheckedSampler, FixedOrder, ScalarSampler, Select, apply_block
from penstock.sources import name_of, source_fingerprint

STEP_DIGITS: Final = 3  # of a step's digest: one change in 4,096 goes unnamed
_MAX_STEPS: Final = 16


@frozen
class Fingerprint:
    """The digests of a dataset, 16 hexadecimal digits each."""

    source: str
    order: str
    functions: str
    steps: str
    """A short digest of each of the first 16 steps, one after the other, by which errors name those that differ."""
    details: Mapping[str, str]
    """Further digests, by the names of the three; states of earlier versions don't have them.

      - "source": the content of records that are Python objects. A difference is a warning.
      - "order": the sizes of batches below the loader's, and the form of a zip. A difference is an error.
      - "functions": the values that functions hold, and the functions that open streams. A difference is a warning.
    """

    def parts(self) -> dict[str, str]:
        """Return the three digests by name."""
        return {"source": self.source, "order": self.order, "functions": self.functions}


_Known: TypeAlias = dict[int, tuple[Callable[..., Any], str, str]]
"""By the `id` of a function: itself, its identity, and the identity of the values that it holds. Each is computed once,
since hundreds of parts may share a function."""


class _Seen(NamedTuple):
    """The number of elements of a mixture that were seen."""

    mixture: Combine
    elements: int


@dataclass(slots=True, eq=False, repr=False)
class _Texts:
    """The texts that are hashed to the three digests and their details."""

    source: list[str] = field(default_factory=list[str])
    order: list[str] = field(default_factory=list[str])
    functions: list[str] = field(default_factory=list[str])
    steps: list[str] = field(default_factory=list[str])  # their digests
    details: Mapping[str, list[str]] = field(default_factory=lambda: {"source": [], "order": [], "functions": []})

    def add(self, name: str, part: "_Texts") -> None:
        """Add the texts of a part, and their number, so that different parts never have the same texts."""
        for own, others in ((self.source, part.source), (self.order, part.order), (self.functions, part.functions)):
            own.append(f"part {name} {len(others)}")
            own += others
        for kind, others in part.details.items():
            if others:
                self.details[kind].append(f"part {name} {len(others)}")
                self.details[kind].extend(others)


def fingerprint(node: Node, epoch: int | None = None, position: int | None = None) -> Fingerprint:
    """Return the dataset's fingerprint, which is the same in every process and on every machine.

    Args:
        node: the dataset.
        epoch: the epoch of a state; after the first epoch all of a mixture counts.
        position: the number of elements of the epoch that were seen, counted below the batch that a loader recuts, if
            there is one; None counts all of a mixture.
    """
    texts = _texts(node, None if epoch or position is None else _seen(node, position), {}, _own_batch(node))
    details = {kind: _digest(parts) for kind, parts in texts.details.items() if parts}
    steps = "".join(texts.steps[:_MAX_STEPS])
    return Fingerprint(_digest(texts.source), _digest(texts.order), _digest(texts.functions), steps, details)


def all_details(node: Node) -> Mapping[str, Sequence[str]]:
    """Return the texts of the details of a node's fingerprint, the sizes of all batches included."""
    return _texts(node, None, {}).details


def steps_of(node: Node) -> list[Node]:
    """Return the chain of steps that a fingerprint covers: a cache is no part of a dataset."""
    return [step for step in chain(node) if not isinstance(step, Cache)]


def _own_batch(node: Node) -> Gather[Batch] | None:
    """Return the batch whose size a loader may change on resume; a state holds that size by itself."""
    if not is_indexable(node):
        batch = outermost_batch(node)
        return batch if isinstance(batch, Gather) else None
    while isinstance(node, Map | Reindex):
        node = node.parent
    return node if is_batch(node) else None


def seen_past(node: Node, epoch: int, position: int) -> object:
    """Return the part of (epoch, position) on which `fingerprint` depends; equal values have equal fingerprints."""
    seen = None if epoch else _seen(node, position)
    return None if seen is None else seen.mixture.value.order_text(0, seen.elements)


def _texts(node: Node, seen: _Seen | None, known: _Known, own_batch: Gather[Batch] | None = None) -> _Texts:
    base, *steps = steps_of(node)
    if isinstance(base, Read | Stream):
        texts = _source_texts(base, known)
    elif isinstance(base, Combine):
        texts = _combine_texts(base, None if seen is None else seen.elements, known)
    else:
        raise InternalError("a chain begins at a source or a node with several parents")
    details = [*texts.details["order"], *texts.details["functions"]]
    texts.steps.append(_short_digest([*texts.source, *texts.order, *texts.functions, *details]))
    for step in steps:
        order, functions = [*_order_parts(step)], [*_function_parts(step, known)]
        more: list[str] = []
        if is_batch(step) and step is not own_batch:
            more.append(f"batch {step.value.size} {step.value.remainder} {step.value.mask}")
        held = [text for each in functions_of(step) if (text := _held_text(each, known))]
        texts.order += order
        texts.functions += functions
        texts.details["order"].extend(more)
        texts.details["functions"].extend(held)
        texts.steps.append(_short_digest([*order, *functions, *more, *held]))
    return texts


def _seen(node: Node, position: int) -> _Seen | None:
    """Return the elements seen of a mixture, or None if a step above it may change their number."""
    own_batch = _own_batch(node)
    while not isinstance(node, Combine):
        match node:
            case Map(on_error=on_error) if on_error != "skip":
                pass
            case Gather(value=Batch(size=size)):
                position *= 1 if node is own_batch else size
            case Cache():
                pass
            case _:
                return None
        node = node.parent
    return _Seen(node, position)


def _source_texts(node: SourceNode, known: _Known) -> _Texts:
    match node:
        case Read(source=source, length=length, seed=seed, content=content):
            texts = _Texts([f"{length}:{source_fingerprint(source)}"], [f"seed {seed}"])
            texts.details["source"].extend([content] if content else [])
            return texts
        case Stream(iterable=iterable, seed=seed, times=times):
            kind = f"{type(iterable).__module__}.{type(iterable).__qualname__}"
            own = callable(getattr(iterable, "fingerprint", None))
            texts = _Texts([f"stream {source_fingerprint(iterable) if own else kind}"], [f"stream {seed} {times}"])
            if callable(iterable) and not own:
                opener = f"stream {_function_text(iterable, known)} {_held_text(iterable, known)}"
                texts.details["functions"].append(opener)
            return texts
        case _:
            assert_never(node)


def _combine_texts(step: Combine, seen: int | None, known: _Known) -> _Texts:
    """Return the texts of a node with several parts: its own, and those of each part that counts."""
    value = step.value
    texts = _Texts([], [value.order_text(step.seed, seen)], list(_value_functions(value.functions, known)))
    texts.details["order"].extend(value.detail_texts)
    texts.details["functions"].extend(filter(None, (_held_text(each, known) for each in functions_of(step))))
    for number in value.counted(step.names, seen):
        texts.add(step.names[number], _texts(step.parts[number], None, known))
    return texts


def _digest(texts: Iterable[str]) -> str:
    return hashlib.blake2b("".join([f"{len(text)}:{text}" for text in texts]).encode(), digest_size=8).hexdigest()


def _short_digest(texts: Iterable[str]) -> str:
    return _digest(texts)[:STEP_DIGITS]


def _order_parts(step: Node) -> Iterator[str]:
    match step:
        case Reindex(sampler=sampler):
            yield f"reindex {_sampler_text(sampler)}"
        case Filter():
            yield "filter"
        case Map(on_error=on_error):
            yield f"map {'skip' if on_error == 'skip' else ''}"
        case Fold(value=value) | Split(value=value) | Gather(value=value):
            yield value.order_text
        case Cache():
            pass  # a cache changes no element
        case Read() | Stream() | Combine():
            raise InternalError("the first node of a chain is no step")
        case _:
            assert_never(step)


def array_text(array: NDArray[Any]) -> str:
    """Return a digest of an array's content."""
    return hashlib.blake2b(np.ascontiguousarray(array).data, digest_size=16).hexdigest()


def _sampler_text(sampler: ScalarSampler) -> str:
    """Return the text of a sampler: its `fingerprint()`, its repr if it is ours, or some positions that it maps to."""
    if isinstance(sampler, FixedOrder):
        return f"FixedOrder {sampler.cycle} {_sampler_text(sampler.sampler)}"
    if isinstance(sampler, CheckedSampler):
        return _sampler_text(sampler.sampler)
    if isinstance(sampler, Select):  # the repr of a long array is shortened
        return f"Select {array_text(sampler.keys)}"
    own = getattr(sampler, "fingerprint", None)
    if callable(own):
        return str(own())
    return repr(sampler) if _is_own(sampler) else _probed_text(sampler)


def _innermost(sampler: ScalarSampler) -> ScalarSampler:
    """Return the sampler that others wrap."""
    while isinstance(sampler, CheckedSampler | FixedOrder):
        sampler = sampler.sampler
    return sampler


def _is_own(sampler: ScalarSampler) -> bool:
    return type(sampler).__module__.startswith("penstock.")


def _probed_text(sampler: ScalarSampler) -> str:
    """Return the results of a sampler at up to 64 positions of two epochs."""
    probes = np.unique(np.linspace(0, max(len(sampler) - 1, 0), 64).astype(np.int64))[: len(sampler)]
    parts = [type(sampler).__qualname__, str(len(sampler))]
    for epoch in (0, 1):
        parts += [part.tobytes().hex() for part in apply_block(sampler, np.full_like(probes, epoch), probes)]
    return " ".join(parts)


def _function_parts(step: Node, known: _Known) -> Iterator[str]:
    match step:
        case Map(function=function, name=name, seed=seed, form=form):
            yield f"map {name} {seed} {form} {_function_text(function, known)}"
        case Filter(predicate=predicate, name=name):
            yield f"filter {name} {_function_text(predicate, known)}"
        case Fold(value=value) | Split(value=value) | Gather(value=value):
            yield from _value_functions(value.functions, known)
        case Reindex() | Cache():
            pass
        case Read() | Stream() | Combine():
            raise InternalError("the first node of a chain is no step")
        case _:
            assert_never(step)


def _value_functions(functions: Sequence[tuple[str, Callable[..., Any]]], known: _Known) -> Iterator[str]:
    """Yield the texts of the functions of a node's value."""
    return (f"{text} {_function_text(function, known)}" for text, function in functions)


def note_held_values(node: Node) -> None:
    """Record the values that a dataset's functions hold now; later fingerprints use these, whatever they change."""
    for step in walk(node):
        for function in functions_of(step):
            if type(function) is not Stack:  # the usual merge: it holds nothing, and is quicker to recognize
                held_values(function)


def functions_of(node: Node) -> list[Callable[..., Any]]:
    """Return the user's functions of a node."""
    match node:
        case Map(function=function) | Filter(predicate=function):
            return [function]
        case Stream(iterable=iterable) if callable(iterable):
            return [iterable]
        case Fold(value=value) | Split(value=value) | Gather(value=value) | Combine(value=value):
            return [function for _, function in value.functions]
        case _:
            return []


def _function_text(function: Callable[..., Any], known: _Known) -> str:
    """Return the identity of a function, without the values that may change while it is used."""
    return _known(function, known)[1]


def _held_text(function: Callable[..., Any], known: _Known) -> str:
    """Return the identity of the values of a function that may change while it is used; "" for none."""
    return _known(function, known)[2]


def _known(function: Callable[..., Any], known: _Known) -> tuple[Callable[..., Any], str, str]:
    if id(function) not in known:
        known[id(function)] = function, code_identity(function, with_state=False), held_values(function)
    return known[id(function)]


def cache_identity(node: Node, version: str | None, *, on_disk: bool) -> str:
    """Return 32 hexadecimal digits that identify a node's elements.

    Args:
        node: the cached node.
        version: replaces the code of the node's functions, except their names; None includes their code.
        on_disk: whether other datasets may use the cache, from which these elements must be distinguished.

    Raises:
        GraphError: a source below can't be distinguished from another one, and there is no version.
    """
    parts = fingerprint(node)
    details = all_details(node)
    hasher = hashlib.blake2b(digest_size=16)
    if version is not None:
        codes = [f"version {version}", *_step_names(node)]
    elif on_disk:
        codes = function_identities(node)
    else:
        codes = [code_identity(function) for step in walk(node) for function in functions_of(step)]
    remedy = None if version is not None else 'pass version="1" and change that with the source'
    more: list[str] = []
    if on_disk:
        more = [*argument_texts(node), *sampler_texts(node), *source_identities(node, "a cache on disk", remedy)]
    for text in (parts.source, parts.order, *codes, *details["source"], *details["order"], *more):
        hasher.update(f"{len(text)}:{text}".encode())
    return hasher.hexdigest()


def _step_names(node: Node) -> list[str]:
    """Return the names of the steps and functions below and at a node, except of lambdas."""
    names: list[str] = []
    for step in walk(node):
        if isinstance(step, Map | Filter):
            names.append(step.name)
        else:
            names += [function_name(function) for function in functions_of(step) if type(function) is not Stack]
    return [name for name in names if "<lambda>" not in name]


def function_identities(node: Node) -> list[str]:
    """Return the identity of each function below and at a node, in the key of a cache on disk."""
    return [key_identity(function).digest for step in walk(node) for function in functions_of(step)]


def argument_texts(node: Node) -> list[str]:
    """Return texts of arguments that decide a node's elements and are in no fingerprint, for keys of caches on disk.

    Each has the number of its step, since another step may have the same argument instead.
    """
    values = [step.value for step in walk(node) if isinstance(step, Split | Gather)]
    return [f"{number} {value.key_text}" for number, value in enumerate(values) if value.key_text]


def sampler_texts(node: Node) -> list[str]:
    """Return the identities of the user's samplers below and at a node, in the key of a cache on disk.

    These have all that a sampler holds, whereas the fingerprint has a few of its results.
    """
    samplers = [_innermost(step.sampler) for step in walk(node) if isinstance(step, Reindex)]
    return [f"sampler {key_identity(sampler).digest}" for sampler in samplers if not _is_own(sampler)]


def source_identities(node: Node, owner: str, remedy: str | None) -> list[str]:
    """Return the identity of each source below a node, in the key of a cache on disk.

    Args:
        node: the cached node.
        owner: the owner of the key, for messages.
        remedy: a remedy for sources that can't be distinguished; None accepts them.

    Raises:
        GraphError: a source can't be distinguished from another one.
    """
    known: dict[int, str] = {}
    sources = [step.source for step in walk(node) if isinstance(step, Read)]
    for source in sources:
        if id(source) not in known:
            identity = key_identity(source)
            if identity.hidden and remedy is not None:
                raise GraphError(
                    f"{chain_text(node)}: {owner} must distinguish sources, and {name_of(source)} holds a value "
                    f"that doesn't show its content ({', '.join(identity.hidden)}). Give the source a method "
                    f"fingerprint() that returns a str which changes with its records, or {remedy}."
                )
            known[id(source)] = identity.digest
    return [known[id(source)] for source in sources]
