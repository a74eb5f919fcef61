"""Hypothesis strategies that draw random stage graphs."""

from typing import Any, Literal

from hypothesis import strategies as st

from tests.pipeline.meaning.graphs import KINDS, Branch, Graph, Group, Items, StageValue, Step, Ungroup

FAIL_POINTS = st.frozensets(st.integers(0, 45), min_size=1, max_size=3)
MAX_GENERATORS = 2  # each may double the items


@st.composite
def graphs(draw: Any, *, failing: bool, ordered: bool | None = None) -> Graph:
    """Draw a pipeline: with or without failing stages and sources; with a fixed order, a free one, or either."""
    in_order: bool = draw(st.booleans()) if ordered is None else ordered
    drawing = _Drawing(draw, failing=failing, ordered=in_order)
    sources = drawing.sources()
    stages = drawing.stages(draw(st.integers(0, 5)), depth=0)[0]
    merge: Literal["turns", "arrival"] = "turns" if in_order else draw(st.sampled_from(["turns", "arrival"]))
    return Graph(sources, stages, merge, buffer_size=draw(st.integers(1, 5)))


class _Drawing:
    """The state of drawing one graph."""

    def __init__(self, draw: Any, *, failing: bool, ordered: bool) -> None:
        self._draw = draw
        self._failing = failing
        self._ordered = ordered
        self._count = 0
        self._generators = 0

    def sources(self) -> tuple[Items, ...]:
        count = self._draw(st.sampled_from([1, 1, 1, 2, 3]))
        return tuple(self._source(number) for number in range(count))

    def _source(self, number: int) -> Items:
        first, count = 300 * number, self._draw(st.sampled_from([0, 1, 2, 5, 17, 40, 250]))
        fails = self._failing and self._draw(st.sampled_from([False, False, True]))
        return Items(
            first,
            count,
            form=self._draw(st.sampled_from(["list", "iterable", "async"])),
            nones=self._draw(st.frozensets(st.integers(first, first + 20), max_size=2)),
            fails_at=first + self._draw(st.integers(0, 45)) if fails else None,
        )

    def stages(self, count: int, depth: int, *, on_a_path: bool = False) -> tuple[tuple[StageValue, ...], int]:
        found: list[StageValue] = []
        for _ in range(count):
            stage = self._stage(depth, on_a_path=on_a_path)
            found.append(stage)
            depth += isinstance(stage, Group) - isinstance(stage, Ungroup)
        return tuple(found), depth

    def _stage(self, depth: int, *, on_a_path: bool) -> StageValue:
        choices = ["step"] * 4 + ["group"] * (depth < 2) + ["ungroup"] * (2 * (depth > 0))
        choices += ["branch"] * (not on_a_path)
        match self._draw(st.sampled_from(choices)):
            case "step":
                return self._step()
            case "group":
                count, drop_last = self._draw(st.integers(1, 7)), self._draw(st.booleans())
                return Group(count, drop_last, by_aggregator=self._draw(st.booleans()))
            case "ungroup":
                return Ungroup()
            case _:
                return self._branch(depth)

    def _step(self) -> Step:
        kinds = KINDS if self._generators < MAX_GENERATORS else ["sync", "async", "lookup"]
        kind = self._draw(st.sampled_from(kinds))
        self._generators += "generator" in kind
        concurrency = self._draw(st.sampled_from([1, 1, 2, 3, 8]))
        order = self._draw(st.sampled_from(["input", "completion"]))
        if kind == "async generator":
            order = "completion"
        if self._ordered and order == "completion":
            concurrency = 1
        return Step(
            self._next_number(),
            kind,
            concurrency,
            order,
            leaves_out=self._draw(st.booleans()),
            fails_at=self._fail_points(),
            max_items=self._draw(st.sampled_from([None, None, 1, 2])),
        )

    def _branch(self, depth: int) -> Branch:
        number = self._next_number()
        count = 1 if self._ordered else self._draw(st.integers(1, 3))
        paths: list[tuple[StageValue, ...]] = []
        for _ in range(count):
            path, after = self.stages(self._draw(st.integers(0, 2)), depth, on_a_path=True)
            # The outputs of all paths need the same depth.
            for _ in range(after, depth):
                path = (*path, Group(2))
            for _ in range(depth, after):
                path = (*path, Ungroup())
            paths.append(path)
        return Branch(number, tuple(paths), fails_at=self._fail_points(), awaits=self._draw(st.booleans()))

    def _fail_points(self) -> frozenset[int]:
        if not self._failing or self._draw(st.sampled_from([True, True, False])):
            return frozenset()
        points: frozenset[int] = self._draw(FAIL_POINTS)
        return points

    def _next_number(self) -> int:
        self._count += 1
        return self._count
