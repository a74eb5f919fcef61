"""Elements that share no memory: a function may write to one, and no other element changes.

Elements of one list may share an array, a tensor, a container or any other object, and a row that is chosen twice is
made once. Such elements are copied, so that a function above them that writes to its input finds the same as where each
element is computed alone.

Two elements share memory if both reach a byte that can be written to through one of them. Arrays, tensors and other
buffers are compared by the addresses that they span. All other objects are compared by identity: containers, what they
hold, and what the attributes of objects of Python classes hold. What an object of an extension type holds isn't known.

Rejected: a copy of each element, which costs more than most functions; and `copy.deepcopy` alone, which copies the
whole storage of a tensor for each of its rows, and makes read-only arrays writable.

Invariants:
  - Read-only memory to which nothing writes stays shared.
  - No constructor runs for a copy, so a `__post_init__` sees each element once.
  - An object that can't be copied is never shared: it is an error.
"""

import contextlib
import copy
import gc
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeGuard, cast

import numpy as np

from penstock._caught import Caught
from penstock._packed_strings import PackedStrings
from penstock._strides import copied_with_strides
from penstock._tensors import copied_tensor, is_tensor, tensor_layout, tensor_type
from penstock._tree import IMMUTABLE, Element, map_leaves
from penstock.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CONTAINERS: Final = frozenset({dict, list, tuple})
_KNOWN_PARTS: Final = dict, list, tuple, set, frozenset
_LEVELS_AT_A_GLANCE: Final = 4  # such as a list of batches, a batch, its fields, and none in these
_QUICK: Final = IMMUTABLE | {np.ndarray}
_OF_PICKLES: Final = "__reduce__", "__reduce_ex__", "__getstate__"
_SINGLE: Final = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, Enum, np.dtype)
"""Objects of which a program has one; `copy.deepcopy` returns nearly all of them as they are."""
_PYTHON_CLASS: Final = 1 << 9  # of `type.__flags__`: the type was made at run time, so its objects' attributes are seen
Part: TypeAlias = Any  # an object inside an element
_Memory: TypeAlias = tuple[int, int, int, bool]
"""The span of an array, a tensor or another buffer: the addresses of its first byte and of the one after its last byte,
equal if it has none; the number of its element; and whether it can be written to."""
_Owners: TypeAlias = dict[int, tuple[int, object]]
"""By the identity of an object: the number of the last element that reaches it, and the object, so that it stays."""


class _Layout(NamedTuple):
    """The places of the items of an array or tensor."""

    address: int
    """Of the first item."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In bytes."""
    item_bytes: int


def independent(elements: list[Element]) -> list[Element]:
    """Return elements of which no two share memory, so that a write to one changes no other.

    An element is copied where it would; of two arrays that are read-only both are kept.

    Raises:
        UsageError: an element must be copied and can't be.

    Example:
        >>> one, other = independent([np.zeros(2)] * 2)
        >>> one += 1
        >>> other
        array([0., 0.])
    """
    if len(elements) < 2 or IMMUTABLE.issuperset(map(type, elements)):
        return elements
    shared = _sharing(elements)
    return [copied(element) if number in shared else element for number, element in enumerate(elements)]


def have_own_objects(elements: list[Element]) -> bool:
    """Return whether no object that can be changed is in two of some elements, as far as they show what they hold.

    Example:
        >>> one, other = np.zeros(2), np.zeros(2)
        >>> have_own_objects([{"x": one}, {"x": other}]), have_own_objects([{"x": one}, {"y": one}])
        (True, False)
    """
    found: list[Any] = []
    inside: list[Any] | None = elements
    for _ in range(_LEVELS_AT_A_GLANCE):
        if inside is None:
            break
        changeable = _changeable(inside)
        if not changeable and len(set(map(id, found))) == len(found):
            return True
        found += changeable
        inside = _inside_all(changeable)
    owners: _Owners = {}
    return all(_reach(element, number, owners) is not None for number, element in enumerate(elements))


def share_at_a_glance(elements: list[Element]) -> bool:
    """Return whether two of some elements are one object, or hold one, or share memory that can be written to.

    Only an element and the items of a dict, a list or a tuple are looked at: an object may reach a whole program.

    Example:
        >>> rows = np.zeros((2, 3))
        >>> share_at_a_glance([rows[0], rows[1]]), share_at_a_glance([{"x": rows[0]}, {"x": rows[0]}])
        (False, True)
    """
    owners: dict[int, int] = {}
    memory: list[_Memory] = []
    for number, element in enumerate(elements):
        items: Iterable[Part] = ()
        if isinstance(element, dict):
            items = cast("dict[object, object]", element).values()
        elif isinstance(element, list | tuple):
            items = cast("Sequence[object]", element)
        for part in _changeable([element, *items]):
            if owners.setdefault(id(part), number) != number:
                return True
            span = _memory_of(part, number)
            memory += () if span is None else (span,)
    return bool(_overlapping(memory))


def copied(element: Element, *, exactly: bool = False) -> Element:
    """Return an element with copies of its containers, its memory and its other objects.

    Args:
        element: the element.
        exactly: raise the error also for an element whose copy may behave otherwise, since some of its arrays are views
            of the same memory.

    Raises:
        UsageError: an object in the element can't be copied.
    """
    if type(element) in IMMUTABLE:
        return element
    quick = _copied_quickly(element)
    if quick is not None:
        return quick
    with Caught(Exception) as caught:  # the objects' own code may raise anything
        return copy.deepcopy(element, _memo(element, exactly=exactly))
    error = caught.taken()
    try:
        if not exactly:
            with Caught(Exception):
                return _copied_by_parts(element)
        raise UsageError(
            "elements that share memory must be copyable, since a function above may write to one of them; got one of "
            f"type {type(element).__qualname__} ({type(error).__name__}: {error}). Give each element its own objects."
        ) from error
    finally:
        del error  # else its traceback would hold this frame, and with it the element


def shared_within(element: Element) -> list[list[Part]] | None:
    """Return the arrays and tensors of an element that share memory that can be written to.

    Returns:
        A list of them for each such memory; none if only other objects are in several places of the element; None if
        nothing is.

    Example:
        >>> tokens, other = np.zeros(5), np.zeros(5)
        >>> shared_within({"x": tokens, "y": other}), shared_within({"x": tokens, "y": tokens})
        (None, [])
        >>> [len(group) for group in shared_within({"x": tokens[:-1], "y": tokens[1:]})]
        [2]
    """
    buffers = _quick_buffers(element)
    if buffers is not None and all(map(_owns_all, buffers)):
        return None if len(set(map(id, buffers))) == len(buffers) else []
    found: dict[int, Part] = {}
    is_repeated = False
    pending = [element]
    while pending:
        part = pending.pop()
        if type(part) in IMMUTABLE or isinstance(part, _SINGLE):
            continue
        if id(part) in found:
            is_repeated = is_repeated or not _is_value(part)
            continue
        found[id(part)] = part
        if not _has_own_pickle(part):
            pending += _inside(part)
    parts = list(found.values())
    memory = _memory_of_all(parts, range(len(parts)))
    groups = [[parts[number] for _, _, number, _ in group] for group in _groups(memory) if _writing(group)]
    return groups or ([] if is_repeated else None)


def are_apart(columns: Sequence[object]) -> bool:
    """Return whether certainly no two rows of these columns of a batch share memory that may be written to.

    Args:
        columns: arrays and tensors with an axis of rows, lists of items, or None.
    """
    held: list[object] = []  # whose rows can be written to
    has_views = False
    for column in columns:
        if type(column) is np.ndarray:
            if column.dtype.hasobject:
                return False
            if column.ndim > 1 or column.dtype.kind == "V":
                held.append(column)
                has_views = has_views or column.base is not None
        elif is_tensor(column):
            held.append(column)
            has_views = True
        elif column is not None and not _is_immutable_list(column):
            return False
    return not has_views or _views_are_apart(held)


def _is_immutable_list(column: object) -> bool:
    return type(column) is list and IMMUTABLE.issuperset(map(type, cast("list[object]", column)))


def _views_are_apart(columns: list[object]) -> bool:
    if any(map(_overlaps_itself, columns)):
        return False
    return len(columns) < 2 or not _overlapping(_memory_of_all(columns, range(len(columns))))


def _memory_of_all(buffers: Iterable[object], numbers: Iterable[int]) -> list[_Memory]:
    """Return the memory of those objects that are buffers, of elements with these numbers."""
    return [span for span in map(_memory_of, buffers, numbers) if span is not None]


def _sharing(elements: list[Element]) -> set[int]:
    """Return the numbers of elements to copy, so that no two share memory."""
    shared: set[int] = set()
    holders: dict[int, int] = {}  # by the identity of an element, the first number that it has
    held: list[list[Any]] = []  # of each of these elements
    for number, element in enumerate(elements):
        if holders.setdefault(id(element), number) != number:
            shared.add(number)
            continue
        found = _quick_buffers(element)
        if found is None:
            return _sharing_at_length(elements)
        held.append(found)
    buffers = list(chain.from_iterable(held))
    if len(set(map(id, buffers))) < len(buffers):
        return _sharing_at_length(elements)
    if all(map(_owns_all, buffers)):  # the rule: then no two share any
        return shared
    if any(map(_holds_others, buffers)):
        return _sharing_at_length(elements)
    numbers = [number for number, found in zip(holders.values(), held, strict=True) for _ in found]
    return shared | _overlapping(_memory_of_all(buffers, numbers))


def _changeable(parts: list[Part]) -> list[Part]:
    return [] if IMMUTABLE.issuperset(map(type, parts)) else [part for part in parts if type(part) not in IMMUTABLE]


def _inside_all(parts: list[Part]) -> list[Part] | None:
    """Return what some parts hold, at least what of it can be changed; None where that isn't seen at a glance."""
    kinds = set(map(type, parts))
    if kinds == {dict}:
        return list(chain.from_iterable(map(dict[object, object].values, parts)))
    if kinds == {list} or kinds == {tuple}:
        return list(chain.from_iterable(parts))
    return [] if all(map(_holds_none, parts)) else None


def _holds_none(leaf: Part) -> bool:
    """Return whether an array, a tensor or a list has no objects in it that can be changed."""
    if type(leaf) is np.ndarray:
        return not leaf.dtype.hasobject
    if type(leaf) is list or type(leaf) is tuple:
        return IMMUTABLE.issuperset(map(type, cast("Sequence[object]", leaf)))
    return type(leaf) is PackedStrings or (is_tensor(leaf) and not _attributes(leaf))


def _quick_buffers(element: object) -> list[Any] | None:
    """Return the arrays and tensors of an element that is one, or a flat container of them and immutable leaves.

    Returns:
        These; None for any other element.
    """
    kind = type(element)
    if kind is dict:
        values = list(cast("dict[object, object]", element).values())
    elif kind is list or kind is tuple:
        values = list(cast("Sequence[object]", element))
    else:
        values = [element]
    kinds = set(map(type, values))
    if kinds <= _QUICK:
        return [value for value in values if type(value) is np.ndarray] if np.ndarray in kinds else []
    if kinds <= {*_QUICK, tensor_type()}:
        return [value for value in values if type(value) not in IMMUTABLE]
    return None


def _owns_all(buffer: Part) -> bool:
    """Return whether this is an array with memory of its own, in which there are no other objects."""
    return type(buffer) is np.ndarray and buffer.flags.owndata and not buffer.dtype.hasobject


def _holds_others(buffer: object) -> bool:
    return buffer.dtype.hasobject if _is_array(buffer) else bool(_attributes(buffer))


def _sharing_at_length(elements: list[Element]) -> set[int]:
    owners: _Owners = {}
    shared: set[int] = set()
    memory: list[_Memory] = []
    for number, element in enumerate(elements):
        own = _reach(element, number, owners)
        if own is None:
            shared.add(number)
        else:
            memory += own
    return shared | _overlapping(memory)


def _reach(element: Element, number: int, owners: _Owners) -> list[_Memory] | None:
    """Add the objects that an element reaches; return its memory, or None if an object is another element's, too."""
    memory: list[_Memory] = []
    parts = [element]
    while parts:
        part = parts.pop()
        owner = owners.get(id(part))
        if type(part) in IMMUTABLE or isinstance(part, _SINGLE) or (owner is not None and owner[0] == number):
            continue
        owners[id(part)] = number, part
        span = _memory_of(part, number)
        if owner is not None and (not _is_value(part) if span is None else span[3]):
            return None
        memory += () if span is None else (span,)
        parts += _inside(part)
    return memory


def _inside(part: Part) -> Iterable[object]:
    """Return the objects that an object holds, as far as they are known."""
    if type(part) in _CONTAINERS:
        inside: Iterable[object] = cast("dict[object, object]", part).values() if type(part) is dict else part
        return () if IMMUTABLE.issuperset(map(type, inside)) else inside
    if _is_array(part):
        return [*([part.tolist()] if part.dtype.hasobject else []), *_attributes(part).values()]
    if is_tensor(part):
        return _attributes(part).values()
    has_parts = isinstance(part, _KNOWN_PARTS) or type(part).__flags__ & _PYTHON_CLASS
    return gc.get_referents(part) if has_parts else ()


def _has_own_pickle(part: Part) -> bool:
    """Return whether an object's class says what a pickle has of it, such as a name: a whole program may hang on it."""
    if isinstance(part, _KNOWN_PARTS) or _is_array(part) or is_tensor(part):
        return False
    kind = cast("Any", type(part))
    return any(getattr(kind, name, None) is not getattr(object, name, None) for name in _OF_PICKLES)


def _attributes(part: object) -> dict[str, object]:
    """Return the attributes of an array's or tensor's subclass, without the file of a mapped array."""
    return {} if isinstance(part, np.memmap) else getattr(part, "__dict__", {})


def _is_value(part: object) -> bool:
    """Return whether an object can't be changed, though others in it may be."""
    return isinstance(part, tuple | frozenset) or _is_atom(part)


def _is_atom(part: object) -> bool:
    """Return whether an object can't be changed, and has no others in it."""
    if isinstance(part, np.void):
        return part.flags.owndata  # NumPy drops what is assigned to its fields
    return type(part) is object or isinstance(part, getattr(sys.modules.get("jax"), "Array", ()))


def _is_fixed_view(part: object) -> bool:
    """Return whether an object is a memoryview that writes to nothing; `copy.deepcopy` can't copy one."""
    return isinstance(part, memoryview) and part.readonly


def _is_array(part: object) -> "TypeGuard[NDArray[Any]]":
    """Return whether an object is an array, or the row of an array of structures, which is a view of it."""
    return isinstance(part, np.ndarray) or (isinstance(part, np.void) and not part.flags.owndata)


def _memory_of(part: object, number: int) -> _Memory | None:
    """Return the memory of an array, a tensor or another buffer; None for any other object, also a row that owns it."""
    if _is_array(part):
        flags = part.flags
        if flags.c_contiguous:
            begin: int = part.__array_interface__["data"][0]
            return begin, begin + part.nbytes, number, flags.writeable
        return *_bounds(_layout(part)), number, flags.writeable
    if is_tensor(part):
        return *_bounds(_layout(part)), number, True
    if type(part) in _CONTAINERS or isinstance(part, np.void):
        return None
    with contextlib.suppress(TypeError, ValueError, BufferError), memoryview(cast("Any", part)) as view:
        return *_bounds(_layout(np.asarray(view))), number, not view.readonly
    return None


def _layout(part: Part) -> _Layout | None:
    if is_tensor(part):
        found = tensor_layout(part)
        return None if found is None else _Layout(*found)
    return _Layout(part.__array_interface__["data"][0], part.shape, part.strides, part.itemsize)


def _bounds(layout: _Layout | None) -> tuple[int, int]:
    """Return the addresses of the first byte and of the byte after the last one; equal if there is none."""
    if layout is None:
        return 0, sys.maxsize
    begin, shape, strides, item_bytes = layout
    if 0 in shape:
        return begin, begin
    reach = [(length - 1) * stride for length, stride in zip(shape, strides, strict=True)]
    last = begin + item_bytes + sum(each for each in reach if each > 0)
    return begin + sum(each for each in reach if each < 0), last


def _overlapping(memory: list[_Memory]) -> set[int]:
    """Return the numbers of elements that can write to memory that another one has, too."""
    return {number for group in _groups(memory) for number in _writing(group)}


def _groups(memory: list[_Memory]) -> Iterator[list[_Memory]]:
    """Yield the spans that overlap, one after the other, as a list; spans that overlap with no other are left out."""
    group: list[_Memory] = []
    end = 0
    for each in sorted(memory):
        start, stop, _, _ = each
        if start >= end:
            if len(group) > 1:
                yield group
            group = []
        if start < stop:
            group.append(each)
            end = max(end, stop)
    if len(group) > 1:
        yield group


def _writing(group: list[_Memory]) -> set[int]:
    """Return the numbers of elements that can write to the memory of a group; none if it is one element's."""
    numbers = {number for _, _, number, _ in group}
    return {number for _, _, number, is_writable in group if is_writable} if len(numbers) > 1 else set()


def _overlaps_itself(part: object) -> bool:
    """Return whether two items of an array or tensor may be at the same place of its memory."""
    if not (_is_array(part) or is_tensor(part)):
        return False
    layout = _layout(part)
    if layout is None:
        return True
    size = layout.item_bytes  # of the axes so far, those with the shortest strides first
    for stride, length in sorted(zip(map(abs, layout.strides), layout.shape, strict=True)):
        if length > 1:
            if stride < size:
                return True
            size += stride * (length - 1)
    return False


def _memo(element: Element, *, exactly: bool) -> dict[int, Any]:
    """Return the copies that `copy.deepcopy` takes for objects of an element, by the identity of these.

    Raises:
        UsageError: the copy of the element may behave otherwise.
    """
    owners: _Owners = {}
    _reach(element, 0, owners)
    parts = [part for _, part in owners.values()]
    if exactly and not _are_disjoint(parts):
        raise UsageError("some of its arrays share memory")
    memo: dict[int, Any] = {id(part): part for part in parts if _is_atom(part) or _is_fixed_view(part)}
    for part in parts:
        if isinstance(part, dict):
            memo.update((id(key), key) for key in cast("dict[object, object]", part) if type(key) not in IMMUTABLE)
        elif _is_array(part) and not part.dtype.hasobject:
            memo[id(part)] = copied_with_strides(part)
    for part in parts:
        if is_tensor(part):
            memo[id(part)] = copied_tensor(cast("Any", part), memo)
        elif _is_array(part) and id(part) in memo and _attributes(part):
            _attributes(memo[id(part)]).update(copy.deepcopy(_attributes(part), memo))
    return memo


def _copied_quickly(element: object) -> Element | None:
    """Return an exact copy of an array, or of a flat container of arrays and immutable leaves.

    Returns:
        The copy; None for any other element, or where arrays share memory.
    """
    buffers = _quick_buffers(element)
    if buffers is None or not all(map(_is_one_piece, buffers)):
        return None
    if len(buffers) > 1 and _overlapping(_memory_of_all(buffers, range(len(buffers)))):
        return None
    kind = type(element)
    if kind is dict:
        return {key: _copied_leaf(leaf) for key, leaf in cast("dict[object, object]", element).items()}
    if kind is list or kind is tuple:
        leaves = [_copied_leaf(leaf) for leaf in cast("Sequence[object]", element)]
        return leaves if kind is list else tuple(leaves)
    return _copied_leaf(element)


def _is_one_piece(buffer: Part) -> bool:
    return type(buffer) is np.ndarray and buffer.flags.c_contiguous and not buffer.dtype.hasobject


def _copied_leaf(leaf: Part) -> Part:
    return copied_with_strides(leaf) if type(leaf) is np.ndarray else leaf


def _are_disjoint(parts: list[object]) -> bool:
    """Return whether the arrays, tensors and other buffers among some objects have memory of their own each."""
    writable = [part for part in parts if not (_is_array(part) and not part.flags.writeable)]
    return not _overlapping(_memory_of_all(parts, range(len(parts)))) and not any(map(_overlaps_itself, writable))


def _copied_by_parts(element: Element) -> Element:
    """Return a copy of an element whose containers can't be copied by `copy.deepcopy`.

    Raises:
        UsageError: a container takes no other values, or is a dataclass, whose constructor would run.
    """
    owners: _Owners = {}
    _reach(element, 0, owners)
    if any(hasattr(type(part), "__dataclass_fields__") for _, part in owners.values()):
        raise UsageError("a dataclass can't be copied by its constructor")
    memo = _memo(element, exactly=False)
    return map_leaves(lambda leaf: copy.deepcopy(leaf, memo), element)
