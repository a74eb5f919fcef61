"""An explanation describes a loader: its steps, where each is computed, and how ranks end."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock as ps
from penstock.errors import PenstockError
from tests.dataset.functions import double, is_odd, noisy
from tests.equivalence.functions import totals
from tests.equivalence.graphs import REMAINDERS, batched, indexable, ordered
from tests.equivalence.joins import in_order, joined


def section(dataset: ps.Dataset, title: str) -> tuple[str, ...]:
    """Return the lines of a section, without computing an element; none if it has no such section."""
    return dict(dataset.explain(evaluate=False).sections).get(title, ())


@st.composite
def batches(draw: st.DrawFn) -> ps.Dataset:
    """Draw a dataset of any kind, with or without batches, limits and an end."""
    dataset: ps.Dataset = draw(st.one_of(batched(), ordered(), indexable(), joined(), in_order()))
    for _ in range(draw(st.integers(0, 3))):
        match draw(st.integers(0, 7)):
            case 0 | 1 | 2:
                size = draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
                dataset = dataset.batch(size, remainder=draw(REMAINDERS), merge=totals)
            case 3:
                dataset = dataset.limit(draw(st.integers(0, 5)))
            case 4:
                dataset = dataset.window_shuffle(3)
            case 5:
                dataset = dataset.map(double)
            case 6:
                dataset = dataset.filter(bool)
            case _:
                dataset = endless(dataset)
    return dataset


def endless(dataset: ps.Dataset) -> ps.Dataset:
    """Return the dataset repeated without end, if it can be."""
    try:
        return dataset.repeat()
    except PenstockError:
        return dataset


def accepts(dataset: ps.Dataset, shard: ps.Shard) -> bool:
    """Return whether a loader takes a dataset for a shard."""
    try:
        ps.Loader(dataset, shard=shard).close()
    except PenstockError:
        return False
    return True


def test_a_choice_above_a_shuffle_is_explained() -> None:
    """It has the same elements in every epoch, as a limit above batches has."""
    for dataset in (ps.range(8).shuffle().take(4), ps.range(8).shuffle().limit(4)):
        assert section(dataset, "randomness")[-1].startswith(
            "take(4) has the same elements in every epoch; their order: stream 'reorder', seed "
        )


def test_a_choice_of_a_mixture_is_explained() -> None:
    """It is shuffled after the first epoch, and keeps its elements."""
    assert section(MIXED.take(8), "mixtures") == (
        *section(MIXED, "mixtures"),
        "  take(8) has the same elements in every epoch; after epoch 0 they are shuffled",
    )


@given(batches())
def test_every_step_is_named(dataset: ps.Dataset) -> None:
    """The tree is on the left; beside each step are its way of reading and its worker.

    A step is read in order exactly where its length is unknown, from this step or one below it.
    """
    explanation = dataset.explain(evaluate=False)
    assert [line for line, _, _ in explanation.steps] == repr(dataset).splitlines()
    assert len({str(explanation), repr(explanation)}) == 1
    shown = str(explanation).splitlines()
    for row, (line, reading, worker) in zip(shown, explanation.steps, strict=False):
        assert row.startswith(line)
        assert row.endswith(worker)
        assert reading in row
    assert all(line.strip() in str(explanation) for _, lines in explanation.sections for line in lines)
    for line, reading, worker in explanation.steps:
        if line.endswith("in order only"):
            assert reading.startswith("in order")
        elif not line.endswith("endless"):
            assert reading == "has positions"
        assert worker in {"any worker", "one thread"}
    readings = {reading for _, reading, _ in explanation.steps}
    assert "in order" not in readings or "in order from here on" in readings
    if explanation.steps[0][1] == "has positions":
        assert {worker for _, _, worker in explanation.steps} == {"any worker"}


@given(batches())
def test_the_explained_ranks_are_accepted(dataset: ps.Dataset) -> None:
    """Loaders accept exactly the listed numbers of ranks, and need `uneven=True` where it is listed."""
    first, *more = section(dataset, "ranks")
    found = re.match(r"([\d, or]+) ranks (end on the same step|may end on different steps): ", first)
    listed = set(map(int, re.findall(r"\d+", found[1]))) if found else set[int]()
    must_say = found is not None and found[2].startswith("may")
    for count in range(2, 9):
        assert accepts(dataset, ps.Shard(0, count, uneven=True)) == (count in listed)
        assert accepts(dataset, ps.Shard(0, count)) == (count in listed and not must_say)
    assert must_say == any("uneven=True" in line for line in more)


RANKS: dict[str, tuple[ps.Dataset, tuple[str, ...]]] = {
    "positions": (
        ps.range(24).batch(12),
        ("2, 3, 4, 6 or 12 ranks end on the same step: each row's position is known",),
    ),
    "short": (
        ps.range(15).batch(12),
        (
            "2 or 3 ranks end on the same step: each row's position is known",
            'no more ranks than 3: the last batch has 3 rows. remainder="drop" or "pad" lifts this',
        ),
    ),
    "limit": (
        ps.range(15).filter(is_odd).batch(2).map(double).limit(3),
        ("2 ranks end on the same step: after limit(3); one that has fewer raises an error",),
    ),
    "least limit": (
        ps.range(15).filter(is_odd).batch(2).limit(4).map(double).limit(6),
        ("2 ranks end on the same step: after limit(4); one that has fewer raises an error",),
    ),
    "endless": (ps.range(15).filter(is_odd).repeat().batch(2), ("2 ranks end on the same step: the data has no end",)),
    "uneven": (
        ps.range(15).filter(is_odd).batch(2),
        (
            "2 ranks may end on different steps: how many batches each gets is only known after reading",
            "so say limit(n) after the batch, or repeat(), or Shard(rank, count, uneven=True)",
        ),
    ),
    "none": (
        ps.range(15),
        ("can't be cut: there is no batch to share. Use batch(n), or shard(i, count) for a fixed split",),
    ),
    "substitutes": (
        ps.range(16).batch(4).map(double, on_error=ps.Substitute()),
        ("can't be cut: on_error=Substitute(…) of step 'double' is above batch(). Use it before",),
    ),
    "unlike parts": (
        ps.zip(ps.range(15).filter(is_odd), ps.range(15), unequal="shortest").batch(2),
        (
            "can't be cut: the parts of a zip have unlike steps that are done in order: "
            "{'0': 'filter(is_odd)', '1': 'none'}",
        ),
    ),
    "one row": (ps.range(16).batch(1), ("one alone: no number up to 64 divides a batch of 1 rows",)),
}


def test_the_end_of_ranks_is_explained() -> None:
    """The section has the reason, or the remedy."""
    for name, (dataset, lines) in RANKS.items():
        assert section(dataset, "ranks") == lines, name


def streamed() -> list[int]:
    """Return the elements of a stream."""
    return [1, 2, 3]


MIXED = ps.mix({"web": ps.range(100).shuffle(), "code": ps.range(50)}, {"web": 3, "code": 1})
SCHEDULED = ps.mix({"web": ps.range(30), "code": ps.range(3)}, {0: {"web": 1}, 10: {"web": 1, "code": 1}}, stop="all")
LINES: dict[str, tuple[ps.Dataset, str, tuple[str, ...]]] = {
    "plan of positions": (
        ps.range(9).batch(2),
        "plan",
        ("everything is computed by any worker, in blocks: each element follows from its position alone",),
    ),
    "plan of folds": (
        ps.range(9).map(double).filter(is_odd).map(float).window_shuffle(3).batch(2),
        "plan",
        (
            "by any worker, in blocks: read(Range(0, 9, 1)).map(double).filter(is_odd).map(float)",
            "then in order, in one thread: window_shuffle(3), batch(2)",
        ),
    ),
    "plan of steps above folds": (
        ps.range(9).filter(is_odd).window_shuffle(3).batch(2, merge=list).map(len).limit(2),
        "plan",
        (
            "by any worker, in blocks: read(Range(0, 9, 1)).filter(is_odd)",
            "then in order, in one thread: window_shuffle(3), limit(2)",
            "then by any worker, several batches at once: batch(2, merge=list), map(len)",
        ),
    ),
    "plan of a stream": (
        ps.stream(streamed).batch(2),
        "plan",
        ("everything is computed in one thread, in order: a stream has no positions",),
    ),
    "plan of what is done to a stream": (
        ps.stream(streamed).map(double, on_error="skip").map(double).limit(5).batch(2).map(double),
        "plan",
        (
            "in order, in one thread: stream(streamed), map(double, on_error='skip'), limit(5)",
            "then by any worker, several batches at once: map(double#2), batch(2), map(double#3)",
        ),
    ),
    "plan of parts": (
        ps.concatenate([ps.range(9).filter(is_odd), ps.stream(streamed), ps.range(3)]).batch(2),
        "plan",
        (
            "by any worker, in blocks: read(Range(0, 9, 1)).filter(is_odd)",
            "by any worker, in blocks: read(Range(0, 3, 1))",
            "then in order, in one thread: stream(streamed), concatenate(…, …, …), batch(2)",
        ),
    ),
    "plan of many parts": (
        ps.interleave([ps.range(9).filter(is_odd)] * 65),
        "plan",
        ("everything is computed in one thread, in order: there are more than 64 datasets below",),
    ),
    "full batches": (ps.range(8).batch(4), "batches", ("of 4 rows over all ranks", "all are full")),
    "kept": (ps.range(9).batch(4), "batches", ("of 4 rows over all ranks", 'the last has 1 row: remainder="keep"')),
    "dropped": (
        ps.range(10).batch(4, remainder="drop", merge=totals),
        "batches",
        ("of 4 rows over all ranks, merged by totals", 'the last would have 2 rows and is dropped: remainder="drop"'),
    ),
    "padded": (
        ps.range(10).batch(4, remainder="pad"),
        "batches",
        ("of 4 rows over all ranks", 'the last has 2 rows of data and 2 of padding: remainder="pad"'),
    ),
    "shuffled batches": (
        ps.range(10).batch(4).shuffle(),
        "batches",
        ("of 4 rows over all ranks", 'the short one, wherever the steps above put it, has 2 rows: remainder="keep"'),
    ),
    "filtered": (
        ps.range(10).filter(is_odd).batch(4, remainder="drop"),
        "batches",
        ("of 4 rows over all ranks", 'the last is dropped if it is short: remainder="drop"'),
    ),
    "endless": (ps.range(10).repeat().batch(4), "batches", ("of 4 rows over all ranks", "there is no last one")),
    "no batch": (ps.range(10), "batches", ("none: every element is a step",)),
    "state of positions": (
        ps.range(10).shuffle(),
        "state",
        ("of constant size: the next step, and from where batches are counted; going there computes nothing",),
    ),
    "state of folds": (
        ps.range(10).filter(is_odd).window_shuffle(4).batch(2).limit(3),
        "state",
        (
            "a position; no data",
            "window_shuffle(4): the place in a window; up to 4 elements are computed again",
            "limit(3): how many elements came before",
        ),
    ),
    "state of parts": (
        ps.interleave([ps.range(4).filter(is_odd), ps.stream(streamed).flat_map(range)]),
        "state",
        (
            "a position in each of 2 datasets below; no data",
            "stream(streamed): its own state; if it has none, what was read is read again",
            "flat_map(range): which row of an element comes next; that element is computed again",
            "interleave(…, …): how far each of 2 parts was read",
        ),
    ),
    "a mixture": (
        MIXED,
        "mixtures",
        (
            f"mix({{web: …, code: …}}): {len(MIXED)} elements, until the first part ends",
            "  weights: web 3 of 4 (75.0%), code 1 of 4 (25.0%)",
            f"  an epoch takes web 100 of 100, code {len(MIXED) - 100} of 50",
            f"  the first part to end is 'web', after {len(MIXED)} elements",
        ),
    ),
    "a schedule": (
        SCHEDULED,
        "mixtures",
        (
            "mix({web: …, code: …}): 33 elements, until the last part ends",
            "  from element 0 on: web 1 of 1 (100.0%), code 0 of 1 (0.0%)",
            "  from element 10 on: web 1 of 2 (50.0%), code 1 of 2 (50.0%)",
            "  an epoch takes web 30 of 30, code 3 of 3",
        ),
    ),
    "a mixture read in order": (
        ps.mix({"a": ps.range(4).filter(is_odd), "b": ps.range(9)}, stop="all"),
        "mixtures",
        (
            "mix({a: …, b: …}): in order only, until the last part ends",
            "  weights: a 1 of 2 (50.0%), b 1 of 2 (50.0%)",
            "  which part ends first is unknown until it is read",
        ),
    ),
    "one after the other": (
        ps.concatenate([ps.range(1), ps.range(9)]),
        "mixtures",
        ("concatenate(…, …): 10 elements, until the last part ends", "  0 1 element, 1 9 elements"),
    ),
    "nothing random": (ps.range(4).map(double), "randomness", ("nothing is random",)),
}


def test_each_section_is_explained() -> None:
    """The section's lines follow from the dataset alone."""
    for name, (dataset, title, lines) in LINES.items():
        assert section(dataset, title)[: len(lines)] == lines, name


def test_the_end_of_a_part_is_explained() -> None:
    """A mixture that continues without a part has used all of it before the stated position."""
    (line,) = (line for line in section(SCHEDULED, "mixtures") if "first part to end" in line)
    found = re.fullmatch(r"  the first part to end is 'code', after (\d+) elements", line)
    assert found is not None
    end = int(found[1])
    codes = [origin.component == "code" for origin in SCHEDULED.map_with_origin(lambda _, origin: origin)]
    assert sum(codes[:end]) == 3
    # The part "code" has no more elements: only elements of the other part follow.
    assert not any(codes[end:])


def test_random_streams_are_named_with_their_seeds() -> None:
    """Each random step shows its stream's name and seed, and the source shows the dataset's seed."""
    dataset = ps.range(9, seed=5).shuffle().random_map(noisy).random_map(noisy, name="second").window_shuffle(3)
    lines = section(dataset, "randomness")
    assert lines[0] == "read(Range(0, 9, 1)): seed 5"
    names = [re.fullmatch(r".*: stream '(.*)', seed (\d+)", line) for line in lines[1:]]
    assert [found[1] for found in names if found] == ["shuffle", "noisy", "second", "window_shuffle"]
    assert len({found[2] for found in names if found}) == 4
    assert lines != section(ps.range(9, seed=6).shuffle(), "randomness")


def test_the_element_is_shown_by_its_leaves() -> None:
    """Each leaf of the first element has a path and a kind; `evaluate=False` computes none."""
    calls: list[int] = []

    def traced(number: int) -> dict[str, Any]:
        calls.append(number)
        return {"label": number, "name": "a"}

    dataset = ps.range(9).map(traced)
    assert section(dataset, "element") == ("not computed: evaluate=False",)
    assert calls == []
    assert dict(dataset.explain().sections)["element"] == ("['label']: int64", "['name']: str")
    assert calls == [0]
    assert dict(ps.range(0).explain().sections)["element"] == ("there is none",)


def fails(number: int) -> int:
    """Raise a user's error."""
    raise RuntimeError(f"no such thing as {number}")


BROKEN: tuple[ps.Dataset, ...] = (
    ps.range(4).map(fails),
    ps.range(4).filter(fails).batch(2),
    ps.stream(lambda: (fails(number) for number in [0])),
)


def test_errors_are_shown() -> None:
    """A user's error is part of the explanation, with its notes, beside the other sections."""
    for dataset in BROKEN:
        first, note = dict(dataset.explain().sections)["element"]
        assert first == "the first can't be computed: RuntimeError: no such thing as 0"
        assert note.startswith("in ")
        assert len(dataset.explain().sections) >= 6


def test_the_contents_of_caches_are_explained(tmp_path: Path) -> None:
    """The number of elements and bytes in memory and on disk excludes the explanation's own element."""
    for where in (None, tmp_path):
        dataset = ps.range(4).map(double).cache(where)
        (line,) = dict(dataset.explain().sections)["caches"]
        assert ": 0 of 4 elements, 0 bytes are kept" in line
        assert len(list(dataset)) == 4
        (line,) = section(dataset, "caches")
        found = re.search(r": 4 of 4 elements, ([\d,]+) bytes are kept", line)
        assert found is not None
        assert int(found[1].replace(",", "")) > 0


def test_explanations_are_values() -> None:
    """Equal datasets have equal, immutable explanations; notebooks show the same text."""
    explanation = ps.range(4).map(double, name="<b>").explain()
    assert {explanation: 1}[ps.range(4).map(double, name="<b>").explain()] == 1
    with pytest.raises(AttributeError):
        setattr(explanation, "steps", ())  # noqa: B010 - the checkers refuse a plain assignment
    html = str(getattr(explanation, "_repr_html_")())  # noqa: B009 - the protocol of notebooks has an underscore
    assert html.startswith("<pre>map(&lt;b&gt;): 4 ")
    assert html.endswith("</pre>")


def test_a_batch_of_texts_is_one_line() -> None:
    """The explanation names a list of texts once, with its length, and not each text."""
    dataset = ps.range(40).map(lambda number: {"text": str(number), "raw": b"x", "number": number}).batch(16)
    assert dict(dataset.explain().sections)["element"] == (
        "['text']: list of 16 str",
        "['raw']: list of 16 bytes",
        "['number']: int64 of shape (16,)",
    )
