"""Elements with leaves of every kind, and an independent judge of whether two are the same in all that counts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from penstock._tensors import ITEM_BYTES as ITEM_BYTES
from penstock.transport import Bytes, register_container
from penstock.transport._encoding import LARGEST_COPIED_BYTES as LARGEST_COPIED_BYTES
from penstock.transport._encoding import Decoder, Encoded, Encoder

Element = Any


class Box(NamedTuple):
    """A named tuple among the containers."""

    corner: object
    size: object


@dataclass(frozen=True)
class Sample:
    """A dataclass among the containers."""

    image: object
    label: object = 0


class Bag:
    """A container of the user's own: parts, and a name that is no leaf."""

    def __init__(self, name: str, parts: list[object]) -> None:
        self.name, self.parts = name, parts


register_container(Box)
register_container(Sample)
register_container(Bag, lambda bag: (bag.parts, bag.name), lambda name, parts: Bag(str(name), list(parts)))


PLAIN_DTYPES = [np.dtype(character) for character in "?bBhHiIlLqQefdgFDG"]
DTYPES: st.SearchStrategy[np.dtype[Any]] = st.one_of(
    st.sampled_from([dtype for plain in PLAIN_DTYPES for dtype in (plain, plain.newbyteorder(">"))]),
    st.sampled_from(["S1", "S7", "V3", "<U1", ">U5", "M8[D]", ">M8[25s]", "m8[ns]", "M8", "m8"]).map(np.dtype),
    hnp.array_dtypes(allow_subarrays=True),
    st.sampled_from(
        [
            np.dtype([("a", "i1"), ("b", "f8")], align=True),
            np.dtype({"names": ["x", "y"], "formats": ["u2", ">f4"], "offsets": [5, 0], "itemsize": 11}),
            np.dtype([("inner", [("deep", "U2"), ("grid", "f4", (2, 3))]), ("when", "M8[ms]")]),
        ]
    ),
)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def _filled(dtype: np.dtype[Any], shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Return an array of any dtype with bytes that differ, but for text, which must be some."""
    count = math.prod(shape) * dtype.itemsize
    raw = bytes((seed + 31 * position) % (1 if "U" in str(dtype) else 128) for position in range(count))
    array = np.ndarray(shape, dtype, bytearray(raw) or None)
    if dtype.kind == "U":
        array[...] = "äø\U0001f600"[: dtype.itemsize // 4 or 1]
    return array


def _arranged(array: NDArray[Any], how: str) -> NDArray[Any]:
    match how:
        case "fortran":
            return np.asfortranarray(array)
        case "permuted":
            return np.moveaxis(array, -1, array.ndim // 2) if array.ndim else array
        case "strided":
            return np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array
        case "reversed":
            return array[::-1] if array.ndim else array
        case "read-only":
            array.flags.writeable = False
        case _:
            pass
    return array


ARRAYS = st.builds(
    _arranged,
    st.builds(_filled, DTYPES.filter(lambda dtype: dtype.itemsize > 0), SHAPES, st.integers(0, 255)),
    st.sampled_from(["plain", "fortran", "permuted", "strided", "reversed", "read-only"]),
)
SCALARS = st.one_of(
    st.sampled_from([np.dtype(character).type(1) for character in "?bBhHiIlLqQefdgFDG"]),
    st.sampled_from(
        [
            *(np.datetime64("2026-02-03T04:05", "m"), np.datetime64("NaT", "ns"), np.timedelta64(7, "D")),
            *(np.str_("na\0me\0"), np.bytes_(b"by\0te\0"), np.void(b"raw\0")),
            *(np.zeros((), [("a", "i4"), ("b", "U2")])[()], np.float32("nan")),
        ]
    ),
)
TEXT = st.text(st.characters(), max_size=5)  # lone surrogates too
HANDLES = st.one_of(
    st.binary(max_size=5).map(Bytes),
    st.binary(max_size=5).map(lambda content: Bytes(bytearray(content))),
    st.binary(min_size=3, max_size=9).map(lambda content: Bytes(content)[1:-1]),
)
PLAIN: st.SearchStrategy[Element] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(1 << 70), 1 << 70),
    st.floats(),
    st.complex_numbers(),
    TEXT,
    st.binary(max_size=5),
    st.binary(max_size=5).map(bytearray),
    HANDLES,
)
KEYS = st.recursive(
    st.one_of(TEXT, st.integers(), st.booleans(), st.floats(), st.none(), st.binary(max_size=2)),
    lambda inner: st.lists(inner, max_size=2).map(tuple),
    max_leaves=3,
)


def containers(inner: st.SearchStrategy[Element]) -> st.SearchStrategy[Element]:
    """Return containers of every kind around a strategy's elements."""
    return st.one_of(
        st.dictionaries(TEXT, inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3),
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.builds(Box, inner, inner),
        st.builds(Sample, inner, inner),
        st.builds(Bag, TEXT, st.lists(inner, max_size=2)),
    )


PACKED: st.SearchStrategy[Element] = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats() | TEXT,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(TEXT | st.integers(-9, 9) | st.floats() | st.none(), inner, max_size=4),
    ),
    max_leaves=20,
).map(lambda part: [part, *("some", 1, 2.5, None, True) * 4])
"""Plain values, enough to be packed."""

ELEMENTS: st.SearchStrategy[Element] = st.recursive(PLAIN | ARRAYS | SCALARS, containers, max_leaves=8)


def _assert_same_handle(sent: Element, received: Element) -> None:
    assert (sent.tobytes(), True) == (received.tobytes(), received.readonly)


def assert_same(sent: Element, received: Element) -> None:
    """Fail unless two elements are the same: types, values, NaNs, dtypes, shapes, order of keys and of axes."""
    kind = cast("type[object]", type(sent))
    assert type(received) is (np.ndarray if kind is np.memmap else kind)
    children = _children(sent)
    if children is not None:
        names, parts = children
        their_names, their_parts = _children(received) or ([], [])
        assert repr(names) == repr(their_names)
        assert len(parts) == len(their_parts)
        for part, their_part in zip(parts, their_parts, strict=True):
            assert_same(part, their_part)
    elif kind is Bytes:
        _assert_same_handle(sent, received)
    elif isinstance(sent, np.ndarray | np.generic):
        _assert_same_array(sent, received)
    else:
        assert repr(sent) == repr(received)


def _children(part: Element) -> tuple[list[Any], list[Any]] | None:
    bases = type(part).__mro__
    if dict in bases:
        return list(part), list(part.values())
    if list in bases or tuple in bases:
        return [], list(part)
    if isinstance(part, Sample):
        return [], [part.image, part.label]
    return ([part.name], part.parts) if isinstance(part, Bag) else None


def _assert_same_array(sent: Any, received: Any) -> None:
    assert (sent.shape, sent.dtype, sent.dtype.char) == (received.shape, received.dtype, received.dtype.char)
    assert sent.dtype.isalignedstruct == received.dtype.isalignedstruct
    assert sent.tobytes() == received.tobytes() or repr(sent.tolist()) == repr(received.tolist())
    if isinstance(sent, np.ndarray):
        array = cast("NDArray[Any]", sent)
        assert array.flags.fnc == received.flags.fnc
        if 1 not in array.shape and np.empty_like(array).strides == array.strides:  # no gaps
            assert array.strides == received.strides


def written(message: Encoded) -> NDArray[np.uint8]:
    """Return memory into which a message was written."""
    memory = np.full(message.size_bytes, 0xAA, np.uint8)
    message.write_into(memory)
    return memory


class Ends:
    """A sender, and a receiver that learns each layout when the sender first describes it.

    Args:
        allow_pickle: whether the sender may pickle.
        receiver_allows: whether the receiver may unpickle; by default if the sender may pickle.
        locate: returns the place of memory that both share.
    """

    def __init__(
        self,
        *,
        allow_pickle: bool = False,
        receiver_allows: bool | None = None,
        locate: Callable[[int, int], object | None] | None = None,
    ) -> None:
        self._encoder = Encoder(allow_pickle=allow_pickle, locate=locate)
        self._decoder = Decoder(allow_pickle=allow_pickle if receiver_allows is None else receiver_allows)

    @property
    def layouts(self) -> int:
        """The number of layouts that the sender has computed."""
        return self._encoder.layouts

    @property
    def pickled(self) -> int:
        """The number of leaves that the sender has pickled."""
        return self._encoder.pickled

    def sent(self, element: Element) -> Encoded:
        """Return an element's message, whose description the receiver has learned."""
        message = self._encoder.encode(element)
        if message.description is not None:
            self._decoder.learn(message.description)
        return message

    def learn(self, description: bytes) -> None:
        """Let the receiver learn a description."""
        self._decoder.learn(description)

    def decode(self, head: bytes, memory: Any = b"", places: Sequence[Any] = (), *, copy: bool = False) -> Element:
        """Return the element of a message's parts."""
        return self._decoder.decode(head, memory, places, copy=copy)

    def received(self, message: Encoded, places: Sequence[Any] = (), *, copy: bool = False) -> Element:
        """Return the element of a message that was sent."""
        return self.decode(message.head, written(message), places, copy=copy)

    def cross(self, element: Element, *, copy: bool = False) -> Element:
        """Return an element as it arrives."""
        return self.received(self.sent(element), copy=copy)


def message_of(element: Element, *, allow_pickle: bool = False) -> Encoded:
    """Return the first message of a new sender."""
    return Encoder(allow_pickle=allow_pickle).encode(element)


def learn(description: bytes) -> None:
    """Let a new receiver learn a description."""
    Decoder().learn(description)


def crossed(element: Element, *, allow_pickle: bool = False, copy: bool = False) -> Element:
    """Return an element as it arrives at a receiver that knows nothing yet."""
    return Ends(allow_pickle=allow_pickle).cross(element, copy=copy)
