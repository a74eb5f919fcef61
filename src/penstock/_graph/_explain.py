"""Lines of `Dataset.explain` about the graph: the first element, randomness, mixtures and caches."""

import itertools
from collections.abc import Iterator

from penstock._graph._describe import MAX_PARTS, is_column_of_texts, leaf_texts, length_text, verb_text
from penstock._graph._length import is_indexable, length
from penstock._graph._nodes import Cache, Combine, Element, Fold, Map, Node, Read, Reindex, Stream, parents_of, walk
from penstock._storage import DiskCache, MemoryCache
from penstock.sampling import Reorder


def reading_text(node: Node) -> str:
    """Return whether a step's elements have positions or are read in order, in words."""
    if is_indexable(node):
        return "has positions"
    return "in order" if any(not is_indexable(parent) for parent in parents_of(node)) else "in order from here on"


def element_lines(elements: Iterator[Element]) -> list[str]:
    """Return a line for each leaf of the first element, or the error of its evaluation."""
    try:
        first = list(itertools.islice(elements, 1))
    except Exception as error:  # noqa: BLE001 - an error of the user's code is shown
        notes: list[str] = getattr(error, "__notes__", [])
        return [f"the first can't be computed: {type(error).__name__}: {error}", *notes]
    if not first:
        return ["there is none"]
    return [f"{path}: {text}" if path else text for path, text in leaf_texts(first[0], is_column_of_texts)]


def random_lines(node: Node) -> list[str]:
    """Return the seeds of the sources, and the name and seed of each step's random stream."""
    found = dict.fromkeys(line for step in walk(node) for line in _random_line(step))
    return [*_seed_lines(node), *found] if found else ["nothing is random"]


def _random_line(step: Node) -> Iterator[str]:
    match step:
        case Map(name=name, seed=seed, form=form) if form != "none":
            yield f"{verb_text(step)}: stream {name!r}, seed {seed}"
        case Fold(value=value) if value.random is not None:
            yield f"{verb_text(step)}: stream {value.random.name!r}, seed {value.random.seed}"
        case Reindex(parent=parent, sampler=Reorder() as order, verb=""):
            chosen = f"{verb_text(parent)} has the same elements in every epoch"
            yield f"{chosen}; their order: stream 'reorder', seed {order.seed}"
        case Reindex(sampler=sampler, verb=verb, name=name):
            own: object = getattr(sampler, "seed", None)
            if own is not None:
                yield f"{verb or 'the order above it'}: stream {name or 'reorder'!r}, seed {own}"
        case Combine(value=value):
            own = getattr(value.rule, "seed", None)
            if own is not None:
                yield f"{verb_text(step)}: the order of its parts, seed {own}"
        case _:
            return


def mixture_lines(node: Node) -> list[str]:
    """Return, for each mixture, its weights, each part's elements in an epoch, and the part that ends first.

    A choice of elements above it, which is shuffled in later epochs, is named.
    """
    lines: list[str] = []
    for step in walk(node):
        if isinstance(step, Combine) and step.value.takes_one:
            ending, *shares = step.value.lines(step.names, list(map(_count_text, step.parts)))
            shares += _reordering_lines(node, step)
            lines += [f"{verb_text(step)}: {_count_text(step)}, {ending}", *(f"  {line}" for line in shares)]
    return lines


def _reordering_lines(node: Node, mixture: Combine) -> Iterator[str]:
    for step in walk(node):
        if (
            isinstance(step, Reindex)
            and isinstance(step.sampler, Reorder)
            and not step.verb
            and any(each is mixture for each in walk(step))
        ):
            yield f"{verb_text(step.parent)} has the same elements in every epoch; after epoch 0 they are shuffled"


def _count_text(node: Node) -> str:
    text = length_text(node)
    return text if not text[0].isdecimal() else f"{text} element{'s' * (text != '1')}"


def _more(count: int) -> list[str]:
    return [f"  … {count - MAX_PARTS} more parts"] if count > MAX_PARTS else []


def cache_lines(node: Node) -> list[str]:
    """Return the number of elements and bytes in each cache."""
    return [line for step in walk(node) if isinstance(step, Cache) for line in _cache_line(step)]


def _cache_line(step: Cache) -> Iterator[str]:
    if isinstance(step.store, MemoryCache | DiskCache):
        kept, total = len(step.store), length(step) or 0
        yield f"{verb_text(step)}: {kept:,} of {total:,} elements, {step.store.held_bytes:,} bytes are kept"


def _seed_lines(node: Node) -> list[str]:
    """Return the seed of each source, from which the seeds of random steps derive."""
    found = [f"{verb_text(step)}: seed {step.seed}" for step in walk(node) if isinstance(step, Read | Stream)]
    distinct = list(dict.fromkeys(found))
    return [*distinct[:MAX_PARTS], *_more(len(distinct))]
