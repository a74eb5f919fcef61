"""Whatever arrives is an element or a MessageError: never a crash, another error, or memory beyond the message's."""

import hashlib
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import MessageError
from tests.profiles import in_short
from tests.transport.encoding.samples import ELEMENTS, PACKED, Element, Ends, learn, message_of, written

HEAD_START = 4  # bytes before the layout's id
ID_BYTES = 16


def _forged(head: bytes, description: bytes) -> bytes:
    """Return a head that names another description."""
    digest = hashlib.blake2b(description, digest_size=ID_BYTES).digest()
    return head[:HEAD_START] + digest + head[HEAD_START + ID_BYTES :]


def _read(description: bytes, head: bytes, memory: bytes, places: tuple[bytes, ...] = ()) -> None:
    """Learn and decode; a MessageError is well."""
    ends = Ends()
    try:
        ends.learn(description)
        ends.decode(head, memory, places)
    except MessageError:
        pass


def _damaged(data: st.DataObject, whole: bytes) -> bytes:
    """Return bytes with some changed, left out or added."""
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(changed)))
        stop = min(len(changed), start + data.draw(st.integers(0, 4)))
        changed[start:stop] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"\xff" * 8, b"9" * 20, b'"', b"[", b"O"])
        )
    return bytes(changed)


@in_short(10)
@given(PACKED | ELEMENTS, st.data())
def test_damaged_messages_are_message_errors(element: Element, data: st.DataObject) -> None:
    """A change of any byte of head, description or memory gives an element or a MessageError, nothing else."""
    message = message_of(element)
    assert message.description is not None
    memory = bytes(written(message))
    match data.draw(st.sampled_from(["head", "description", "forged", "memory", "all"])):
        case "head":
            _read(message.description, _damaged(data, message.head), memory)
        case "description":
            _read(_damaged(data, message.description), message.head, memory)
        case "forged":
            description = _damaged(data, message.description)
            _read(description, _forged(message.head, description), memory)
        case "memory":
            _read(message.description, message.head, _damaged(data, memory))
        case _:
            description = _damaged(data, message.description)
            _read(description, _forged(_damaged(data, message.head), description), _damaged(data, memory))


@in_short(10)
@given(ELEMENTS, st.data())
def test_truncated_messages_are_message_errors(element: Element, data: st.DataObject) -> None:
    """A message that lacks its end is never an element."""
    message = message_of(element)
    assert message.description is not None
    ends = Ends()
    with pytest.raises(MessageError):
        ends.learn(message.description[: data.draw(st.integers(0, len(message.description) - 1))])
    ends.learn(message.description)
    with pytest.raises(MessageError):
        ends.decode(message.head[: data.draw(st.integers(0, len(message.head) - 1))], written(message), ())
    with pytest.raises(MessageError):
        ends.decode(message.head + b"\0", written(message), ())
    used = sum(1 for _ in bytes(written(message)))
    if used:
        short = written(message)[: data.draw(st.integers(0, max(used - 64, 0)))]
        _read(message.description, message.head, bytes(short))


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["dict", "list", "array", "<f", "int", "str", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["names", "penstock", "tree"]), inner),
    max_leaves=10,
)


@given(JSON_VALUES, JSON_VALUES, st.binary(max_size=40), st.binary(max_size=200))
@example(None, [["array", "<f", [1 << 62], False, False]], b"", b"")
@example(None, [["array", "<f", [0, 1 << 62, 1 << 62], False, False]], b"", b"")
@example(None, [["array", "<f", [2] * 65, False, False]], b"", b"")
@example(None, [["array", "<f", [-1], False, False]], b"", b"")
@example(None, [["array", "<f", [True], False, False]], b"", b"")
@example(None, [["array", "|O", [1], False, False]], b"", bytes(64))
@example(None, [["array", "object", [1], False, False]], b"", bytes(64))
@example(None, [["array", "T", [1], False, False]], b"", bytes(64))
@example(None, [["array", "|S99999999999", [1], False, False]], b"", bytes(64))
@example(None, [["array", "<U999999999", [1], False, False]], b"", bytes(64))
@example(None, [["array", "<M8[9999999999ns]", [1], False, False]], b"", bytes(64))
@example(None, [["array", "<M8[0s]", [1], False, False]], b"", bytes(64))
@example(None, [["scalar", "|S1"]], b"", bytes(64))
@example(None, [["str"]], b"\xff" * 8, b"")
@example(None, [["handle", False]], b"\xff" * 8, b"")
@example(None, [["handle", True]], bytes(8), bytes(64))
@example(None, [["handle", 1]], bytes(8), b"")
@example(None, [["handle"]], bytes(8), b"")
@example(None, [["str"], ["handle", False]], b"\xc8" + bytes(15), bytes(200))
@example(None, [["pickle"]], bytes(8), b"")
@example(None, [["cuda"]], bytes(8), b"")
@example(None, [["device tensor", "float32", [2]]], bytes(8), b"")
@example(None, [["device tensor", "Tensor", [2]]], bytes(8), b"")
@example(["registered", "os", "system", "echo", [None]], [["str"]], bytes(8), b"")
@example(["fields", "subprocess", "Popen", ["args"], [None]], [["str"]], bytes(8), b"")
@example(["dict", ["a", "a"], [None, None]], [["none"], ["none"]], b"", b"")
@example(["dict", [["float", "0x1p999999"]], [None]], [["none"]], b"", b"")
@example(["dict", [["tuple", [["bytes", "0"]]]], [None]], [["none"]], b"", b"")
@example(None, [["tensor", "float32", [1 << 60], False]], b"", bytes(64))
@example(None, [["permuted", [1, 1], "array", "<f", [2, 2], False, False]], b"", bytes(64))
@example(None, [["permuted", [1, 0], "array", "<f", [2], False, False]], b"", bytes(64))
@example(None, [["permuted", [True, 0], "array", "<f", [2, 2], False, False]], b"", bytes(64))
@example(None, [["permuted", 1, "tensor", "float32", [2, 2], False]], b"", bytes(64))
@example(None, [["permuted", [0], "scalar", "<f"]], b"", bytes(64))
@example(None, [["permuted"]], b"", bytes(64))
@example(None, [["tensor", "Tensor", [1], False]], b"", bytes(64))
def test_made_up_descriptions_are_message_errors(tree: Any, leaves: Any, values: bytes, memory: bytes) -> None:
    """Any JSON in place of a tree and leaves gives an element or a MessageError."""
    description = json.dumps({"penstock": 1, "tree": tree, "leaves": leaves}).encode()
    _read(description, _forged(message_of(None).head, description) + values, memory)


FIELD: dict[str, Any] = {"names": ["a"], "formats": ["<d"], "titles": [None], "offsets": [0], "itemsize": 8}
WRONG_FIELDS: list[dict[str, Any]] = [
    {"formats": ["|O"]},
    {"offsets": [4]},
    {"offsets": [-1]},
    {"formats": [["<d", [1 << 30, 1 << 30]]]},
    {"names": ["a", "a"], "formats": ["|b", "|b"], "titles": [None] * 2, "offsets": [0, 1]},
    {"names": [1]},
    {"itemsize": 1 << 40},
    {"offsets": [1], "itemsize": 16, "aligned": True},
    {"names": [], "formats": [], "titles": [], "offsets": [], "itemsize": 0},
]


def test_dtypes_are_checked_field_by_field() -> None:
    """A structured dtype that couldn't have been written is refused; so are NumPy's strings, which are sent as text."""

    def description(dtype: dict[str, Any]) -> bytes:
        return _description(["array", json.dumps({**FIELD, "aligned": False, **dtype}), [1], False, False])

    learn(description({}))
    for dtype in WRONG_FIELDS:
        with pytest.raises(MessageError):
            learn(description(dtype))
    for text in ("<U2", "|S2"):
        with pytest.raises(MessageError):
            learn(_description(["scalar", text]))


def _description(leaf: list[Any]) -> bytes:
    return json.dumps({"penstock": 1, "tree": None, "leaves": [leaf]}).encode()


def test_nesting_is_limited() -> None:
    """A description nested beyond all measure is refused, however deep the stack is already."""
    for levels in (101, 5_000, 200_000):
        tree = b'["list",[' * levels + b"null" + b"]]" * levels
        with pytest.raises(MessageError):
            learn(b'{"penstock":1,"tree":' + tree + b',"leaves":[["none"]]}')
        key = b'["tuple",[' * levels + b"null" + b"]]" * levels
        with pytest.raises(MessageError):
            learn(b'{"penstock":1,"tree":["dict",[' + key + b'],[null]],"leaves":[["none"]]}')


def test_declared_sizes_allocate_nothing() -> None:
    """A message that declares a terabyte and doesn't have it costs no memory."""
    for leaf in (["array", "|B", [1 << 40], False, False], ["str"], ["bytes"], ["integer"], ["handle", False]):
        size = b"" if leaf[0] == "array" else (1 << 40).to_bytes(8, "little")
        head = _forged(message_of(None).head, _description(leaf)) + size
        ends = Ends()
        ends.learn(_description(leaf))
        tracemalloc.start()
        try:
            with pytest.raises(MessageError):
                ends.decode(head, bytes(100), ())
            assert tracemalloc.get_traced_memory()[1] < 100_000
        finally:
            tracemalloc.stop()


def test_text_that_is_none_is_a_message_error() -> None:
    """Characters beyond Unicode would break Python's strings; an array that has some is refused."""
    dtypes: list[Any] = ["<U2", ">U1", [("a", "i1"), ("b", [("c", "<U1", (2,))])]]
    for dtype in dtypes:
        ends = Ends()
        message = ends.sent(np.zeros(3, dtype))
        with pytest.raises(MessageError, match="invalid character"):
            ends.decode(message.head, b"\xff" * message.size_bytes, ())


def test_other_versions_are_refused() -> None:
    """A head or a description of another version says which one was expected."""
    ends = Ends()
    message = ends.sent(np.ones(3))
    with pytest.raises(MessageError, match="must have version 1"):
        ends.decode(message.head[:3] + b"\x02" + message.head[4:], written(message), ())
    with pytest.raises(MessageError, match="must have version 1"):
        ends.learn((message.description or b"").replace(b'"penstock":1', b'"penstock":2'))


def test_pickled_leaves_are_refused() -> None:
    """Nothing is unpickled unless the receiver allows it, and the error says how."""
    ends = Ends(allow_pickle=True, receiver_allows=False)
    message = ends.sent({"a": {1, 2}})
    with pytest.raises(MessageError, match="allow_pickle=True"):
        ends.received(message)
