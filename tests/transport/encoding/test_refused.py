"""Leaves that can't be sent are refused, with their path and a remedy; pickle needs the consent of both sides."""

import fractions
import hashlib
import threading
from dataclasses import dataclass, field, make_dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.errors import MessageError, UsageError
from penstock.transport import register_container
from tests.transport.encoding.samples import Bag, Box, Ends, Sample, assert_same, crossed, message_of, written


class Point(NamedTuple):
    """A named tuple that no receiver registered."""

    x: object
    y: object


@dataclass
class Positive:
    """A dataclass that refuses some values."""

    number: int

    def __post_init__(self) -> None:
        if self.number <= 0:
            raise ArithmeticError(f"not positive: {self.number}")


@dataclass
class Counted:
    """A dataclass that can't be made from its fields."""

    number: int
    calls: int = field(default=0, init=False)


class Unpickled:
    """Raises while it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return fractions.Fraction, (1, 0)


def _deep(levels: int) -> object:
    element: object = 1
    for _ in range(levels):
        element = [element]
    return element


def _inside_itself() -> list[object]:
    element: list[object] = []
    element.append(element)
    return element


REFUSED: list[tuple[object, str]] = [
    (
        {"meta": [Sample(1, Box(2, {3}))]},
        r"\['meta'\]\[0\]\.label\.size has the type set, which only pickle can send\. Convert",
    ),
    ({"a": 1, 5: fractions.Fraction(1)}, r"\[5\] has the type fractions\.Fraction"),
    ([Bag("b", [1, object()])], r"\[0\]\[1\] has the type object"),
    (np.array([object()]), r"the element has the type numpy\.ndarray with the dtype object, .* allow_pickle=True"),
    ([np.ma.masked_array([1])], r"\[0\] has the type numpy\.ma\.MaskedArray"),
    ([np.zeros(2, np.dtype("f4", metadata={"a": 1}))], r"\[0\] has the type numpy\.ndarray with the dtype float32"),
    ([np.array(["a"], np.dtypes.StringDType())], r"\[0\] has the type numpy\.ndarray with the dtype StringDType"),
    ({"a": {("b", np.int64(3)): 1}}, r"\['a'\] has the type dict, .*a dict's keys must be None, .* is a int64"),
    ([Counted(1)], r"\[0\] has the type .*Counted, .*calls has init=False"),
    (_deep(101), "nested at most 100 deep"),
    (_inside_itself(), "contains itself"),
]


def test_refusals_name_the_path_and_the_remedy() -> None:
    """A leaf that can't be sent is named by its path and type, and the error says what to do."""
    for element, message in REFUSED:
        with pytest.raises(UsageError, match=message):
            message_of(element)
    with pytest.raises(UsageError, match=r"\['lock'\] has the type _thread\.lock, which pickle can't send"):
        message_of({"lock": threading.Lock()}, allow_pickle=True)


def test_the_deepest_element_crosses() -> None:
    """The receiver builds every element that the sender accepts."""
    assert_same(_deep(100), crossed(_deep(100)))


@pytest.mark.parametrize("copy", [False, True])
def test_pickled_leaves_arrive(*, copy: bool) -> None:
    """With consent on both sides anything that pickle sends arrives, and is counted."""
    large = np.ma.masked_array(np.arange(20_000.0), np.arange(20_000) % 2 == 0)
    element = [
        {1, 2},
        large,
        np.array([None, "a"]),
        np.arange(3).reshape(1, 3).view(np.matrix),
        {fractions.Fraction(1, 3): np.arange(20_000)},
    ]
    ends = Ends(allow_pickle=True)
    message = ends.sent({"a": np.arange(3), "b": element, "c": "text"})
    memory = written(message)
    received: Any = ends.decode(message.head, memory, copy=copy)
    assert ends.pickled == len(element)
    assert received["c"] == "text"
    assert received["b"][0] == {1, 2}
    assert type(received["b"][1]) is np.ma.MaskedArray
    assert received["b"][1].tolist() == large.tolist()
    (array,) = received["b"][4].values()
    assert np.shares_memory(array, memory) is not copy
    assert received["b"][2].tolist() == [None, "a"]
    assert type(received["b"][3]) is np.matrix
    assert array.tolist() == list(range(20_000))


def test_leaves_that_only_cloudpickle_sends_arrive() -> None:
    """As they do from worker processes."""
    pytest.importorskip("cloudpickle")
    assert crossed(MappingProxyType({"a": 1}), allow_pickle=True)["a"] == 1


def test_the_size_of_pickles_is_no_part_of_the_layout() -> None:
    """Pickles of any size, with any number of buffers, have one layout."""
    ends = Ends(allow_pickle=True)
    for number in range(4):
        received: Any = ends.cross([{fractions.Fraction(1, 2): [np.ones(size) for size in range(number)]}, "end"])
        assert [len(array) for array in received[0][fractions.Fraction(1, 2)]] == list(range(number))
        assert received[1] == "end"
    assert ends.layouts == 1


def test_an_error_while_unpickling_is_a_message_error() -> None:
    """An exception of a class's unpickling is the cause of the message's error."""
    with pytest.raises(MessageError, match="ZeroDivisionError"):
        crossed([Unpickled()], allow_pickle=True)


def test_types_must_be_registered() -> None:
    """Without pickle a named tuple or dataclass is built only where it was registered; the error names it."""
    with pytest.raises(MessageError, match=r"test_refused\.Point is not known here\. Call register_container\(Point\)"):
        crossed([Point(1, 2)])
    assert_same([Point(1, 2)], crossed([Point(1, 2)], allow_pickle=True))
    ends = Ends()
    message = ends.sent([Point(1, 2)])
    with pytest.raises(MessageError):
        ends.received(message)
    register_container(Point)
    assert_same([Point(1, 2)], ends.received(message))


def test_local_types_are_never_imported() -> None:
    """A type inside of a function can only be registered."""

    class Local(NamedTuple):
        """Not to be found by its name."""

        a: int

    with pytest.raises(MessageError, match="can't be imported here"):
        crossed(Local(1), allow_pickle=True)


def test_an_imported_type_must_fit_the_description() -> None:
    """With pickle allowed, only a named tuple or dataclass with these fields is built."""
    message = message_of(Point(1, 2))
    for name in ("OrderedDict", "namedtuple", "missing", "abc.Sequence"):
        description = (message.description or b"").replace(
            f'"{Point.__module__}","Point"'.encode(), f'"collections","{name}"'.encode()
        )
        digest = hashlib.blake2b(description, digest_size=16).digest()
        ends = Ends(allow_pickle=True)
        ends.learn(description)
        with pytest.raises(MessageError, match=f"collections.{name} "):
            ends.decode(message.head[:4] + digest + message.head[20:])


def _make(second: str) -> type[Any]:
    """Return a new dataclass of always the same name."""
    return make_dataclass("Changed", [("a", int), (second, int)], namespace={"__module__": __name__})


def test_fields_must_be_the_same() -> None:
    """A type whose fields differ at the receiver is refused by both lists of fields."""
    old: Any = _make("b")
    register_container(_make("c"))
    with pytest.raises(MessageError, match=r"has the fields \('a', 'c'\) here; the message has \('a', 'b'\)"):
        crossed(old(1, 2))


def test_a_types_own_refusal_is_the_messages() -> None:
    """An exception of a registered type's function at the receiver is a MessageError with that cause."""
    register_container(Positive)
    sent = Positive(1)
    sent.number = -1
    with pytest.raises(MessageError, match="ArithmeticError: not positive") as caught:
        crossed(sent)
    assert isinstance(caught.value.__cause__, ArithmeticError)


def test_registered_metadata_must_be_plain() -> None:
    """A container's metadata is what keys may be; anything else is refused at the sender."""

    class Tagged:
        """Has a tag that can't be described."""

    def flatten(_tagged: Tagged) -> tuple[list[object], Any]:
        return [], frozenset[int]()

    def unflatten(_tag: object, _parts: object) -> Tagged:
        return Tagged()

    register_container(Tagged, flatten, unflatten)
    with pytest.raises(UsageError, match=r"flatten\(\) of .*Tagged must return .* is a frozenset"):
        message_of(Tagged())


def test_only_ones_own_types_are_registered() -> None:
    """Built-in kinds are sent in their own way, a class without fields needs functions, and both of them."""
    for kind in (dict, int, np.ndarray, str, Counted, Bag):
        with pytest.raises(UsageError):
            register_container(kind)
    with pytest.raises(UsageError, match="both flatten and unflatten"):
        register_container(Sample, lambda sample: ([sample.image], None))
