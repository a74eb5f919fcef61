"""The tree of errors, on which callers rely: base classes, attributes, and pickling between processes."""

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock as ps
from penstock import errors, events
from tests.programs.forked import outcome

TREE: dict[str, list[type]] = {
    "PenstockError": [Exception],
    "UsageError": [errors.PenstockError, ValueError],
    "GraphError": [errors.UsageError],
    "NoLengthError": [errors.GraphError, TypeError],
    "StateError": [errors.UsageError],
    "AlreadyRunningError": [errors.UsageError, RuntimeError],
    "SourceError": [errors.PenstockError, OSError],
    "CorruptRecordError": [errors.SourceError],
    "WorkerError": [errors.PenstockError, RuntimeError],
    "PeerError": [errors.PenstockError, ConnectionError],
    "MessageError": [errors.PenstockError, ValueError],
    "EndOfPipeError": [errors.PenstockError, EOFError],
    "PipelineFailure": [errors.PenstockError, RuntimeError],
    "ClosedError": [errors.PenstockError, RuntimeError],
    "MissingDependencyError": [errors.PenstockError, ModuleNotFoundError],
    "InternalError": [errors.PenstockError, RuntimeError],
}


def error_types() -> dict[str, type]:
    """Return the exceptions that the module defines."""
    found = {name: value for name, value in vars(errors).items() if isinstance(value, type)}
    return {name: value for name, value in found.items() if value.__module__ == errors.__name__}


def test_the_tree_is_complete() -> None:
    """Each error has the base class of the module's picture, and the builtin that callers expect."""
    assert {name: list(kind.__bases__) for name, kind in error_types().items()} == TREE
    assert errors.__doc__
    for name in TREE:
        assert name in errors.__doc__


EXAMPLES: dict[str, errors.PenstockError] = {
    **{name: kind("what went wrong") for name, kind in error_types().items() if name != "MissingDependencyError"},
    "SourceError": errors.SourceError("can't read", source="Files('a')", keys=[3, 4]),
    "CorruptRecordError": errors.CorruptRecordError("not JSON", source="JsonLines('a')", keys=[5]),
    "WorkerError": errors.WorkerError("killed", exit_code=-9, has_started=False),
    "PeerError": errors.PeerError("gone", pid=12),
    "MessageError": errors.MessageError("truncated"),
    "MissingDependencyError": errors.MissingDependencyError("Pillow", extra="demo"),
}


@pytest.mark.parametrize("name", TREE)
def test_errors_travel_between_processes(name: str) -> None:
    """Pickling keeps type, message, attributes and notes."""
    error = EXAMPLES[name]
    error.add_note("in step 'decode'")
    other = pickle.loads(pickle.dumps(error))
    assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


def test_a_source_error_carries_source_and_keys() -> None:
    """At most the first eight of the requested keys; none if they are not known."""
    error = errors.SourceError("can't read", source="Files('a')", keys=range(100))
    assert (error.source, error.keys) == ("Files('a')", tuple(range(8)))
    assert (errors.SourceError("x").source, errors.SourceError("x").keys) == ("", ())


def test_a_worker_error_carries_the_exit_code() -> None:
    """Negative for a signal, None if the worker never started."""
    assert errors.WorkerError("killed", exit_code=-9).exit_code == -9
    assert errors.WorkerError("no memory").exit_code is None


def test_a_missing_dependency_says_what_to_run() -> None:
    """The message is a command to copy."""
    error = errors.MissingDependencyError("Pillow", extra="demo")
    assert str(error) == "Pillow is needed here and is not installed. Run: pip install 'penstock[demo]'"
    assert error.extra == "demo"


@pytest.mark.usefixtures("forked_programs")
@pytest.mark.parametrize(("door", "module"), [("torch", "torch"), ("jax", "jax"), ("ray", "ray")])
def test_a_package_for_a_missing_framework_says_what_to_run(door: str, module: str) -> None:
    """The error of importing it names the extra."""
    lines = outcome(f"import sys; sys.modules[{module!r}] = None; import penstock.{door}").stderr.splitlines()
    assert lines[-1].startswith("penstock.errors.MissingDependencyError: ")
    assert f"pip install 'penstock[{door}]'" in lines[-1]


CLOSED: dict[str, Callable[[ps.Loader], object]] = {
    "iter": iter,
    "seek": lambda loader: loader.seek(0),
    "load_state_dict": lambda loader: loader.load_state_dict(loader.state_dict()),
}


@pytest.mark.parametrize("use", CLOSED)
def test_a_closed_loader_says_so(use: str) -> None:
    """Use of a closed loader is a ClosedError, with the remedy."""
    loader = ps.Loader(ps.range(4))
    loader.close()
    with pytest.raises(errors.ClosedError, match="the loader was closed; make a new one"):
        CLOSED[use](loader)


def test_a_closed_loaders_iterator_says_so() -> None:
    """Its iterator raises ClosedError; its batches don't just end."""
    with ps.Loader(ps.range(4), num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
    with pytest.raises(errors.ClosedError, match="the loader was closed"):
        next(iterator)


def test_an_iterator_that_was_replaced_says_so() -> None:
    """A loader has one iterator at a time."""
    loader = ps.Loader(ps.range(4))
    first = iter(loader)
    iter(loader)
    with pytest.raises(errors.ClosedError, match=r"a newer iter\(loader\) has taken this iterator's place; keep one"):
        next(first)


def test_a_line_that_is_no_json_is_a_corrupt_record(tmp_path: Path) -> None:
    """The bytes were read, but aren't a record: file, line and key are named."""
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n{"x": \n{"x": 3}\n')
    dataset = ps.read(ps.sources.JsonLines(tmp_path / "a.jsonl", cache=tmp_path / "cache"))
    with pytest.raises(errors.CorruptRecordError, match=r"a\.jsonl") as caught:
        list(dataset)
    assert caught.value.keys == (1,)


def test_events_are_values() -> None:
    """The events of a loader can be compared, hashed and pickled."""
    skipped = events.Skipped("decode", 0, 1, 2, "ValueError: corrupt")
    substituted = events.Substituted("decode", 0, 1, 2, "ValueError: corrupt", 3, 4)
    for event in (skipped, substituted):
        assert pickle.loads(pickle.dumps(event)) == event
        assert len({event, event}) == 1
