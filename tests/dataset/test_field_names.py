"""Names and calls of torch, Grain, tf.data, Hugging Face and others are accepted, or answered by the right call."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, cast

import numpy as np
import pytest

import penstock as ps
from penstock._dataset._field_names import ARGUMENTS, ATTRIBUTES, LOADER, PACKAGE, POSITIONAL, Remedy
from tests.programs.forked import outcome


class Fold:
    """Passes each element on."""

    held = 0

    def add(self, element: object) -> list[object]:
        """Return the element."""
        return [element]

    def flush(self) -> list[object]:
        """Return nothing."""
        return []


def function(value: Any) -> Any:
    """Return the value: a function of an element, a batch, or a dataset."""
    return value


def random_function(element: Any, rng: np.random.Generator) -> Any:
    """Return the element and a number."""
    return element, rng.random()


GIVEN: Mapping[str, Any] = {
    "device": "cpu",
    "Fold": Fold,
    "dataset": ps.range(100),
    "documents": ps.range(100).map(lambda number: np.arange(number)),
    "function": function,
    "generator": lambda: iter([1]),
    "iterable": [1, 2],
    "np": np,
    "other": ps.range(100),
    "ps": ps,
    "random_function": random_function,
    "size": abs,
    "source": [1, 2],
    "weights": [1] * 100,
    "x": np.arange(3),
    "y": np.arange(3),
}
VALUES: Mapping[str, object] = {  # other than 2
    "batch_fn": function,
    "collate_fn": function,
    "collation_fn": function,
    "directory": "folder",
    "drop_last": True,
    "drop_remainder": True,
    "filename": "folder",
    "fn": function,
    "function": function,
    "in_order": True,
    "path": "folder",
    "reseed_each_epoch": True,
    "transform": function,
    "worker_init_fn": function,
}
CALLS: Mapping[str, Callable[..., object]] = {
    "Loader": ps.Loader,
    "concatenate": ps.concatenate,
    "interleave": ps.interleave,
    "mix": ps.mix,
    "read": ps.read,
    "stream": ps.stream,
    "zip": ps.zip,
}

ACCEPTED = {
    "dataset.shuffle(seed=3)": "ps.range(100, seed=3).shuffle()",
    "dataset.batch(7, drop_last=True)": 'dataset.batch(7, remainder="drop")',
    "dataset.batch(7, drop_last=False)": "dataset.batch(7)",
    "dataset.padded_batch(7, drop_last=True)": 'dataset.padded_batch(7, remainder="drop")',
    "dataset.batch(2).rebatch(7, drop_last=True)": 'dataset.batch(2).rebatch(7, remainder="drop")',
    "dataset.split(0.9)[1]": 'dataset.split({"a": 0.9, "b": 0.1})["b"]',
    "dataset.split(np.float32(0.9))[1]": 'dataset.split({"a": 0.9, "b": 0.1})["b"]',
    "dataset.split([0.8, 0.1, 0.1])[2]": 'dataset.split({"a": 0.8, "b": 0.1, "c": 0.1})["c"]',
    "ps.zip(dataset, other)": "ps.zip([dataset, other])",
    "ps.interleave(dataset, other)": "ps.interleave([dataset, other])",
    "ps.concatenate(dataset, other)": "ps.concatenate([dataset, other])",
    "ps.mix([dataset, other], [3, 1])": 'ps.mix({"0": dataset, "1": other}, {"0": 3, "1": 1})',
    "ps.mix([dataset, other], np.array([3, 1]))": 'ps.mix({"0": dataset, "1": other}, {"0": 3, "1": 1})',
    "ps.mix([dataset, other], {0: [3, 1], 8: (1, 1)})": (
        'ps.mix({"0": dataset, "1": other}, {0: {"0": 3, "1": 1}, 8: {"0": 1, "1": 1}})'
    ),
    "ps.mix([dataset, other])": 'ps.mix({"0": dataset, "1": other})',
    "dataset.take(3)": "dataset[:3]",
    "dataset.skip(3)": "dataset[3:]",
    "dataset.select([3])": "dataset[3:4]",
    "dataset.repeat().take(5)": "dataset.take(5)",
    "dataset.cache()": "dataset",
}

REFUSED = {
    "ps.Loader(dataset, workers=2)": "workers is the kind of workers; got workers=2. Their number is num_workers=2.",
    "ps.Loader(dataset, 4)": "all but the dataset have names: ps.Loader(dataset, num_workers=4)",
    "ps.Loader(dataset, shuffle=True)": "has no argument 'shuffle'",
    "ps.Loader(dataset, batch_size=4)": "ps.Loader(dataset.batch(4))",
    "dataset.shuffle(1000)": "without a buffer",
    "dataset.shuffle(True)": "without a buffer",
    "dataset.shuffle(seed='a')": "seed must be a whole number; got seed='a'",
    "dataset.batch()": "Its arguments are (size, *, remainder, drop_last, mask, merge)",
    "dataset.batch(4, remainders='drop')": "has no argument 'remainders'. Its arguments are (size, *, remainder",
    "dataset.batch(4, remainder='pad', drop_last=True)": 'drop_last=True drops the rows that remainder="pad"',
    "dataset.batch(4, drop_last=1)": "drop_last must be True or False; got drop_last=1",
    "dataset.split(1.5)": "one share between 0 and 1; got fractions=1.5",
    "dataset.split(80)": "one share between 0 and 1; got fractions=80",
    "dataset.split('train')": "one share between 0 and 1; got fractions='train'",
    "ps.zip([dataset], other)": "the datasets must be one dict, one list, or one after the other; got list and 1 more",
    "ps.mix(dataset, other)": "parts must be a dict or a list of datasets; got Dataset",
    "ps.mix([dataset, other], [3, 1, 1])": "weights must be one for each of the 2 datasets; got [3, 1, 1]",
    "ps.mix({'a': dataset}, [3])": "with a weight for each name if the datasets are a dict; got [3]",
    "ps.zip(dataset, [1])": "part '1' must be a Dataset; got list",
    "ps.range(3, 4, 5, 6)": "range expected at most 3 arguments",
    "ps.read(iter([1]))": "Use ps.stream(lambda: …), with a function that makes it,",
    "ps.stream(iterable).shuffle()": "Use window_shuffle(n), or make the dataset of a source",
    "ps.stream(iterable).take(3)": "Use limit(n), or make the dataset of a source",
    "ps.stream(iterable)[3]": "Iterate over it, or make the dataset of a source",
    "ps.stream(iterable).cache()": "Make the dataset of a source with a length and items, by ps.read.",
    "dataset.filter(function).shuffle()": "Use shuffle() before it. Or give the filter an index: filter(…, index=",
    "dataset.flat_map(function).shuffle()": "Or pass the lengths of the lists: flat_map(…, counts=…).",
    "dataset.pack(4, lengths='auto')": "lengths must be the length of each element; got 'auto'",
    "dataset.pack(4).shuffle()": "Or plan it from the elements' lengths: lengths=.",
    "dataset.map(function, on_error='skip').shuffle()": "Or use on_error=ps.Substitute()",
}


class Endless:
    """An iterable without a length, as `IterableDataset` of torch and of Hugging Face are."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


def _evaluated(code: str) -> Any:
    return eval(code, dict(GIVEN))


def _listed(dataset: ps.Dataset[Any]) -> list[Any]:
    return [element.tolist() if isinstance(element, np.ndarray) else element for element in dataset]


def _check(remedy: Remedy, message: str, given: str = "") -> None:
    """Check that a message has a remedy, and that its call can be made as it is written."""
    reason, call = remedy
    call = call.replace("{}", given)
    assert reason[1:] in message
    assert message.endswith(f": {call}")
    if ("ps.jax" in call and find_spec("jax") is None) or ("ps.torch" in call and find_spec("torch") is None):
        return
    made = _evaluated(call)
    if isinstance(made, ps.Dataset):
        next(iter(cast("Iterable[Any]", made)))


@pytest.fixture(autouse=True)
def folder(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in an empty folder, where a cache may be made."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("owner", "text", "names"),
    [
        pytest.param(ps.range(3), "'Dataset' object", ATTRIBUTES, id="dataset"),
        pytest.param(ps.Loader(ps.range(3)), "'Loader' object", LOADER, id="loader"),
        pytest.param(ps, "module 'penstock'", PACKAGE, id="package"),
    ],
)
def test_attributes_of_other_libraries_are_answered(owner: object, text: str, names: Mapping[str, Remedy]) -> None:
    """The AttributeError has a call that can be made; the attribute doesn't exist and isn't completed."""
    for name, remedy in names.items():
        with pytest.raises(AttributeError, match=rf"^{text} has no attribute '{name}'\. ") as caught:
            getattr(owner, name)
        _check(remedy, str(caught.value))
        assert not hasattr(owner, name)
        assert name not in dir(owner)


def test_arguments_of_other_libraries_are_answered() -> None:
    """The TypeError has a call that can be made, with the given value where it keeps its meaning."""
    for call, names in ARGUMENTS.items():
        named: Any = CALLS.get(call) or getattr(ps.range(100), call)
        for name, remedy in names.items():
            value = VALUES.get(name, 2)
            with pytest.raises(TypeError, match=rf"^{call}\(\) has no argument '{name}'\. ") as caught:
                named(**{name: value})
            _check(remedy, str(caught.value), getattr(value, "__name__", None) or repr(value))
    for call, remedy in POSITIONAL.items():
        with pytest.raises(TypeError, match=rf"^{call}\(\) was called with too many arguments") as many:
            (CALLS.get(call) or getattr(ps.range(100), call))(1, 2, 3)
        _check(remedy, str(many.value))


def test_forms_of_other_libraries_are_accepted() -> None:
    """A form with exactly one meaning has it."""
    for form, own in ACCEPTED.items():
        assert _listed(_evaluated(form)) == _listed(_evaluated(own)), form


def test_forms_with_no_or_another_meaning_are_refused() -> None:
    """The error has the remedy that applies."""
    for form, text in REFUSED.items():
        with pytest.raises((TypeError, ValueError)) as caught:
            _evaluated(form)
        assert text.casefold() in str(caught.value).casefold(), form


def test_an_iterable_without_a_length_is_a_stream() -> None:
    """`ps.read` of an iterable names `ps.stream`."""
    with pytest.raises(ps.errors.UsageError, match=r"the Endless can only be iterated over. Use ps\.stream\(it\)"):
        ps.read(Endless())


def test_loaders_of_frameworks_name_themselves() -> None:
    """A remedy for an argument of the torch loader is a call of the torch loader."""
    pytest.importorskip("torch")
    with pytest.raises(TypeError, match=r"has no argument 'batch_size'.*: ps\.torch\.Loader\(dataset\.batch\(4\)\)"):
        ps.torch.Loader(ps.range(3), batch_size=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_an_error_inside_a_verb_passes_unchanged() -> None:
    """A TypeError that the user's function raises isn't taken for a wrong call."""
    with pytest.raises(TypeError, match="has no len"):
        ps.range(3).map(len).check()  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("forked_programs")
def test_python_still_suggests_verbs() -> None:
    """A misspelt verb has Python's own suggestion."""
    errors = outcome("import penstock as ps; ps.range(3).shufle()").stderr
    assert "'Dataset' object has no attribute 'shufle'. Did you mean: 'shuffle'?" in errors


def test_public_packages_complete_their_names() -> None:
    """`dir` of the package and its public packages has their public names and modules before they are loaded."""
    program = """
import sys
import penstock as ps
for module in ps, ps.sources, ps.sampling, ps.batching, ps.concurrency, ps.pipeline, ps.transport:
    assert set(module.__all__) <= set(dir(module)), module
assert {"torch", "jax", "pipeline", "transport", "testing", "events"} <= set(dir(ps))
assert "torch" not in sys.modules
assert ps.pipeline.PipelineBuilder and ps.testing.SourceTests
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_module_without_its_framework_is_no_attribute(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ps.jax` without JAX says what to install, and `hasattr` is False."""
    for name in ("jax", "penstock.jax"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(ps, "jax", raising=False)
    assert not hasattr(ps, "jax")
    with pytest.raises(AttributeError, match="module 'penstock' can't import 'jax': "):
        ps.jax  # noqa: B018 - its access is what is tested
