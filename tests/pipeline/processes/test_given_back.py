"""A call in an executor that ends early: its other items are taken by any lane at once."""

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest

from penstock.pipeline._channels import Channel
from penstock.pipeline._executor_stage import ExecutorStage, Remote
from penstock.pipeline._items import FailureLimit
from penstock.pipeline._processes._chunks import Outcome, Values
from penstock.pipeline._running_stage import StageSetup
from tests.pipeline.running.reading import PATIENCE_SECONDS

CHUNK = 4
Outcomes = Future[list[Outcome]]


class _Scripted:
    """An executor of the test's, whose calls end when the test says so."""

    repeatable = False
    number = 0  # of the call that began last

    def send(self, op: Any, items: list[Any], *, flatten: bool) -> Outcomes:
        del op, flatten
        self.number += 1
        call = Outcomes()
        self.begin(call, items)
        return call

    def begin(self, call: Outcomes, items: list[Any]) -> None:
        raise NotImplementedError

    def step(self, values: Values) -> Outcomes:
        raise NotImplementedError

    def close(self, values: Values) -> Future[object]:
        raise NotImplementedError

    def explain(self, error: BaseException) -> BaseException:
        return error


class _EndsInAnOddOrder(_Scripted):
    """Holds the first two calls until a third lane waits for its turn; then the second call ends early."""

    def __init__(self) -> None:
        self._held: list[tuple[Outcomes, list[Outcome]]] = []

    def begin(self, call: Outcomes, items: list[Any]) -> None:
        outcomes: list[Outcome] = [(True, item) for item in items]
        if self.number not in {1, 2, 6}:
            call.set_result(outcomes)
            return
        self._held.insert(0, (call, outcomes[:1] if self.number == 2 else outcomes))
        if self.number == 6:
            asyncio.get_running_loop().call_soon(self._release)

    def _release(self) -> None:
        for call, outcomes in self._held:  # the sixth call, the second, and the first
            call.set_result(outcomes)


class _WaitsForAnotherCall(_Scripted):
    """Begins a generator for the first item alone, and continues it when another call takes the other items."""

    def __init__(self) -> None:
        self._step: Outcomes = Future()

    def begin(self, call: Outcomes, items: list[Any]) -> None:
        if self.number == 1:
            call.set_result([(True, Values([(True, items[0])], token=7))])
        else:
            call.set_result([(True, Values([(True, item)])) for item in items])
            if not self._step.done():  # on a busy machine the other items come in several calls
                self._step.set_result([(True, Values([(True, "more")]))])

    def step(self, values: Values) -> Outcomes:
        assert values.token == 7
        return self._step


async def results_of(remote: Remote, count: int, *, concurrency: int, ordered: bool, flatten: bool) -> list[Any]:
    """Return the results of a stage whose executor gets up to four items at a time."""
    channel, output = Channel(max_items=CHUNK), Channel(max_items=10 * count)
    setup = StageSetup("op", concurrency, channel, output, FailureLimit(0, lambda _: None), None)
    stage = ExecutorStage(setup, lambda item: item, remote, ordered=ordered, flatten=flatten)
    stage.learn(1000, 0.0001)

    async def put() -> None:
        await channel.put_all([*range(count)])
        channel.end(None)

    async with asyncio.timeout(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        group.create_task(put())
        group.create_task(stage.run())
    return await output.take(10 * count)


def test_items_are_given_back_before_a_lane_waits_for_its_turn() -> None:
    """A lane whose call ended early, and that waits for its turn, doesn't keep the item whose turn comes next."""
    found = asyncio.run(results_of(_EndsInAnOddOrder(), 100, concurrency=3, ordered=True, flatten=False))
    assert found == [*range(100)]


@pytest.mark.parametrize("ordered", [False, True])
def test_items_are_given_back_while_a_generator_runs(*, ordered: bool) -> None:
    """The items behind one whose generator takes long are taken by another lane."""
    found = asyncio.run(results_of(_WaitsForAnotherCall(), CHUNK, concurrency=2, ordered=ordered, flatten=True))
    expected = [0, "more", 1, 2, 3]
    assert (found if ordered else sorted(found, key=expected.index)) == expected
