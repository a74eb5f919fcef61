"""Nested elements, split into leaves and a structure, and rebuilt from them.

Containers are dicts, lists, tuples, named tuples and instances of dataclasses; everything else is a leaf. A `Structure`
is an element without its leaves: a value that can be compared, hashed and pickled. The idea, the name `flatten` and
errors that name the path of the first difference come from JAX's pytrees and from optree; unlike there, the keys of a
dict keep their order, so that they need not be sortable.

A `Structure` records subclasses as their base, a `defaultdict` as a dict and a `torch.Size` as a tuple. `unflatten` has
no instance to copy, so it makes dicts and tuples; `map_leaves` has one, so it keeps the type. A dataclass is rebuilt by
calling it with its fields, so `__post_init__` sees the new leaves.
"""

import copy
import dataclasses
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from types import MemberDescriptorType
from typing import Any, Final, TypeAlias, TypeGuard, cast

import numpy as np
from numpy.typing import NDArray

from penstock._caught import Caught
from penstock._frozen import frozen
from penstock.errors import InternalError, UsageError

Element: TypeAlias = Any  # user data: a nested dict, list, tuple, named tuple or dataclass of leaves


@frozen
class Structure:
    """An element without its leaves.

    Attributes:
        container: dict, list, tuple, or the type of the named tuple or dataclass; None for a leaf.
        keys: the dict's keys or the field names, in order; empty for lists, tuples and leaves.
        children: the structures inside, in order.

    Example:
        >>> leaves, structure = flatten({"image": 1, "boxes": [2, 3]})
        >>> structure == flatten({"image": "a", "boxes": ["b", "c"]})[1]
        True
    """

    container: type | None = None
    keys: tuple[Hashable, ...] = ()
    children: tuple["Structure", ...] = ()

    @property
    def num_leaves(self) -> int:
        """The number of leaves that `unflatten` takes."""
        return 1 if self.container is None else sum(child.num_leaves for child in self.children)


LEAF: Final = Structure()
IMMUTABLE: Final[frozenset[type]] = frozenset(
    {int, float, complex, bool, str, bytes, type(None), *(each for each in np.sctypeDict.values() if each != np.void)}
)
"""Types of leaves that can't be changed; a `numpy.void` may be a view of an array of structures."""
_PLAIN: Final = IMMUTABLE | {np.ndarray, np.void}
"""Types that are leaves, of which nothing has to be found out."""
_NUMBERS: Final[frozenset[type]] = frozenset({type(None), bool, int, float, complex})
_PYTHON_CLASS: Final = 1 << 9  # of `type.__flags__`: made at run time, so its instances hide nothing but attributes


def flatten(element: Element, is_leaf: Callable[[object], bool] | None = None) -> tuple[list[Any], Structure]:
    """Return the leaves of an element, in order, and its structure.

    Args:
        element: the nested element; a bare leaf is an element too.
        is_leaf: called with every part of the element, containers included; it returns True for a part that is a leaf.

    Raises:
        UsageError: a dataclass inside has a field that its constructor doesn't take.

    Example:
        >>> flatten({"b": 1, "a": (2, 3)})[0]
        [1, 2, 3]
    """
    leaves: list[Any] = []
    return leaves, _take_apart(element, leaves, is_leaf)


def unflatten(structure: Structure, leaves: Iterable[object]) -> Element:
    """Return the element of this structure with these leaves: the inverse of `flatten`.

    Raises:
        UsageError: the number of leaves differs from the structure's.

    Example:
        >>> unflatten(flatten({"b": 1, "a": (2, 3)})[1], "xyz")
        {'b': 'x', 'a': ('y', 'z')}
    """
    given = list(leaves)
    if structure.container is None and len(given) == 1:
        return given[0]  # the most frequent batch, a bare array: the general way takes several times as long
    if len(given) != structure.num_leaves:
        raise UsageError(f"leaves must be as many as the structure's, {structure.num_leaves}; got {len(given)}.")
    return _put_together(structure, iter(given))


def unflatten_each(structure: Structure, leaves: Sequence[Sequence[object]], count: int) -> list[Element]:
    """Return `count` elements of this structure, each as `unflatten` does, in less time.

    Args:
        structure: the structure.
        leaves: for each leaf those of all elements.
        count: the number of elements.

    Example:
        >>> unflatten_each(flatten({"b": 1, "a": (2, 3)})[1], ["xu", "yv", "zw"], 2)
        [{'b': 'x', 'a': ('y', 'z')}, {'b': 'u', 'a': ('v', 'w')}]
    """
    return _put_each_together(structure, iter(leaves), count)


def map_leaves(function: Callable[[Any], object], element: Element) -> Element:
    """Return the element with `function` applied to each of its leaves; all containers keep their types.

    A dataclass keeps its other attributes, and its constructor isn't called: a `__post_init__` that has changed the
    fields would change them again.

    Raises:
        UsageError: a dataclass, or an instance of a subclass of dict, list or tuple, can't be copied with other leaves.

    Example:
        >>> map_leaves(str, {"b": 1, "a": (2, 3)})
        {'b': '1', 'a': ('2', '3')}
    """
    parts = _parts(element)
    if parts is None:
        return function(element)
    container, keys, children = parts
    before = list(children)
    return _with_children(element, container, keys, before, [map_leaves(function, child) for child in before])


def map_children(function: Callable[[str, Any], object], part: Element) -> Element:
    """Return a container with `function` applied to what it holds, but not to what is inside that; as `map_leaves`.

    Args:
        function: called with the end of each part's path, and the part.
        part: the container.

    Raises:
        UsageError: as `map_leaves`.

    Example:
        >>> map_children(lambda step, child: f"{step}: {child}", {"b": 1, "a": (2, 3)})
        {'b': "['b']: 1", 'a': "['a']: (2, 3)"}
    """
    parts = _parts(part)
    if parts is None:
        raise InternalError("a leaf holds no parts")
    container, keys, children = parts
    before = list(children)
    steps = [_step(container, key) for key in keys or range(len(before))]
    return _with_children(part, container, keys, before, list(map(function, steps, before)))


def _with_children(
    element: Element, container: type, keys: tuple[Hashable, ...], before: list[Any], made: list[Any]
) -> Element:
    if hasattr(container, "__dataclass_fields__"):
        return _dataclass_like(element, keys, made)
    if container is type(element):
        filled = _filled(container, keys, made)
        for name, value in getattr(element, "__dict__", {}).items():  # of a subclass of a named tuple
            object.__setattr__(filled, name, value)
        return filled
    return _like(element, container, keys, before, made)


def runs_code(structure: Structure) -> bool:
    """Return whether `unflatten` calls a constructor for this structure, which may change what it gets each time."""
    return hasattr(structure.container, "__dataclass_fields__") or any(map(runs_code, structure.children))


def holds_fields_alone(part: object) -> bool:
    """Return whether a named tuple or a dataclass is the same as one that `of_fields` makes of its fields.

    It isn't if it has other attributes, if its type decides how it is pickled, or if an attribute isn't simply stored.
    Such a part can be sent only as a whole.

    Raises:
        UsageError: as `field_names`.
    """
    kind: Any = type(part)
    if not _keeps_what_it_gets(kind):
        return False
    state: Any = object.__getstate__(part)  # whatever the type itself returns for a pickle
    if tuple in kind.__mro__:
        return state is None
    attributes, slots = cast("tuple[Any, Any]", state if isinstance(state, tuple) else (state, None))
    return {*(attributes or ()), *(slots or ())} == {*field_names(kind)}


def of_fields(kind: type[Any], names: Sequence[str], values: Iterable[object]) -> Element:
    """Return a named tuple or a dataclass with these values in its fields; no constructor of the type is called."""
    if tuple in kind.__mro__:
        return cast("type[tuple[object, ...]]", tuple).__new__(kind, values)
    made: object = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)  # also where it is frozen
    return made


@functools.lru_cache(maxsize=256)
def _keeps_what_it_gets(kind: type[Any]) -> bool:
    """Return whether an instance of a type is what is stored in it, and is read and set without other code."""
    base = tuple if tuple in kind.__mro__ else object
    if not all(each.__flags__ & _PYTHON_CLASS for each in kind.__mro__ if each is not base and each is not object):
        return False
    names = "__getattribute__", "__reduce__", "__reduce_ex__"
    if any(getattr(kind, name) is not getattr(base, name) for name in names):
        return False
    return base is tuple or all(_is_stored(kind, name) for name in field_names(cast("Any", kind)))


def _is_stored(kind: object, name: str) -> bool:
    found = inspect.getattr_static(kind, name, None)
    return isinstance(found, MemberDescriptorType) or not hasattr(cast("object", type(found)), "__set__")


def _dataclass_like(part: object, names: tuple[Hashable, ...], made: list[Any]) -> object:
    """Return a copy of a dataclass with other values in its fields."""
    twin: object = None
    with Caught(Exception) as caught:  # the type's own code may raise anything
        twin = copy.copy(part)
        for name, value in zip(names, made, strict=True):
            object.__setattr__(twin, str(name), value)  # also where it is frozen
    if caught.error is not None:
        kind, cause = type(part).__qualname__, caught.taken()
        raise UsageError(
            f"a dataclass inside an element must be copyable; got {kind} ({type(cause).__name__}: {cause}). Return a "
            "dict or a named tuple from .map instead."
        ) from cause
    return twin


def _like(part: object, container: type, keys: tuple[Hashable, ...], before: list[Any], made: list[Any]) -> object:
    """Return a copy of a part of an element, whose type derives from a container's, with other children."""
    kind: Any = type(part)
    twin: Any = None
    with Caught(Exception) as caught:  # the type's own code may raise anything
        twin = _filled_twin(part, container, keys, before, made)
    cause = None if caught.error is None else caught.taken()
    if cause is not None or type(twin) is not kind or len(twin) != len(made):
        raise UsageError(
            f"a subclass of {container.__name__} must be copyable, and accept other values; got one of type "
            f"{kind.__qualname__}. Return a {container.__name__}, a named tuple or a dataclass from .map instead."
        ) from cause
    return twin


def _filled_twin(
    part: object, container: type, keys: tuple[Hashable, ...], before: list[Any], made: list[Any]
) -> object:
    kind: Any = type(part)
    if container is tuple:
        is_same = all(one is other for one, other in zip(before, made, strict=True))
        return part if is_same else kind(made)
    twin: Any = None
    with Caught(Exception) as caught:
        twin = copy.copy(part)
    if caught.error is not None:  # some types raise a KeyError for an attribute that they don't have
        caught.taken()
        twin = kind.__new__(kind)
        twin.__dict__.update(part.__dict__)
    if container is list:
        twin[:] = made
    else:
        for key, child in zip(keys, made, strict=True):
            twin[key] = child
    return twin


def leaf_paths(structure: Structure) -> tuple[str, ...]:
    """Return the path of each leaf, as code that indexes the element; the path of a bare leaf is empty.

    Example:
        >>> leaf_paths(flatten({"image": 0, "boxes": [1, 2]})[1])
        ("['image']", "['boxes'][0]", "['boxes'][1]")
    """
    return tuple(_paths(structure, ""))


def align_leaves(structure: Structure, leaves: list[Any], given: Structure) -> list[Any] | None:
    """Return the leaves of an element of structure `given` in the order in which `structure` has them.

    The two may differ in the order of the keys of their dicts, and in nothing else.

    Returns:
        The leaves in order, or None if the structures differ.

    Example:
        >>> leaves, given = flatten({"a": 1, "b": 2})
        >>> align_leaves(flatten({"b": 0, "a": 0})[1], leaves, given)
        [2, 1]
    """
    if structure == given:
        return leaves
    if structure.container is not given.container or len(structure.children) != len(given.children):
        return None
    parts: dict[Hashable, tuple[list[Any], Structure]] = {}
    start = 0
    for key, child in _named_children(given):
        parts[key] = leaves[start : start + child.num_leaves], child
        start += child.num_leaves
    aligned: list[Any] = []
    for key, child in _named_children(structure):
        if key not in parts:
            return None
        part = align_leaves(child, *parts[key])
        if part is None:
            return None
        aligned += part
    return aligned


def describe_difference(
    structure: Structure, other: Structure, names: tuple[str, str] = ("the first", "the second")
) -> str:
    """Return a phrase which says where two structures first differ, and how; empty if they are equal.

    Args:
        structure: the first structure.
        other: the second.
        names: the names of the two in the phrase.

    Example:
        >>> first, second = flatten({"meta": {"id": 1}})[1], flatten({"meta": {"id": 1, "tag": 2}})[1]
        >>> describe_difference(first, second, ("row 0", "row 3"))
        "['meta'] has the key 'tag' in row 3 but not in row 0"
    """
    return _difference(structure, other, names, "")


def is_container(part: object) -> bool:
    """Return whether `flatten` would take this part of an element apart.

    Example:
        >>> is_container((1, 2)), is_container("ab")
        (True, False)
    """
    return _parts(part) is not None


def subject(path: str) -> str:
    """Return the name, in messages, of the part of an element at `path`."""
    return path or "the element"


def _take_apart(element: object, leaves: list[Any], is_leaf: Callable[[object], bool] | None) -> Structure:
    if type(element) in _PLAIN or (is_leaf is not None and is_leaf(element)):
        leaves.append(element)
        return LEAF
    parts = _parts(element)
    if parts is None:
        leaves.append(element)
        return LEAF
    container, keys, children = parts
    return Structure(container, keys, tuple(_take_apart(child, leaves, is_leaf) for child in children))


def _parts(part: object) -> tuple[type, tuple[Hashable, ...], Iterable[object]] | None:
    """Return the container, keys and children of a part of an element, or None for a leaf."""
    kind: Any = type(part)
    bases, element = kind.__mro__, cast("Element", part)
    if dict in bases:
        return dict, tuple(element), element.values()
    if list in bases:
        return list, (), element
    if tuple in bases:
        names: tuple[str, ...] | None = getattr(kind, "_fields", None)
        return (tuple, (), element) if names is None else (kind, names, element)
    if hasattr(kind, "__dataclass_fields__"):
        names = field_names(kind)
        return kind, names, [getattr(part, name) for name in names]
    return None


@functools.lru_cache(maxsize=256)
def field_names(container: type[Any]) -> tuple[str, ...]:
    """Check that a dataclass can be rebuilt from its fields, and return their names.

    Raises:
        UsageError: the constructor doesn't take one of the fields, or requires an argument that is not a field.
    """
    fields = dataclasses.fields(container)
    for field in fields:
        if not field.init:
            raise UsageError(
                f"a dataclass inside an element must be rebuildable from its fields; {container.__qualname__}."
                f"{field.name} has init=False. Return a dict or a named tuple from .map instead."
            )
    names = tuple(field.name for field in fields)
    try:
        inspect.signature(container).bind(**dict.fromkeys(names))
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"a dataclass inside an element must be rebuildable from its fields; {container.__qualname__}() can't be "
            f"called with them alone ({error}). Return a dict or a named tuple from .map instead."
        ) from error
    return names


def _put_together(structure: Structure, leaves: Iterator[object]) -> Element:
    if structure.container is None:
        return next(leaves)
    return _filled(structure.container, structure.keys, [_put_together(child, leaves) for child in structure.children])


def _put_each_together(structure: Structure, leaves: Iterator[Sequence[object]], count: int) -> list[Element]:
    container, keys = structure.container, structure.keys
    if container is None:
        return list(next(leaves))
    children = [_put_each_together(child, leaves, count) for child in structure.children]
    parts = zip(*children, strict=True) if children else itertools.repeat((), count)
    if container is dict:
        return [dict(zip(keys, part, strict=True)) for part in parts]
    return [_filled(container, keys, list(part)) for part in parts]


def _filled(kind: type, keys: tuple[Hashable, ...], children: list[Any]) -> Element:
    """Return a container of a type with these children."""
    container: Any = kind
    if container is dict:
        return dict(zip(keys, children, strict=True))
    if container is list:
        return children
    if container is tuple:
        return tuple(children)
    if tuple in container.__mro__:
        return container._make(children)
    return container(**{str(key): child for key, child in zip(keys, children, strict=True)})


def _named_children(structure: Structure) -> list[tuple[Hashable, Structure]]:
    keys = structure.keys or range(len(structure.children))
    return list(zip(keys, structure.children, strict=True))


def _paths(structure: Structure, path: str) -> Iterator[str]:
    if structure.container is None:
        yield path
    for key, child in _named_children(structure):
        yield from _paths(child, path + _step(structure.container, key))


def _step(container: type | None, key: Hashable) -> str:
    return f"[{key!r}]" if container in {dict, list, tuple} else f".{key}"


def _difference(structure: Structure, other: Structure, names: tuple[str, str], path: str) -> str:
    first, second = names
    if structure == other:
        return ""
    if kind_text(structure) != kind_text(other) or structure.container is not other.container:
        return f"{subject(path)} is {kind_text(structure)} in {first} and {kind_text(other)} in {second}"
    children, other_children = dict(_named_children(structure)), dict(_named_children(other))
    for key, child in children.items():
        if key not in other_children:
            return f"{subject(path)} has the key {key!r} in {first} but not in {second}"
        difference = _difference(child, other_children[key], names, path + _step(structure.container, key))
        if difference:
            return difference
    for key in other_children:
        if key not in children:
            return f"{subject(path)} has the key {key!r} in {second} but not in {first}"
    return f"the keys of {subject(path)} are in another order in {second} than in {first}"


def kind_text(structure: Structure) -> str:
    """Return the kind of a part of an element, for messages, such as "a list of 2"."""
    if structure.container is None:
        return "a single value (such as an array or None)"
    if structure.container in {list, tuple}:
        return f"a {structure.container.__name__} of {len(structure.children)}"
    return f"a {structure.container.__qualname__}"


def is_array(leaf: object) -> TypeGuard[NDArray[Any]]:
    """Return whether a leaf is a NumPy array."""
    return isinstance(leaf, np.ndarray)


def is_masked(leaf: object) -> bool:
    """Return whether a leaf is one of NumPy's masked arrays. Their module takes 30 ms to import, so it isn't here."""
    masked = sys.modules.get("numpy.ma")
    return masked is not None and isinstance(leaf, masked.MaskedArray)


def leaf_bytes(leaf: object) -> int:
    """Return how large a leaf of a batch is; 0 if it doesn't say, as sparse tensors and most objects."""
    if isinstance(leaf, bytes | str):
        return len(leaf)
    if type(leaf) is np.ndarray:
        return leaf.nbytes
    size: object = 0
    with Caught(Exception):  # the object's own code may raise anything
        size = getattr(leaf, "nbytes", 0)
    if isinstance(size, int | np.integer):
        return int(cast("int", size))
    return 0  # it may be a method, or a column of that name


def element_bytes(element: object, size_of: Callable[[object], int] = leaf_bytes, most_items: int = sys.maxsize) -> int:
    """Return about how large an element's leaves are, also of one that `flatten` refuses to take apart.

    Args:
        element: the element.
        size_of: returns how large a leaf is.
        most_items: how many items of a list are looked at; all count as much as these on average.

    Example:
        >>> element_bytes({"x": np.zeros(3), "name": "ab"})
        26
        >>> element_bytes(["ab"] * 1000, most_items=10)
        2000
    """
    kind = type(element)
    part: Any = element
    if kind in _PLAIN:
        return size_of(part)
    children: Iterable[object]
    if dict in kind.__mro__:
        children = part.values()
    elif list in kind.__mro__ or tuple in kind.__mro__:
        children = part
        if len(part) > most_items and not hasattr(kind, "_fields"):
            some = [*part[:: -(-len(part) // most_items)]]
            return element_bytes(some, size_of, most_items) * len(part) // len(some)
    elif hasattr(kind, "__dataclass_fields__"):
        children = [getattr(part, field.name, None) for field in dataclasses.fields(part)]
    else:
        return size_of(part)
    if _NUMBERS.issuperset(map(type, children)):
        return 0
    return sum(element_bytes(child, size_of, most_items) for child in children)
