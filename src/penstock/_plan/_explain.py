"""The explanation of a dataset as text: its steps, the workers of each, its state, and how ranks end."""

from typing import TypeAlias

from penstock._frozen import frozen
from penstock._graph import (
    MAX_PARTS,
    Batch,
    Combine,
    Context,
    Fold,
    Gather,
    Node,
    Reindex,
    Split,
    Stream,
    awaits,
    cache_lines,
    chain_text,
    element_lines,
    escaped,
    function_name,
    is_endless,
    is_indexable,
    mixture_lines,
    random_lines,
    reading_text,
    tree_lines,
    verb_text,
    walk,
)
from penstock._plan._lower import Ranks, program_of, ranks_of, sharing_remedy
from penstock._plan._program import Batches, Streaming
from penstock._printable import printable
from penstock._streaming import MAX_INPUTS, elements
from penstock.batching import Stack
from penstock.sampling import BlockShuffle

_MAX_RANKS = 64
ANY_WORKER = "any worker"
IN_ORDER = "one thread"

Section: TypeAlias = tuple[str, tuple[str, ...]]


@frozen
class Explanation:
    """The description of a dataset, and of how it will be read; `print` it, or show it in a notebook.

    Attributes:
        steps: for each line of the dataset's tree, the last step first: the line; whether the elements of the step have
            positions or are read in order; and whether workers or one thread compute it.
        sections: pairs of a title and lines of text: "plan", "element", "batches", "ranks", "state", "randomness", and,
            if there are any, "mixtures", "caches", and "order", which describes shuffles by blocks.

    Example:
        >>> import penstock as ps
        >>> explanation = ps.range(10).filter(lambda number: number % 2).batch(2).explain()
        >>> dict(explanation.sections)["element"]
        ('int64 of shape (2,)',)
    """

    steps: tuple[tuple[str, str, str], ...]
    sections: tuple[Section, ...]

    def __str__(self) -> str:
        widths = [max(len(row[column]) for row in self.steps) for column in range(2)]
        tree = [
            f"{line:<{widths[0]}}   {reading:<{widths[1]}}   {workers}".rstrip()
            for line, reading, workers in self.steps
        ]
        margin = max(len(title) for title, _ in self.sections) + 3
        rows = [
            f"{'' if number else title:<{margin}}{line}".rstrip()
            for title, lines in self.sections
            for number, line in enumerate(lines)
        ]
        return "\n".join([*tree, "", *rows])

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escaped(str(self))}</pre>"


def explain(node: Node, *, evaluate: bool) -> Explanation:
    """Return the explanation of a dataset; its first element is computed if `evaluate`."""
    program = program_of(node)
    caches = cache_lines(node)  # before the first element is put into them
    sections = {
        "plan": _plan_lines(node, program),
        "element": element_lines(elements(node, 0, 0, Context())) if evaluate else ["not computed: evaluate=False"],
        "order": [line for step in walk(node) for line in _order_lines(step, program)],
        "batches": _batch_lines(program),
        "ranks": _rank_lines(node, program, ranks_of(node, program)),
        "state": _state_lines(node, program),
        "randomness": random_lines(node),
        "mixtures": mixture_lines(node),
        "caches": caches,
    }
    shown = ((title, tuple(map(printable, lines))) for title, lines in sections.items() if lines)
    return Explanation(_steps(node, program), tuple(shown))


def _steps(node: Node, program: Batches | Streaming) -> tuple[tuple[str, str, str], ...]:
    in_order = set(map(id, program.in_order))
    return tuple(
        (line, "", "") if step is None else (line, reading_text(step), IN_ORDER if id(step) in in_order else ANY_WORKER)
        for line, step in tree_lines(node)
    )


def _plan_lines(node: Node, program: Batches | Streaming) -> list[str]:
    awaited = ["async sources are read ahead of the workers: Limits(read_ahead=…)"] if awaits(node) else []
    if program.is_indexed:
        return [
            "everything is computed by any worker, in blocks: each element follows from its position alone",
            *awaited,
        ]
    streaming = program.streaming
    inputs = streaming.worker_inputs
    above = ", ".join(map(verb_text, () if streaming.collate is None else streaming.collate.steps))
    if not inputs and not above:
        many = f"there are more than {MAX_INPUTS} datasets below"
        why = many if streaming.has_many_inputs else "a stream has no positions"
        return [f"everything is computed in one thread, in order: {why}"]
    in_order = list(map(verb_text, streaming.in_order))
    chains = list(dict.fromkeys(map(chain_text, inputs)))
    return [
        *(f"by any worker, in blocks: {text}" for text in chains[:MAX_PARTS]),
        *([f"and {len(chains) - MAX_PARTS} more"] if len(chains) > MAX_PARTS else []),
        f"{'then ' if chains else ''}in order, in one thread: {', '.join(in_order) or 'nothing'}",
        *([f"then by any worker, several batches at once: {above}"] if above else []),
        *awaited,
    ]


def _order_lines(step: Node, program: Batches | Streaming) -> list[str]:
    """Describe what a shuffle by blocks reads at a time, and how well it mixes."""
    if not isinstance(step, Reindex) or not isinstance(step.sampler, BlockShuffle):
        return []
    order = step.sampler
    blocks = len(order.bounds) - 1
    live = min(order.live, blocks)
    rows = program.batch.value.size if isinstance(program.batch, Gather) else order.rows
    spread = rows / max(live, 1)
    remedy = f"live={rows} avoids that" if live < blocks else "smaller blocks avoid that"
    mixing = (
        "a batch mixes as well as under a uniform shuffle"
        if spread <= 1
        else f"a batch's mean varies {spread:.1f} times as much as under a uniform shuffle; {remedy}"
    )
    elements = f"{live * len(order) // max(blocks, 1):,} of {len(order):,} elements"
    return [f"{verb_text(step)}: {live:,} of {blocks:,} blocks are open at a time, {elements}", mixing]


def _batch_lines(program: Batches | Streaming) -> list[str]:
    batch = program.batch
    if batch is None:
        return ["none: every element is a step"]
    if isinstance(batch, Fold):
        rows = batch.value.rows
        return [f"of {', '.join(map(str, rows))} rows{', by size' * (len(rows) > 1)}; {verb_text(batch)}"]
    merge = batch.value.merge
    merged = "" if isinstance(merge, Stack) else f", merged by {function_name(merge)}"
    return [f"of {batch.value.size:,} rows over all ranks{merged}", _last_batch(batch, program)]


def _last_batch(batch: Gather[Batch], program: Batches | Streaming) -> str:
    if is_endless(batch.parent):
        return "there is no last one"
    short = program.rest
    if short == 0:
        return "all are full"
    last = "the short one, wherever the steps above put it," if program.reorders_batches else "the last"
    if short is None:
        what = {"keep": "may be short", "drop": "is dropped if it is short", "pad": "is padded if it is short"}
    else:
        what = {
            "keep": f"has {_rows_text(short)}",
            "drop": f"would have {_rows_text(short)} and is dropped",
            "pad": f"has {_rows_text(short)} of data and {batch.value.size - short:,} of padding",
        }
    return f'{last} {what[batch.value.remainder]}: remainder="{batch.value.remainder}"'


def _rank_lines(node: Node, program: Batches | Streaming, ranks: Ranks) -> list[str]:
    if not ranks.sizes:
        return [f"can't be cut: there is no batch to share. {sharing_remedy(node)}"]
    if ranks.unlike:
        return [f"can't be cut: the parts of a zip have unlike steps that are done in order: {ranks.unlike}"]
    if ranks.uncut:
        return [f"can't be cut: on_error=Substitute(…) of step {ranks.uncut!r} is above batch(). Use it before"]
    counts = [count for count in range(2, _MAX_RANKS + 1) if ranks.accepts(count, uneven=True)]
    short = _short_lines(ranks)
    if not counts:
        return short or [f"one alone: no number up to {_MAX_RANKS} divides a batch of {_sizes_text(ranks)} rows"]
    listed = ", ".join(map(str, counts[:-1])) + (" or " if len(counts) > 1 else "") + str(counts[-1])
    if ranks.ending == "uneven":
        return [
            f"{listed} ranks may end on different steps: how many batches each gets is only known after reading",
            "so say limit(n) after the batch, or repeat(), or Shard(rank, count, uneven=True)",
        ]
    limit = program.even_limit
    why = {
        "positions": "each row's position is known",
        "limit": "" if limit is None else f"after {verb_text(limit)}; one that has fewer raises an error",
        "endless": "the data has no end",
    }
    return [f"{listed} ranks end on the same step: {why[ranks.ending]}", *short]


def _short_lines(ranks: Ranks) -> list[str]:
    if not ranks.short:
        return []
    return [
        f'no more ranks than {ranks.short:,}: the last batch has {_rows_text(ranks.short)}. remainder="drop" or "pad" '
        "lifts this"
    ]


def _rows_text(count: int) -> str:
    return f"{count:,} row{'s' * (count != 1)}"


def _sizes_text(ranks: Ranks) -> str:
    return " and ".join(f"{size:,}" for size in ranks.sizes)


def _state_lines(node: Node, program: Batches | Streaming) -> list[str]:
    if program.is_indexed:
        return ["of constant size: the next step, and from where batches are counted; going there computes nothing"]
    count = len(program.streaming.inputs)
    where = "a position" if count == 1 else f"a position in each of {count} datasets below"
    held = dict.fromkeys(line for step in walk(node) for line in _held_lines(step))
    return [f"{where}; no data", *held]


def _held_lines(step: Node) -> list[str]:
    """Describe the part of a state that a step adds, and the elements that are computed again after a resume."""
    match step:
        case Stream():
            return [f"{verb_text(step)}: its own state; if it has none, what was read is read again"]
        case Split(value=value) if not value.is_by_position:
            return [f"{verb_text(step)}: which row of an element comes next; that element is computed again"]
        case Fold(value=value):
            return [f"{verb_text(step)}: {value.state_text}"]
        case Combine(parts=parts) if not is_indexable(step):
            return [f"{verb_text(step)}: how far each of {len(parts)} parts was read"]
        case _:
            return []
