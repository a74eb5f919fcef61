"""Mutants of datasets that are read in order."""

from typing import Final

from tests.mutants.planting import Faults
from tests.mutants.table.golden import GOLDEN, PAIRS, RESUMES, STATES

IN_ORDER: Final[Faults] = {
    "_streaming/_stage.py": {
        "pending: the token after a group is one element early": (
            *("end.chunk.afters[end.stop - 1]", "end.chunk.afters[end.stop - 2]"),
            STATES,
        ),
        "pending: a batch begins at its chunk's first row": (
            *("row = begin = self._chunks[0].first_row + self._first", "row = begin = self._chunks[0].first_row"),
            "dataset/test_pack.py",
        ),
    },
    "_streaming/_inputs.py": {
        "block input: the rest of a span begins without its step": (
            *("self.start + index * self.step, self.step", "self.start + index, self.step"),
            *(RESUMES, "equivalence/test_deal.py"),
        ),
        "block input: positions of a second span are counted from the first span's start": (
            *("start, stop = start - span.total, stop - span.total", "start, stop = start - span.total, stop"),
            *(RESUMES, "equivalence/test_deal.py"),
        ),
        "block input: the token after an element is the element's own": (
            *("range(start + 1, stop + 1) if block.kept is None", "range(start, stop) if block.kept is None"),
            STATES,
        ),
        "deal: each new rank continues all unfinished parts": (
            *("open_rank_segments[rank::ranks]", "open_rank_segments"),
            *(RESUMES, "equivalence/test_deal.py"),
        ),
        "deal: each span is divided from its beginning": (
            *("(rank - before) % ranks", "rank"),
            *(RESUMES, "equivalence/test_deal.py"),
        ),
    },
    "_streaming/_elementwise.py": {
        "filter: the count of dropped elements includes the kept ones": (
            *("len(kept), len(chunk.elements) - len(kept))", "len(kept), len(chunk.elements))"),
            "dataset/filters/test_left_out.py",
        ),
        "rows: each later element loses its first rows after a resume": (
            *("yield _chunk_of_rows(lists, skip, parents)\n skip = 0", "yield _chunk_of_rows(lists, skip, parents)"),
            STATES,
        ),
    },
    "_streaming/_empty_passes.py": {
        "flat_map: elements of which something was made count as well": (
            *("self._empty = 0 if len(each) else self._empty + 1", "self._empty += 1"),
            "dataset/test_repeat.py::test_a_function_that_makes_nothing_in_a_repeat_without_end_is_an_error",
        ),
    },
    "_streaming/_batch.py": {
        "batch: the last short batch is dropped despite remainder=keep": (
            *('pending.count and self.step.remainder != "drop"', 'pending.count and self.step.remainder == "pad"'),
            GOLDEN,
        ),
    },
    "_streaming/_window_shuffle.py": {
        "window shuffle: the order lacks the epoch": (
            *("derive(self.seed, *address)", "derive(self.seed, *address[1:])"),
            GOLDEN,
        ),
        "window shuffle: a resumed window repeats an element": (
            *("chunk.part(skip, len(chunk.elements))", "chunk.part(max(skip - 1, 0), len(chunk.elements))"),
            STATES,
        ),
    },
    "_streaming/_limit.py": {
        "limit: a chunk is not cut at the limit": (
            *("left = self.count - count", "left = self.count"),
            GOLDEN,
        ),
        "limit: a rank that runs out of data ends silently": (
            *("if stage.must_fill:", "if not stage.must_fill:"),
            "equivalence/test_even_ranks.py",
        ),
    },
    "_streaming/_opening.py": {
        "deal: a limit above the batch counts from the beginning": (
            *("max((at[1] for _, at in old), default=0)", "0"),
            "equivalence/test_deal.py",
        ),
    },
    "_streaming/_bucket.py": {
        "deal: a bucket drops the elements that an old rank held open": (
            *("replace(self.bucketing, keep_short=True)", "self.bucketing"),
            "equivalence/test_deal.py",
        ),
    },
    "_streaming/_turns.py": {
        "mixture in order: the progress of a part grows with its weight": (
            *("(taken / self._weights[part], part)", "(taken * self._weights[part], part)"),
            GOLDEN,
        ),
        "mixture in order: new weights keep the old counts": (
            *("self.taken = [0] * len(self.taken)", "self.taken = list(self.taken)"),
            PAIRS,
        ),
        "mixture in order: a state after the first chunk forgets what was counted": (
            *("last = shares.entry(max(count - 1, 0), ended)", "last = 0"),
            "equivalence/test_schedules.py",
        ),
        "mixture in order: a state counts elements instead of their measure": (
            *("taken[part] += amount", "taken[part] += 1"),
            GOLDEN,
        ),
    },
    "_streaming/_concatenate.py": {
        "concatenation: a state within a part lists the earlier parts' beginnings": (
            *("(None,) * number, token[number + 1 :]", "token[:number], token[number + 1 :]"),
            GOLDEN,
        ),
    },
    "_streaming/_stream.py": {
        "stream: the passes of later epochs have the numbers of the first's": (
            *("epoch * (step.times or _ENDLESS_PASSES) + passes", "passes"),
            GOLDEN,
        ),
        "stream: its state is requested one element late": (
            *("at == early or at % SNAPSHOT_EVERY == 0", "at == early or at % SNAPSHOT_EVERY == 1"),
            GOLDEN,
        ),
    },
    "_streaming/_packer.py": {
        "pack: the first piece of a cut document keeps its old offset": (
            *("placed.pieces.offset[placed.pieces.document == 0] += consumed", "pass"),
            STATES,
        ),
        "pack: resumed sequences count as empty": ("np.subtract.at(room, sequence, lengths)", "pass", STATES),
    },
}
