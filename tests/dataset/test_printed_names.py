"""Names of functions, files and keys can't steer the terminal that prints them."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock as ps
from penstock._cli.terminal import explain_error
from penstock.errors import GraphError
from penstock.pipeline import PipelineBuilder
from tests.cli.command import main

Output = pytest.CaptureFixture[str]
BAD = "red\x1b[31m\nline\x9b2J\u202etxt"
SHOWN = "red�[31m line�2J�txt"


def named(name: str) -> Callable[[Any], Any]:
    """Return a function with a name of any characters."""

    def function(element: Any) -> Any:
        return element

    function.__name__ = function.__qualname__ = name
    return function


class Hostile:
    """A source whose texts have control characters."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, key: int) -> int:
        return range(8)[key]

    def __repr__(self) -> str:
        return BAD

    def describe_key(self, key: int) -> str:
        """Return a text about a key."""
        return f"{BAD} {key}"


def check(text: str, *expected: str) -> None:
    """Check that a text has others, and no control characters but its own ends of lines."""
    assert [line for line in text.split("\n") if not line.isprintable()] == []
    for each in expected or (SHOWN,):
        assert each in text


def test_texts_of_datasets_and_loaders_show_the_names_of_functions_as_one_line() -> None:
    """The tree, the chain in messages, `explain`, `show`, a loader's repr and its report replace control characters."""
    dataset = ps.read(Hostile()).map(named(BAD)).filter(named(f"filter {BAD}")).batch(2, merge=named(f"merge {BAD}"))
    check(str(dataset), f"map({SHOWN})", f"filter(filter {SHOWN})", f"merge=merge {SHOWN}", f"read({SHOWN})")
    assert len(str(dataset).splitlines()) == 4
    check(str(dataset.explain()), f"map({SHOWN})", f"merged by merge {SHOWN}")
    check(str(dataset.show()))
    with pytest.raises(GraphError) as caught:
        dataset.shuffle()
    check(str(caught.value))
    with ps.Loader(dataset, num_workers=1, workers="threads") as loader:
        list(loader)
        assert f"map({SHOWN})" in [step.text for step in loader.report().steps if step.name == BAD]  # of seeds
        check(repr(loader))
        check(str(loader.report()), "to change: ")


def test_names_of_parts_and_functions_that_open_streams_are_shown_as_one_line() -> None:
    """So are the names of a mixture's parts, and of a function that opens a stream."""
    parts = ps.mix({BAD: ps.range(4), "other": ps.range(4)})
    check(f"{parts}\n{parts.explain()}", f"{SHOWN}: read(Range(0, 4, 1))")

    def opened() -> list[int]:
        return [1, 2]

    opened.__qualname__ = BAD
    check(f"{ps.stream(opened)}", f"stream({SHOWN})")


def test_an_error_that_explain_shows_is_one_line() -> None:
    """The message and the notes of an error in the first element are lines of `explain`."""

    def failing(number: int) -> int:
        message = f"no {BAD} {number}"
        raise ValueError(message)

    lines = str(ps.read(Hostile()).map(failing).explain()).splitlines()
    check("\n".join(lines), f"ValueError: no {SHOWN} 0", f"key 0 ({SHOWN} 0)")


def test_a_file_whose_name_has_control_characters_is_shown_as_one_line(tmp_path: Path, capsys: Output) -> None:
    """So is it by a dataset, `look`, an error's notes, and the commands `index`, `lint` and `inspect`."""
    path = tmp_path / f"{BAD}.jsonl"
    path.write_text('{"a": 1}\n' * 4)
    dataset = ps.read(str(path)).batch(2)
    check(f"{dataset}\n{dataset.explain()}", "JsonLines")
    with ps.Loader(dataset) as loader:
        check(str(loader.look(0)), "row 1, key 1")
        path.with_suffix(".json").write_text(json.dumps({BAD: loader.state_dict()}))
    failing = ps.read(str(path)).map(lambda record: record["missing"])
    with pytest.raises(KeyError) as caught:
        failing[1]
    screen = io.StringIO()
    explain_error(screen, caught.value)
    check(screen.getvalue(), "key 1")
    capsys.readouterr()
    for command in (["index", str(path)], ["lint", str(path)], ["inspect", str(path.with_suffix(".json"))]):
        assert main(command) == 0
        check(capsys.readouterr().out, "red")


def test_pipelines_show_names_of_stages_as_one_line() -> None:
    """The texts of a pipeline and its report replace control characters, of given names too."""
    builder = PipelineBuilder().add_source(range(4)).pipe(named(BAD)).pipe(named("f"), name=f"own {BAD}").add_sink()
    with builder.build(num_threads=1, statistics=True).auto_stop() as pipeline:
        list(pipeline)
        check(f"{pipeline!r}\n{pipeline.report()}", SHOWN, f"own {SHOWN}")
    config = builder.get_config()
    check(f"{builder!r}\n{config!r}\n{config}", SHOWN, f"own {SHOWN}")
