"""A class made by `frozen` is what `dataclasses.dataclass` would make of it, frozen and with slots."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import KW_ONLY, FrozenInstanceError, dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock._frozen import frozen

T = TypeVar("T")


@frozen
class Page(Generic[T]):
    """What is compared with `SamePage`: a default, a field that doesn't count, a check, and a keyword."""

    number: int
    text: T
    title: str = "none"
    note: str = field(default="", compare=False, repr=False)
    _: KW_ONLY
    scale: float = 1.0
    width: int

    def __post_init__(self) -> None:
        if self.number < 0:
            object.__setattr__(self, "number", -self.number)


@dataclass(frozen=True, slots=True)
class SamePage(Generic[T]):
    """What is compared with `SamePage`: a default, a field that doesn't count, a check, and a keyword."""

    number: int
    text: T
    title: str = "none"
    note: str = field(default="", compare=False, repr=False)
    _: KW_ONLY
    scale: float = 1.0
    width: int

    def __post_init__(self) -> None:
        if self.number < 0:
            object.__setattr__(self, "number", -self.number)


@frozen
class Leaf:
    """No field at all."""


@frozen
class Single:
    """A single field, whose name is that of what the methods use."""

    hash: object


@frozen(eq=False)
class Alone:
    """Equal to itself only."""

    number: int


@frozen(cached=True)
class Squared:
    """What is computed from its field is kept, and an equality of its own stays."""

    number: int

    @cached_property
    def square(self) -> list[int]:
        """A new list each time, if it weren't kept."""
        return [self.number**2]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Squared) and abs(self.number) == abs(other.number)

    def __hash__(self) -> int:
        return abs(self.number)

    def __repr__(self) -> str:
        return f"<{self.number}>"


texts = st.sampled_from(["", "a", "b"])
numbers = st.integers(-2, 2)


@st.composite
def pages(draw: st.DrawFn) -> tuple[Page[str], SamePage[str]]:
    """A page and the same page made by `dataclass`."""
    number, width = draw(numbers), draw(numbers)
    text, title, note = draw(texts), draw(texts), draw(texts)
    return (
        Page(number, text, title, note, width=width, scale=width / 2),
        SamePage(number, text, title, note, width=width, scale=width / 2),
    )


@given(pages(), pages())
def test_it_compares_hashes_and_prints_as_a_dataclass(
    one: tuple[Page[str], SamePage[str]], other: tuple[Page[str], SamePage[str]]
) -> None:
    """Equality, hash and repr are those of the same class made by `dataclass`."""
    assert (one[0] == other[0]) == (one[1] == other[1])
    assert hash(one[0]) == hash(one[1])
    assert repr(one[0]) == repr(one[1]).replace("SamePage", "Page")
    mixed: tuple[object, object] = one
    assert mixed[0] != mixed[1]


@given(pages())
def test_it_is_copied_pickled_replaced_and_listed_as_a_dataclass(pair: tuple[Page[str], SamePage[str]]) -> None:
    """Copies, pickles, `replace`, `astuple` and `match` work as with dataclasses."""
    page, same = pair
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert dataclasses.astuple(pickle.loads(pickle.dumps(page, protocol))) == dataclasses.astuple(same)
    assert dataclasses.astuple(copy.deepcopy(page)) == dataclasses.astuple(copy.copy(page)) == dataclasses.astuple(same)
    assert dataclasses.astuple(dataclasses.replace(page, number=-7)) == (7, *dataclasses.astuple(same)[1:])
    match page:
        case Page(number, text):
            assert (number, text) == (same.number, same.text)


def test_it_has_the_signature_and_the_fields_of_a_dataclass() -> None:
    """Names, kinds, defaults and annotations are those that `dataclass` gives."""
    assert str(inspect.signature(Page)) == str(inspect.signature(SamePage))
    assert [(each.name, each.type) for each in dataclasses.fields(Page)] == [
        (each.name, each.type) for each in dataclasses.fields(SamePage)
    ]
    assert Page.__match_args__ == SamePage.__match_args__
    assert vars(Page)["__slots__"] == vars(SamePage)["__slots__"]
    made: Any = vars(Page)["__init__"]
    assert (made.__qualname__, made.__module__) == ("Page.__init__", __name__)


def test_a_wrong_call_names_the_parameter() -> None:
    """The error of a wrong call names the class and the parameters, as any function's does."""
    page: Any = Page
    with pytest.raises(TypeError, match=r"Page\.__init__\(\) missing 1 required positional argument: 'text'"):
        page(1, width=3)
    with pytest.raises(TypeError, match=r"Page\.__init__\(\) missing 1 required keyword-only argument: 'width'"):
        page(1, "")
    with pytest.raises(TypeError, match=r"Page\.__init__\(\) got an unexpected keyword argument 'field_0'"):
        page(1, "", width=3, field_0=4)


def test_it_is_frozen() -> None:
    """No attribute can be set or deleted, whether it is a field or not."""
    page = Single(3)
    for name in ("hash", "other"):
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(page, name, 4)
        with pytest.raises(FrozenInstanceError, match=f"cannot delete field '{name}'"):
            delattr(page, name)
    assert not hasattr(page, "__dict__")


def test_no_field_and_a_single_one() -> None:
    """Classes with no field or one compare and hash as others do."""
    nothing = float("nan")
    assert (Leaf() == Leaf(), hash(Leaf()), repr(Leaf())) == (True, hash(()), "Leaf()")
    assert (Single(nothing) == Single(nothing), hash(Single(3)), repr(Single(3))) == (
        True,
        hash((3,)),
        "Single(hash=3)",
    )


def test_a_dataclass_may_be_made_of_it() -> None:
    """A user's own frozen dataclass takes it as a base."""

    @dataclass(frozen=True)
    class Own(Single):
        extra: int = 5

    assert (Own("a").hash, Own("a").extra, Own("a") == Own("a", 5)) == ("a", 5, True)


def test_it_may_equal_only_itself() -> None:
    """Without `eq`, objects with equal fields differ, and the hash is that of the object."""
    alone = Alone(3)
    assert (alone == Alone(3), len({alone, alone, Alone(3)})) == (False, 2)


def test_cached_properties_are_kept_but_not_pickled() -> None:
    """A cached property is computed once for an object, and again for a copy by pickle."""
    squared = Squared(3)
    assert squared.square is squared.square
    assert vars(squared) == {"square": [9]}
    assert vars(pickle.loads(pickle.dumps(squared))) == {}


def test_methods_of_the_class_stay() -> None:
    """An equality, a hash and a repr that the class defines are kept."""
    assert (Squared(3) == Squared(-3), hash(Squared(-3)), repr(Squared(3))) == (True, 3, "<3>")
