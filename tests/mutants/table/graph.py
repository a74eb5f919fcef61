"""Mutants of elements, seeds and fingerprints."""

from typing import Final

from tests.mutants.planting import Faults
from tests.mutants.table.golden import GOLDEN, PAIRS, STATES

_FACTS_OF_BITS: Final = """parent_length: int

    def __penstock_order__(self) -> OrderFacts:
        return OrderFacts("""
GRAPH: Final[Faults] = {
    "sampling/_parts.py": {
        "seed position: a selection of positions renames the streams": (
            *(_FACTS_OF_BITS + "takes_once=True", _FACTS_OF_BITS + "takes_once=False"),
            GOLDEN,
        ),
    },
    "sampling/_block_shuffle.py": {
        "shuffle by blocks: every epoch has the pieces in one order": (
            *('derive_block(derive(shuffle.seed, epoch, "order")', 'derive_block(derive(shuffle.seed, 0, "order")'),
            "sampling/test_block_shuffle.py",
        ),
    },
    "_dataset/_block_order.py": {
        "shuffle by blocks: the blocks of a slice aren't shifted": (
            *("np.unique(np.clip(bounds, start, start + length)) - start", "np.unique(np.clip(bounds, 0, length))"),
            "dataset/test_block_order.py",
        ),
    },
    "_graph/_gather.py": {
        "blocks: the rows of several batches are counted from a batch's end": (
            "np.repeat(ends - counts - positions * self.size, counts)",
            "np.repeat(ends - positions * self.size, counts)",
            GOLDEN,
        ),
        "blocks: padding repeats the first row": (
            *("[rows[-1]] * (size - count)", "[rows[0]] * (size - count)"),
            *(GOLDEN, PAIRS),
        ),
        "mask: the first row of padding counts as data": (
            *("np.arange(total) < data", "np.arange(total) <= data"),
            GOLDEN,
        ),
        "seed position: a batch has the position of its number": (
            "np.minimum(positions * self.size + numbers, (length(parent) or 1) - 1)",
            "np.minimum(positions + numbers, (length(parent) or 1) - 1)",
            GOLDEN,
        ),
        "seed position: a group has the position of its last member": (
            *("np.cumsum(counts) - counts + np.minimum(numbers, counts - 1)", "np.cumsum(counts) - 1"),
            GOLDEN,
        ),
        "length: a dropped short batch counts": (
            *('rows // self.size if self.remainder == "drop"', 'rows // self.size if self.remainder == "keep"'),
            GOLDEN,
        ),
        "locate: the row of a padded batch is beyond the data": (
            "np.minimum(positions * self.size + numbers, (length(parent) or 1) - 1)",
            "positions * self.size + numbers",
            GOLDEN,
        ),
    },
    "_graph/_inputs.py": {
        "blocks: distinct coordinates have epoch and position swapped": (
            *("pairs[0].copy(), pairs[1].copy()", "pairs[1].copy(), pairs[0].copy()"),
            PAIRS,
        ),
    },
    "_graph/_splitting.py": {
        "blocks: a row that is taken twice shares its memory": (
            *("copied_or(first[each], partial(again, place))", "first[each]"),
            "failures/test_writing.py",
        ),
        "splits: a part that was handed out is handed out again": (
            *("prepared[number][ordinal] = _HANDED_OUT", "pass"),
            "failures/test_writing.py",
        ),
    },
    "_graph/_blocks.py": {
        "splits: a parent whose evaluation reported a substitute is kept": (
            *("context.kept.events == events and value.has_more(prepared[last])", "value.has_more(prepared[last])"),
            "runtime/test_parents.py",
        ),
        "splits: a kept parent of another epoch is used": (
            "kept is None or (kept.epoch, kept.position) not in at",
            "kept is None or (kept := kept._replace(epoch=at[0][0])).position not in [position for _, position in at]",
            "graph/test_trees.py",
        ),
        "blocks: kept elements are numbered without the filter below": (
            *("chosen if below.kept is None else below.kept[chosen]", "chosen"),
            *(STATES, PAIRS),
        ),
        "blocks: rows of a mixture's part are put at other positions": (
            *("zip(below.rows.tolist(), found, strict=True)", "zip(below.rows.tolist(), found[::-1], strict=True)"),
            GOLDEN,
        ),
    },
    "_strides.py": {
        "copies: a read-only array becomes writable": (
            *("        made.flags.writeable = False", "        pass"),
            "test_independent.py",
        ),
        "copies: an array with gaps loses them": (
            *("made = _new(array.dtype, array.shape, array.strides)", "made = np.empty(array.shape, array.dtype)"),
            "test_independent.py",
        ),
    },
    "_independent.py": {
        "flat_map: elements that share an array are not copied": (
            *("if len(numbers) > 1 else set()", "if len(numbers) > 9 else set()"),
            "loader/test_shared_elements.py",
        ),
        "flat_map: views of one array have memory of their own": (
            *("type(buffer) is np.ndarray and buffer.flags.owndata and", "type(buffer) is np.ndarray and"),
            "loader/test_shared_elements.py",
        ),
        "flat_map: one array in two elements is two": (
            *("if len(set(map(id, buffers))) < len(buffers):", "if not buffers:"),
            "loader/test_shared_elements.py",
        ),
        "flat_map: tensors have memory of their own": (
            *("return type(buffer) is np.ndarray and buffer.flags.owndata", "return buffer is not None"),
            "test_independent.py",
        ),
        "flat_map: a read-only view of memory that another element writes to is kept": (
            *("in group if is_writable}", "in group if is_writable and all(each[3] for each in group)}"),
            "test_independent.py",
        ),
        "flat_map: objects in two elements are not looked for": (
            *("(not _is_value(part) if span is None else span[3])", "span is not None and span[3]"),
            "test_independent.py",
        ),
        "unbatch: tensors of now and next are apart": (
            *("return not has_views or _views_are_apart(held)", "return True"),
            "test_independent.py",
        ),
        "copies: an element with views of the same memory is copied": (
            *("if exactly and not _are_disjoint(parts):", "if exactly and not parts:"),
            *("test_independent.py", "loader/test_elements_apart.py"),
        ),
    },
    "_graph/_windows.py": {
        "seed position: a window's ordinal is its first frame": ("starts // self.table.stride", "starts", GOLDEN),
    },
    "_graph/_coordinates.py": {
        "seed position: rows of one element share a stream with the next element's": (
            *("(ordinals << _ROWS_BITS) + rows", "ordinals + rows"),
            *(GOLDEN, "graph/test_nested_rows.py"),
        ),
        "locate: nested parts' rows are those of the outer part": ("return outer[inner]", "return inner", GOLDEN),
    },
    "_seeds.py": {
        "seeds: a string counts by its first four bytes": (
            *("hashlib.blake2b(part.encode(), digest_size=8)", "hashlib.blake2b(part.encode(), digest_size=4)"),
            GOLDEN,
        ),
        "seeds: the path is folded into the seed without its order": (
            *("state = mix(state ^ part_hash)", "state = state ^ part_hash"),
            GOLDEN,
        ),
    },
    "_graph/_apply.py": {
        "substitute: each further attempt takes the same position": (
            *('"substitute", *location.seed, attempt)', '"substitute", *location.seed)'),
            GOLDEN,
        ),
        "substitute: there is one attempt too many": (
            *("attempt + 1 < attempts", "attempt < attempts"),
            "graph/test_on_error.py",
        ),
        "substitute: the budget allows one more": (">= budget", "> budget", "graph/test_on_error.py"),
        "origin: the seed lacks the part of a mixture in order": (
            *("derive(step.seed, *location.address), ordinal", "derive(step.seed, *location.seed), ordinal"),
            GOLDEN,
        ),
        "apply: a part's streams derive from its name alone": (
            *('derive(0, "component", component) >> 2', "derive(0, component) >> 2"),
            GOLDEN,
        ),
        "apply: a failing element's neighbour is left out": (
            *("range(len(results), len(elements))", "range(len(results) + 1, len(elements))"),
            "graph/test_on_error.py",
        ),
    },
    "_graph/_fingerprint.py": {
        "fingerprint: the loader's own batch size counts": (
            *("is_batch(step) and step is not own_batch", "is_batch(step)"),
            GOLDEN,
        ),
        "fingerprint: the names of parts don't count": (
            *('own.append(f"part {name} {len(others)}")', 'own.append(f"part {len(others)}")'),
            GOLDEN,
        ),
        "fingerprint: held values count as code": (
            *("code_identity(function, with_state=False)", "code_identity(function)"),
            GOLDEN,
        ),
    },
    "_graph/_code.py": {
        "fingerprint: a function's constants don't count": (
            *("{code.co_names} {walk.texts(code.co_consts)}", "{code.co_names}"),
            *(GOLDEN, "graph/test_code.py"),
        ),
    },
    "_streaming/_mix.py": {
        "length: a mixture that ends with its first part never ends with one endless part": (
            *("all(map(all, used))", "all(map(any, used))"),
            "graph/test_trees.py",
        ),
    },
    "_graph/_evaluate.py": {
        "cache: elements are kept under their number in the block": (
            *("partial(store.put, positions[number], element)", "partial(store.put, number, element)"),
            GOLDEN,
        ),
        "cache: substitutes of one epoch are kept for all": (
            *("are_lasting = context.kept.events == events", "are_lasting = True"),
            "graph/test_on_error.py",
        ),
        "windows: padding repeats the first frame": (
            *("[array[-1:]] * (total - frames)", "[array[:1]] * (total - frames)"),
            GOLDEN,
        ),
        "windows: overlapping windows share memory": (
            *("array[span.start : span.stop].copy()", "array[span.start : span.stop]"),
            *("failures/test_writing.py", "graph/test_trees.py"),
        ),
    },
    "_graph/_rewrite.py": {
        "rewrite: a fixed order below a repeat returns each epoch": (
            *("cycle * repeat.passes if repeat.reshuffle else cycle", "cycle"),
            GOLDEN,
        ),
        "rewrite: a repeat of a join with an endless part repeats the others within the first pass": (
            *("or all(map(is_endless, node.parts))", "or any(map(is_endless, node.parts))"),
            "dataset/test_repeat.py",
        ),
        "rewrite: orders that alternate are held by no selection": (
            *("cycle % sampler.cycle == 0", "cycle % sampler.cycle >= 0"),
            "dataset/test_order.py",
        ),
        "rewrite: a part's split is another one in a mixture": (
            *("reorders and facts_of(sampler).keeps_all", "reorders"),
            *("graph/test_trees.py", "dataset/test_order.py"),
        ),
    },
}
