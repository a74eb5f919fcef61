"""A loader's report names what limits it, predicts what would help, and shows it as text, numbers and a page."""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._os import Bell
from penstock.observe import Report, StepReport
from tests.loader.placing.loaders import PlacedLoader
from tests.observe.steps import LONG, AsyncSource, SlowSource, compute, stack_slowly, wait
from tests.places import PLACES, in_places, place_of

PAUSE = threading.Event()  # never set: waiting for it simulates work that leaves the processor to others
BATCH = 4


def wait_and_note(taken: list[float], element: Any) -> Any:
    """Return the element after a while, and note its seconds: on a busy machine it takes longer."""
    began = time.perf_counter()
    wait(element)
    taken.append(time.perf_counter() - began)
    return element


def wait_rarely(number: int) -> int:
    """Return the number; one in twenty after a long wait."""
    PAUSE.wait(0.0003 if number % 20 else 0.05)
    return number


class SlowPlacing(PlacedLoader):
    """A loader whose batches take a while to place."""

    _ahead = 1

    def _place(self, batch: Any) -> Callable[[], Any]:
        placed = wait(batch)
        return lambda: placed


NUMBERS = ps.range(72, seed=7).shuffle()
FAULTS: dict[str, ps.Dataset[Any]] = {
    "read": ps.read(SlowSource()).map(abs).batch(BATCH),
    "wait": NUMBERS.map(abs).map(wait).batch(BATCH),
    "compute": NUMBERS.map(compute).map(abs).batch(BATCH),
    "batch": NUMBERS.map(abs).batch(BATCH, merge=stack_slowly),
    "wait, of batches": NUMBERS.map(abs).batch(BATCH).map(wait),
    "wait, before a step in order": NUMBERS.map(wait).window_shuffle(8).batch(BATCH),
    "the consumer": NUMBERS.map(abs).batch(BATCH),
}
"""Datasets with a planted fault, by the verdict."""


def observed(make: Callable[[], ps.Loader[Any]], verdict: str, seconds: float = 0.0) -> Report:
    """Return the report of an epoch whose consumer takes some time for each batch, which should have a verdict.

    On a busy machine one worker may get so little of a processor that it is what limits, or that more of them would
    help threads that wait for the lock, so there are three tries.
    """
    report = Report(())
    for _ in range(3):
        with make() as loader:
            for _ in loader:
                PAUSE.wait(seconds)
            report = loader.report()
        is_blurred = report.lock_wait_seconds and "num_workers" in report.advice
        if (report.bottleneck or "").startswith(verdict) and not is_blurred:
            break
    assert (report.bottleneck or "").startswith(verdict), str(report)
    return report


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        place_of("processes", "read"),
        place_of("inline", "wait"),
        place_of("threads", "compute"),
        place_of("processes", "compute"),
        place_of("inline", "batch"),
        pytest.param("batch", PLACES["threads"], id="threads, batch", marks=pytest.mark.long),  # another combination
        place_of("processes", "wait, of batches"),
        place_of("threads", "wait, before a step in order"),
        place_of("inline", "the consumer"),
        pytest.param("the consumer", PLACES["threads"], id="threads, consumer", marks=pytest.mark.long),
    ],
)
def test_the_verdict_names_the_planted_fault(fault: str, place: dict[str, Any]) -> None:
    """Whatever is slow, and wherever it is computed, the report names it as the bottleneck."""
    verdict, seconds = fault.partition(",")[0], 0.04 if fault == "the consumer" else 0.0
    report = observed(lambda: ps.Loader(FAULTS[fault], prefetch=4, **place), verdict, seconds)
    if seconds:
        assert report.consumer_seconds >= seconds
        assert report.advice.startswith("nothing")
    else:
        if report.lock_wait_seconds:  # threads wait for the lock in other steps
            assert 'pass workers="processes"' in report.advice
        else:
            assert max(report.steps, key=lambda step: step.seconds).name == verdict
        assert max(report.what_if, key=lambda each: each.times).times > 1


STRAGGLERS = ps.range(256).map(wait_rarely).batch(BATCH)
BIG = ps.range(64).map(lambda number: np.full(8192, wait(number))).batch(BATCH)


@pytest.mark.parametrize(
    ("cause", "make"),
    [
        ("stragglers", lambda: ps.Loader(STRAGGLERS, prefetch=4, num_workers=4, workers="threads")),
        ("memory", lambda: ps.Loader(BIG, num_workers=16, workers="threads", memory=600_000)),
        ("placing", lambda: SlowPlacing(FAULTS["the consumer"])),
        ("placing", lambda: SlowPlacing(FAULTS["the consumer"], **PLACES["threads"])),
    ],
)
def test_limits_beside_the_steps_are_named(cause: str, make: Callable[[], ps.Loader[Any]]) -> None:
    """Batches ahead that all have a slow record, memory for no further batch, and slow placing, also inline."""
    report = observed(make, cause)
    assert report.what_if[0].times > 1
    if cause == "placing":
        assert dict(report.waits)["placing"] > 16 * LONG


@in_places("threads", "isolated")
def test_each_step_that_is_read_in_order_has_its_own_time(place: dict[str, Any]) -> None:
    """Steps of several kinds are slow, and each has its share, wherever the one thread is that runs them all."""
    stream = ps.stream(lambda: map(wait, range(24))).map(wait).flat_map(lambda number: [number, number])
    stream = stream.filter(lambda number: wait([number]) != [], name="filter").window_shuffle(8)
    with ps.Loader(stream.batch(BATCH, merge=stack_slowly).limit(3), **place) as loader:
        assert len(list(loader)) == 3
        report = loader.report()
    slow = ["stream", "wait", "filter", "batch"]
    assert [step.name for step in report.steps if step.name in slow or step.share >= 0.1] == slow, str(report)
    assert all(step.seconds >= LONG for step in report.steps if step.name in slow), str(report)
    assert [step.name for step in report.steps if not step.is_in_order] == ["batch"]  # workers can merge rows
    assert f"one thread runs {report.bottleneck!r} in order" in report.advice


@pytest.mark.parametrize("rows", [1, BATCH])
def test_functions_in_a_mixture_have_their_own_times_where_a_batch_has_few_rows_of_each_part(rows: int) -> None:
    """Rows of which a batch has one of each part are computed one by one; the time is the slow function's."""
    numbers = ps.range(2, seed=1).shuffle()
    parts = {str(number): numbers.map(wait if number else abs) for number in range(BATCH)}
    mixed = ps.mix(parts, dict.fromkeys(parts, 1)).batch(rows)
    report = observed(lambda: ps.Loader(mixed), "wait")  # equal names are numbered, and so are the texts
    texts = {step.name: step.text for step in report.steps}
    assert len(set(texts.values())) == len(texts), str(report)
    assert texts["wait 2"] == "map(wait) 2"
    assert sum(step.share for step in report.steps if step.name.startswith("wait")) > 0.5, str(report)


@pytest.mark.parametrize(
    ("read_ahead", "step", "verdict", "place"),
    [place_of("processes", 2, abs, "read"), place_of("threads", 72, wait, "wait")],
)
def test_waits_for_records_are_told_from_computation(
    read_ahead: int, step: Callable[[int], int], verdict: str, place: dict[str, Any]
) -> None:
    """Storage is the cause where workers wait for records longest, and no such wait is time of a processor."""
    limits = ps.Limits(read_ahead=read_ahead)
    dataset = ps.read(AsyncSource()).map(step).batch(BATCH)
    report = observed(lambda: ps.Loader(dataset, prefetch=4, limits=limits, **place), verdict)
    waits = dict(report.waits)
    assert (waits.get("storage", 0.0) > waits.get("workers", 0.0)) == (verdict == "read"), str(report)
    assert all((each.cpu_share or 0.0) < 0.5 for each in report.steps if each.name == "read"), str(report)


@in_places("isolated", "isolated processes")
def test_steps_of_an_isolated_loader_have_times(place: dict[str, Any], tmp_path: Path) -> None:
    """The helper process and its workers write them where the trainer reads them, also for a trace."""
    with ps.Loader(ps.range(72).map(wait).batch(BATCH), prefetch=4, **place) as loader:
        seconds, report = [0.0], loader.report()
        began = time.perf_counter()
        for _ in range(2):
            assert len(list(loader)) == 18
            report = loader.report()
            assert (report.bottleneck, report.workers) == ("wait", 1), str(report)
            seconds.append(report.steps[1].seconds * report.batches)
        assert [step.name for step in report.steps] == ["read", "wait", "batch"]
        assert report.steps[1].seconds >= BATCH * LONG
        assert seconds[-1] <= time.perf_counter() - began
        assert seconds == sorted(seconds)
        assert dict(report.waits).keys() & {"workers", "start"}
        loader.trace(tmp_path / "trace.json")
        assert '"helper process, ' in (tmp_path / "trace.json").read_text()


def test_functions_of_batches_are_timed_apart_from_cheap_reads() -> None:
    """Of cheap reads some are timed, for others that were not done yet; the time of a batch is still that of one."""
    taken: list[float] = []
    waits = partial(wait_and_note, taken)
    with ps.Loader(ps.range(4096).batch(BATCH).map(waits, name="waits")) as loader:
        for number, _ in enumerate(loader):
            if number == 20:
                break
        step = loader.report().steps[-1]
    assert step.name == "waits"
    assert LONG <= step.seconds < 1.5 * max(taken)


@in_places("inline", "threads")
def test_filling_planned_sequences_is_time_of_their_step(place: dict[str, Any]) -> None:
    """Sequences that are filled straight into the batch take time of `pack`, and hardly any of the batch.

    On a busy machine another program may have the processor just then, but not each time.
    """
    count, size = 64, 1 << 16
    packed = ps.read([np.zeros(size, np.int64)] * count).pack(size, lengths=[size] * count)

    def is_of_pack() -> bool:
        with ps.Loader(packed.batch(BATCH), **place) as loader:
            assert sum(1 for _ in range(2) for _ in loader) == 2 * count // BATCH
            seconds = {step.name: step.seconds for step in loader.report().steps}
        return seconds["pack"] > 2 * seconds.get("batch", 0)

    assert any(is_of_pack() for _ in range(10))


@in_places("inline", "threads")
def test_elements_that_fill_a_window_are_no_time_of_the_first_batches(place: dict[str, Any]) -> None:
    """The time of a batch is that of its own elements, however many were computed before it was delivered."""
    taken: list[float] = []
    waits = partial(wait_and_note, taken)
    kept = ps.range(96).map(waits, name="waits").filter(lambda number: number % 2 == 0)
    with ps.Loader(kept.window_shuffle(16).batch(BATCH), **place) as loader:
        next(iter(loader))
        report = loader.report()
    (step,) = (step for step in report.steps if step.name == "waits")
    assert len(taken) >= 31
    assert 1.5 * BATCH * LONG <= step.seconds < 3 * BATCH * max(taken), str(report)


def test_many_steps_share_a_time(tmp_path: Path) -> None:
    """The steps above the 256th have one line together, so that none below is blamed for their time."""
    parts = [ps.range(16), ps.range(16)]
    for number in range(258):
        parts[number % 2] = parts[number % 2].map(abs, name=f"add {number}")
    with ps.Loader(ps.zip(parts).map(wait).batch(BATCH)) as loader:
        assert len(list(loader)) == 4
        report = loader.report()
        loader.trace(tmp_path / "trace.json")
    assert report.bottleneck == "other steps"
    assert (report.steps[-1].text, len(report.steps)) == ("7 other steps", 257)
    assert report.steps[-1].seconds >= BATCH * LONG
    text = (tmp_path / "trace.json").read_text()
    assert '"other steps"' in text
    assert '"map(add 255)"' not in text


def test_other_waits_of_the_thread_say_nothing_about_the_lock() -> None:
    """A thread's waits for other things, such as the processes of another loader, don't hide waits for the lock."""
    bell = Bell()
    with ps.Loader(ps.range(64).map(compute_in_python).batch(BATCH), workers="threads", num_workers=1) as loader:
        for _ in range(500):
            bell.wait(0)  # gives the lock up, and has it again at once
        assert len(list(loader)) == 16
        report = loader.report()
    assert report.lock_wait_seconds > 0, str(report)


def compute_in_python(element: Any) -> Any:
    """Return the element after some milliseconds in the interpreter, which passes the GIL on every 5 ms."""
    for _ in range(300_000):
        pass
    return element


def paced(monkeypatch: pytest.MonkeyPatch, batches: int, seconds: Callable[[int], float]) -> Report:
    """Return the report of an epoch whose consumer takes these seconds after each batch, by a clock of its own."""
    now = 100.0
    monkeypatch.setattr("penstock._loader._iterator.perf_counter", lambda: now)
    with ps.Loader(ps.range(batches * BATCH).batch(BATCH)) as loader:
        for number, _ in enumerate(loader):
            now += seconds(number)
        return loader.report()


def test_a_pause_of_the_consumer_counts_in_no_other_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation between two batches is a figure of its own: rate and shares are those of the other steps.

    A training that fetches eight batches, and then works on them, has no pause but its evaluation.
    """
    report = paced(monkeypatch, 16, lambda number: 0.3 if number == 8 else 0.005)
    assert report.pauses == 1
    assert report.pause_seconds == pytest.approx(0.3, rel=0.1)  # durations are kept in buckets
    assert report.elapsed_seconds + report.pause_seconds == pytest.approx(14 * 0.005 + 0.3)
    assert report.consumer_seconds == pytest.approx(report.elapsed_seconds / 14)
    report = paced(monkeypatch, 64, lambda number: (0.0001 if number % 8 != 7 else 0.08) + 3.0 * (number == 39))
    assert report.pauses == 1
    assert report.elapsed_seconds == pytest.approx(7 * 0.08, rel=0.3)
    assert report.consumer_seconds == pytest.approx(0.01, rel=0.3)
    assert not report.slowed_by_threads


def test_reports_grow_while_another_thread_iterates() -> None:
    """A report may be made at any time in any thread; its counts only grow, and its shares are shares."""
    reports = [Report(())]
    with ps.Loader(ps.range(8_000).map(abs).batch(BATCH), num_workers=2, workers="threads") as loader:
        reader = threading.Thread(target=lambda: [None for _ in loader])
        reader.start()
        while reader.is_alive():
            reports.append(loader.report())
        reader.join()
        reports.append(loader.report())
    assert all(before.batches <= after.batches for before, after in pairwise(reports))
    assert reports[-1].batches == 2_000
    for report in reports:
        shares = [report.wait_share, report.busy_share, *(step.share for step in report.steps)]
        assert all(0 <= share <= 1 for share in shares)
        assert report.steps == () or sum(step.share for step in report.steps) == pytest.approx(1)


STEPS = (
    StepReport("read", "read(ImageFolder)", 0.004, 0.05, 0.25, 0.009),
    StepReport("decode", "map(decode)", 0.076, 0.95, 1.0, 0.118),
)
KNOWN: dict[str, Any] = {
    "batches": 250,
    "elapsed_seconds": 10.0,
    "wait_seconds": 6.0,
    "waits": (("workers", 6.0),),
    "work_seconds": 0.08,
    "consumer_seconds": 0.016,
    "processors": 8,
}


def report_of(steps: tuple[StepReport, ...] = STEPS, **figures: Any) -> Report:
    """Return a report of ten seconds in which one step takes most of the work."""
    return Report(steps, **{**KNOWN, **figures})


def processes(count: int, waits: Any = KNOWN["waits"], **figures: Any) -> dict[str, Any]:
    """Return the figures of processes."""
    return {"workers": count, "workers_text": f"{count} processes", "waits": waits, **figures}


def threads(count: int, lock: float, **figures: Any) -> dict[str, Any]:
    """Return the figures of threads that wait for the interpreter's lock."""
    return {"workers": count, "workers_text": f"{count} threads", "batches": 125, "lock_wait_seconds": lock, **figures}


@pytest.mark.parametrize(
    ("figures", "bottleneck", "advice"),
    [
        (processes(2), "decode", r"raise num_workers to 5: up to 2\.5x"),
        (processes(2, processors=2), "decode", r"processors are full"),
        (processes(2, wait_seconds=0.1), "the consumer", r"nothing"),
        (processes(8, wait_seconds=0.1), "the consumer", r"; 3 workers would do$"),
        (processes(8, wait_seconds=1.5), "decode", r"nothing: .* about as long"),
        (processes(2, (("memory", 6.0),)), "memory", r"copy=True"),
        (processes(2, (("stragglers", 4.0), ("workers", 2.0))), "stragglers", r"prefetch"),
        # The workers were busy for half of the time.
        (
            processes(4, (("workers", 3.5), ("stragglers", 2.5))),
            "stragglers",
            r"prefetch.*: up to 2\.0x, then the workers",
        ),
        (processes(4, (("workers", 5.0), ("stragglers", 1.0))), "decode", r"num_workers"),
        (processes(2, (("workers", 3.5), ("stragglers", 2.5))), "decode", r"num_workers"),
        (
            processes(2, (("start", 5.9), ("workers", 0.1))),
            "the consumer",
            r"nothing: .* waits 2% of the time after the first batch of an epoch; first batches take 59%: longer",
        ),
        (processes(2, (("placing", 6.0),)), "placing", r"ahead"),
        (processes(2, (("storage", 6.0),)), "read", r"read_ahead"),
        ({"waits": (("inline", 6.0),)}, "decode", r"num_workers=5: up to"),
        ({"batches": 0, "elapsed_seconds": 0.0, "waits": ()}, None, r"nothing yet"),
        (threads(4, 0.005, work_seconds=0.3), "decode", r'workers="processes"'),
        (threads(1, 0.006, wait_seconds=0.8, consumer_seconds=0.021), "the consumer", r"nothing"),
        (
            threads(1, 0.006, wait_seconds=0.8, consumer_seconds=0.007),
            "decode",
            r'workers="processes" and num_workers=8: .* waits as well, .* 8 processors: up to 8\.\dx, then the',
        ),
        (
            threads(2, 0.03, work_seconds=0.15, wait_seconds=0.1, consumer_seconds=0.079, consumer_p5_seconds=0.016),
            "decode",
            r"num_workers=5: .* lock \(GIL\), for which the training waits as well, .*: up to 4\.9x",
        ),
    ],
)
def test_the_advice_follows_from_the_figures(figures: dict[str, Any], bottleneck: str | None, advice: str) -> None:
    """Each cause of waiting has a verdict and a remedy of its own."""
    report = report_of(**figures)
    assert report.bottleneck == bottleneck
    assert re.search(advice, report.advice), report.advice


@pytest.mark.parametrize(
    ("seconds", "cpu_share", "advice"),
    [
        (0.00015, 1.0, r"make 'decode' cheaper"),
        (0.0008, 1.0, r'compute ahead, with num_workers="auto", which measures .*: up to \d'),
        (0.0008, 0.1, r"compute ahead, with num_workers=8: up to 9.0x"),
    ],
)
def test_workers_are_advised_only_for_batches_that_gain(seconds: float, cpu_share: float, advice: str) -> None:
    """To pass on a batch of microseconds costs more than to make it; what holds the lock gains less than predicted."""
    steps = (StepReport("decode", "map(decode)", seconds, 1.0, cpu_share),)
    batches = int(8 / seconds)
    waits: Any = (("inline", 8.0),)
    report = Report(steps, batches, 8.8, 8.0, waits, consumer_seconds=0.0001, work_seconds=seconds, processors=8)
    assert re.match(advice, report.advice), report.advice


def report_in_order(first: StepReport, second: StepReport, workers: int) -> Report:
    """Return a report of ten seconds; one thread runs the first step in order, and workers run the second one."""
    return Report(
        (first, second),
        batches=950,
        elapsed_seconds=10.0,
        wait_seconds=8.8,
        waits=(("workers", 7.0), ("fold", 1.8)),
        consumer_seconds=0.0013,
        workers=workers,
        workers_text=f"{workers} threads",
        processors=8,
        work_seconds=first.seconds + second.seconds,
        order_seconds=first.seconds,
    )


def test_a_step_in_order_limits_the_rate_however_long_the_others_take() -> None:
    """Six workers share the second step, and no one shares the first; nor is its thread one of the workers."""
    slow = StepReport("flat_map", "flat_map(gen)", 0.01, 0.49, is_in_order=True)
    shared = StepReport("b", "", 0.011, 0.51)
    report = report_in_order(slow, shared, 6)
    assert report.bottleneck == "flat_map"
    assert re.fullmatch(r"one thread runs 'flat_map' in order: move .*: up to 5\.5x, then the workers", report.advice)
    assert report.busy_share == pytest.approx(0.011 * 95 / 6)
    report = report_in_order(slow, shared, 1)
    assert (report.bottleneck, report.advice) == ("b", "raise num_workers to 2: up to 1.1x, then the steps in order")
    shared = replace(shared, seconds=0.0102)
    assert report_in_order(slow, shared, 1).advice == "nothing: the workers and the steps in order take about as long"
    # No map can take the work of a batch that one thread makes in order.
    batch = StepReport("batch", "batch(8)", 0.01, 0.9, is_in_order=True)
    merged = replace(batch, text="batch(8, merge=stack)")
    decode = StepReport("decode", "map(decode)", 0.001, 0.1)
    assert "calls no function of yours" in report_in_order(batch, decode, 2).advice
    assert "move its work into maps" in report_in_order(merged, decode, 2).advice


def test_predictions_follow_the_formula() -> None:
    """The rate is min(1/T, w/D, p/C); a step that costs nothing is taken out of D and C."""
    report = report_of(**processes(2))
    free = {each.change: each for each in report.what_if}
    assert free["decode costs nothing"].times == pytest.approx((1 / 0.016) / (2 / 0.08))
    assert free["decode costs nothing"].then == "the consumer"
    assert free["read costs nothing"].times == pytest.approx(0.08 / 0.076)
    assert free["1 worker more"].batches_per_second == pytest.approx(25 * 1.5)
    assert [each.times for each in report.what_if] == sorted((each.times for each in report.what_if), reverse=True)


@pytest.mark.parametrize(
    ("cause", "change", "step"),
    [
        ("memory", "more memory", None),
        ("placing", "placing costs nothing", None),
        ("stragglers", "more batches ahead", "decode"),
        ("storage", None, "read"),
    ],
)
def test_a_cause_beside_the_formula_limits_the_rate(cause: str, change: str | None, step: str | None) -> None:
    """Without it the rate is the formula's; a free step helps only if it is the cause."""
    report = report_of(**processes(4, ((cause, 6.0),)))
    times = {each.change: each.times for each in report.what_if}
    if change is not None:
        assert times.pop(change) == pytest.approx((4 / 0.08) / 25)
    free = {"decode": (1 / 0.016) / 25, "read": (4 / 0.076) / 25}
    for name, gain in free.items():
        assert times.pop(f"{name} costs nothing") == pytest.approx(gain if name == step else 1.0)
    assert times == {"1 worker more": 1.0}


def test_processes_are_predicted_in_place_of_threads_that_wait_for_the_lock() -> None:
    """Each computes a batch in its processor time; where the steps only wait, the training holds the lock."""
    report = report_of(**threads(4, 0.004, work_seconds=0.3))
    assert "4 threads, busy 94%; 8 processors; a thread waits 4.00 ms for the interpreter's lock (GIL)" in str(report)
    assert report.numbers()["data/lock_wait(s)"] == 0.004
    assert not any(each.kind for each in report_of(**threads(4, 0, work_seconds=0.3)).what_if)
    (as_many,) = (each for each in report.what_if if each.change == "processes")
    assert as_many.times == pytest.approx(4)
    assert as_many.then == "the workers"
    (more,) = (each for each in report.what_if if each.change == "7 processes")
    assert more.times == pytest.approx(0.077 / 0.012)
    assert report.advice.endswith("processes use 7 processors: up to 6.4x, then the consumer")

    step = StepReport("wait", "map(wait)", 0.076, 0.95, 0.01)
    report = report_of((step,), **threads(4, 0.005, consumer_seconds=0.012, consumer_p5_seconds=0.006))
    assert report.consumer_own_seconds == 0.012
    assert not any(each.kind for each in report.what_if)
    assert "lock" not in str(report)


def test_the_text_and_the_numbers_have_the_figures() -> None:
    """The text is the table of the steps, and the numbers are flat floats, by the names that torchtitan uses."""
    report = report_of(**processes(2), wait_p50_seconds=0.021, wait_p99_seconds=0.088)
    assert str(report).splitlines() == [
        "10.0 s, 250 batches, 25.0 a second; the training waited 60% of it (p50 21.0 ms, p99 88.0 ms): workers 100%",
        "step               ms a batch  share  computes   p99  if free",
        "read(ImageFolder)        4.00     5%       25%  9.00  1.1x, then the workers",
        "map(decode)              76.0    95%      100%   118  2.5x, then the consumer",
        "2 processes, busy 100%; 8 processors",
        "bottleneck: decode",
        "to change: raise num_workers to 5: up to 2.5x, then the consumer",
    ]
    numbers = report.numbers()
    assert all(type(number) is float for number in numbers.values())
    assert (numbers["time_metrics/data_loading(%)"], numbers["data/step/decode(ms)"]) == (60.0, 76.0)


def test_the_page_needs_nothing_else_and_escapes_names(tmp_path: Path) -> None:
    """The page has no scripts and refers to no other file; a step's name can't add markup, nor steer a terminal."""
    loader = ps.Loader(ps.range(16).map(wait, name="<script>alert(1)</script>\x1b[31m").batch(BATCH))
    list(loader)
    assert "map(<script>alert(1)</script>�[31m)" in str(loader.report())
    assert "\x1b" not in str(loader.report())
    loader.report().html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;" in page
    assert not re.search(r"<script|https?:|src=|href=|\bon\w+=", page)
    assert "<table>" in vars(ps.Loader)["_repr_html_"](loader)
