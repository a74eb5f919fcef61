"""Any step is shown as training has seen it, and what is shown survives crashes, full disks and huge elements."""

import errno
import json
import os
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as ps
from penstock._tree import flatten
from tests.cli.command import main
from tests.observe.steps import die_once, element, is_odd, turn
from tests.places import LINUX, in_places
from tests.programs.forked import outcome

NUMBERS = 48
STEPS = 9


NUMBERED = ps.range(NUMBERS, seed=7).shuffle()
DATASETS: dict[str, ps.Dataset[Any]] = {
    "in any order": NUMBERED.map(element).random_map(turn).batch(8),
    "in order": NUMBERED.filter(is_odd).map(element).random_map(turn).batch(4),
    "packed": NUMBERED.map(lambda number: np.full(3 + number % 5, number)).pack(16).batch(3),
    "mixed": ps.mix({"a": NUMBERED.map(element), "b": NUMBERED.map(element)}, {"a": 3, "b": 1}, seed=7).batch(8),
}


def digest(batch: Any) -> tuple[bytes, ...]:
    """Return the bytes of a batch's leaves."""
    return tuple(np.asarray(leaf).tobytes() for leaf in flatten(batch)[0])


@pytest.mark.each_value
@pytest.mark.parametrize("name", DATASETS)
@in_places("inline", "threads", "processes", "isolated")
def test_a_step_is_shown_with_the_bytes_that_training_logged(name: str, place: dict[str, Any]) -> None:
    """A training logs the bytes of its batches; each of its steps, looked at afterwards, has the same."""
    with ps.Loader(DATASETS[name], **place) as loader:
        logged = [digest(batch) for batch in islice(chain.from_iterable(repeat(loader)), STEPS)]
        looks = [loader.look(step) for step in range(STEPS)]
    assert [digest(look.batch) for look in looks] == logged
    assert len(set(logged)) == STEPS
    for look in looks:
        if "number" in look.batch:  # a packed row has several records
            assert look.batch["number"].tolist() == [origin.key for origin in look.origins]


def readable(number: int) -> int:
    """Return a number, unless it is divisible by four."""
    if number % 4 == 0:
        raise ValueError("corrupt")
    return number


REPLACED = NUMBERED.map(readable, on_error=ps.Substitute(32))


@pytest.mark.parametrize(
    "dataset",
    [
        REPLACED.batch(16),
        REPLACED.filter(is_odd).batch(16),
        REPLACED.batch(2).unbatch().shuffle().batch(16),
        ps.mix({"a": REPLACED, "b": NUMBERED}, {"a": 3, "b": 1}).shuffle().batch(16),
    ],
    ids=["in any order", "in order", "with rows of batches", "mixed"],
)
def test_a_row_that_was_replaced_names_the_record_in_its_place(dataset: ps.Dataset[Any]) -> None:
    """Each row, alone and in its batch, is of the record that it names; of a failing one that is the substitute's."""
    loader = ps.Loader(dataset)
    look = loader.look(0)
    for row, (number, origin) in enumerate(zip(look.batch.tolist(), look.origins, strict=True)):
        fails = origin.component != "b" and origin.key % 4 == 0
        assert (number == origin.key) != fails
        assert origin.record.startswith(f"key {origin.key} (replaced in step 'readable'" if fails else f"key {number}")
        assert origin.record.endswith(f"key {number})" if fails else f"key {number}")
        if "cursor" not in loader.state_dict():  # not read in order
            alone = loader.look(0, row=row)
            assert (alone.batch, alone.origins[0].record) == (number, origin.record)


@LINUX
def test_a_trace_is_written_after_a_worker_was_killed(tmp_path: Path) -> None:
    """The killed worker wrote its times into memory of the trainer's, and the one that follows continues them."""
    dataset = ps.range(NUMBERS).map(partial(die_once, str(tmp_path / "marker")), name="die").map(element).batch(2)
    with ps.Loader(dataset, num_workers=2, workers="processes") as loader:
        assert len(list(loader)) == NUMBERS // 2
        loader.trace(tmp_path / "trace.json")
        assert loader.stats()["worker_restarts"] == 1
        assert {step.name for step in loader.report().steps} >= {"die", "element"}
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} >= {"training"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device of a full disk")
def test_a_full_disk_is_an_error_that_leaves_the_loader_as_it_is() -> None:
    """The error names the reason, and the next batch is the one that would have come."""
    with ps.Loader(ps.range(NUMBERS).batch(4)) as loader:
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2, 3]
        for show in (loader.report().html, loader.look(3).html, loader.trace):
            with pytest.raises(OSError, match="No space left") as raised:
                show("/dev/full")
            assert raised.value.errno == errno.ENOSPC
        assert next(batches).tolist() == [4, 5, 6, 7]


many = ps.range(2).map(lambda number: {f"leaf {leaf}": leaf + number for leaf in range(10_000)})


def test_an_element_of_ten_thousand_leaves_is_shown_in_part(capsys: pytest.CaptureFixture[str]) -> None:
    """A text and a page have the first leaves, and say how many there are beyond."""
    with ps.Loader(many) as loader:
        look = loader.look(1)
        assert str(look).endswith("… 9,936 more leaves")
        page = look.html()
    assert page.count("<td") == 64
    assert "and 9,936 more leaves" in page
    assert main(["look", f"{__name__}:many", "--step", "1"]) == 0
    assert "['leaf 63']" in capsys.readouterr().out


@LINUX
@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can start another user's program")
@pytest.mark.usefixtures("forked_programs")
def test_another_users_program_is_refused() -> None:
    """A user can't watch another one's process, and the message says what to do."""
    ended = outcome(f"""
        import os, sys
        import penstock._cli.watch
        from tests.cli.command import main
        os.setuid(65534)
        sys.exit(main(["watch", "{os.getpid()}"]))
    """)
    assert ended.returncode == 2, ended.stderr
    assert f"process {os.getpid()} is another user's, or protected" in ended.stderr


def test_a_step_may_be_a_number_of_any_type() -> None:
    """Also one that has no text with separators, as a tensor of one number."""

    class Step:
        def __index__(self) -> int:
            return 1234

    step: Any = Step()
    loader = ps.Loader(ps.range(8).batch(4))
    assert str(loader.look(step)) == str(loader.look(1234))
