"""An AttributeError of user code passes through the properties of objects that explain missing attributes."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import penstock as ps


class Failing:
    """A function that reads an attribute which doesn't exist; it counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, record: Any) -> object:
        """Read the attribute."""
        self.calls += 1
        return record.image


class FailingSource:
    """A source whose fingerprint calls a function."""

    def __init__(self, failing: Failing) -> None:
        self.failing = failing

    def __len__(self) -> int:
        return 4

    def __getitem__(self, key: int) -> int:
        return key

    def fingerprint(self) -> str:
        """Call the function."""
        return str(self.failing(0))


class OwnDataset(ps.Dataset[Any]):
    """A dataset with a property of the program's."""

    @property
    def first(self) -> object:
        """The first element."""
        return self[0]


class OwnLoader(ps.Loader[Any]):
    """A loader with a property of the program's."""

    @property
    def first(self) -> object:
        """The first batch."""
        return self.batch_at(0)


PROPERTIES: dict[str, Callable[[Failing], object]] = {
    "element_spec": lambda failing: ps.range(4).map(failing).element_spec,
    "element_spec, in order": lambda failing: ps.stream(lambda: iter(range(4))).map(failing).element_spec,
    "fingerprint": lambda failing: ps.read(FailingSource(failing)).fingerprint,
    "a dataset's of the program": lambda failing: OwnDataset(ps.range(4).map(failing).node).first,
    "a loader's of the program": lambda failing: OwnLoader(ps.range(4).map(failing).batch(2)).first,
}


@pytest.mark.parametrize("name", PROPERTIES)
def test_an_attribute_error_of_user_code_passes(name: str) -> None:
    """Its text, object and notes are the program's, and the function was called once."""
    failing = Failing()
    with pytest.raises(AttributeError, match="'int' object has no attribute 'image'") as caught:
        PROPERTIES[name](failing)
    assert (caught.value.name, caught.value.obj, failing.calls) == ("image", 0, 1)
    if name != "fingerprint":
        assert any("position 0" in note for note in caught.value.__notes__)


def test_a_torch_loader_passes_it_too() -> None:
    """The loaders of torch's datasets and of ours have missing attributes with a reason, as datasets do."""
    torch = pytest.importorskip("penstock.torch")
    first = property(lambda _: Failing()(0))
    for kind, dataset in ((torch.Loader, ps.range(4)), (torch.DataLoader, [1])):
        own: Any = type("Own", (kind,), {"first": first})(dataset)
        with pytest.raises(AttributeError, match="'int' object has no attribute 'image'"):
            _ = own.first
        with pytest.raises(AttributeError, match="'Own' object has no attribute 'unknown'"):
            _ = own.unknown


def test_an_error_that_passed_is_not_raised_again() -> None:
    """An attribute that is missing afterwards has its own message, and nothing keeps the dataset's function."""
    failing = Failing()
    kept = weakref.ref(failing)
    dataset: Any = ps.range(4).map(failing)
    for name in ("element_spec", "unknown", "element_spec"):
        with pytest.raises(AttributeError, match="image" if name == "element_spec" else "'Dataset' .* 'unknown'"):
            getattr(dataset, name)
    del dataset, failing
    gc.collect()
    assert kept() is None


def test_an_error_that_nobody_asked_for_is_not_raised() -> None:
    """The error of a getter that was called without the attribute stays with its caller."""
    dataset: Any = ps.range(4).map(Failing())
    with pytest.raises(AttributeError, match="image"):
        vars(ps.Dataset)["element_spec"].fget(dataset)
    with pytest.raises(AttributeError, match="'Dataset' object has no attribute 'unknown'"):
        _ = dataset.unknown
