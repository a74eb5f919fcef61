"""Identities of functions and sources in the key of a cache on disk, and of the index of a filter.

The key must differ wherever the elements may differ, also in a later run after the user has edited the program. So
values count as a whole there, and what is in files by the files' paths, sizes and times. A value counts by what a copy
of it would get: the code of its class, its attributes, and the arguments of its constructor, as `pickle` has them. A
value that has no such content, such as an open file or a generator, counts by the name of its type.
"""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import itertools
import struct
import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from penstock._frozen import frozen
from penstock._graph._code import Kept, Walk, code_names, defines_pickle, full_name, innermost, members_text, package_of
from penstock._graph._plain import plain_bytes
from penstock.sources import AwaitedSource, find_mapped

if TYPE_CHECKING:
    from penstock._graph._per_worker import PerWorker

_PER_WORKER: Final = "penstock._graph._per_worker.PerWorker"  # a module that few datasets need
_TEXTS: Final = frozenset((str, bytes, bytearray))
_TEXT_SIZE: Final = 1 << 10  # a longer text counts by a digest
_COPIED_BYTES: Final = 1 << 24  # of an array whose values don't lie together, in one step
_PIECE: Final = 1 << 6  # values of a container that count together
_FEW: Final = 8  # values of a container whose texts count as they are
# Modules of objects without a lasting value, such as locks: these don't count.
_VALUELESS: Final = frozenset(
    ("_thread", "threading", "multiprocessing", "concurrent", "asyncio", "logging", "weakref", "queue", "_queue", "ssl")
)
# Modules whose objects hold what differs between processes of one program, such as addresses and the environment.
_OF_PROCESS: Final = _VALUELESS | {"os", "ctypes", "subprocess", "tempfile", "socket", "selectors", "importlib"}
_LIBRARIES: Final = sys.stdlib_module_names | {"numpy"}
_CACHED: Final = type(functools.lru_cache(len))
_WHOLE: Final = frozenset((tuple, list, dict, set, frozenset, np.ndarray))  # all of such a value is in its text
_PARTLY: Final = (types.FunctionType, tuple, list, dict, set, frozenset, deque, np.ndarray)
_VIEWS: Final = frozenset(
    type(view()) for view in (dict[str, int]().keys, dict[str, int]().values, dict[str, int]().items)
)


@frozen
class KeyIdentity:
    """The identity of a function or source in the key of a cache.

    Attributes:
        digest: 32 hexadecimal digits.
        hidden: the names of the types of values, outside of code, whose content isn't visible, such as an open file.
    """

    digest: str
    hidden: tuple[str, ...]


def key_identity(thing: object) -> KeyIdentity:
    """Return the identity of a function or of a source, with all values that it holds now.

    It differs from `code_identity`:

      - Containers, texts and arrays count as a whole. Memory maps and the sources of files aren't read: they count by
        the paths, sizes and times of their files.
      - An object counts by its attributes or its pickle, even if it wraps a function or its class is of the standard
        library. Functions and objects of subclasses of containers and arrays count by their attributes, too.
      - A dataset of Hugging Face counts by its own fingerprint.
      - The program's own module is followed also where an object of another package holds its classes, as a composition
        of transforms does. So is the package of what a `PerWorker` calls, and of an async source.

    Args:
        thing: any callable, or any source.

    Example:
        >>> key_identity([1, 2]) == key_identity([1, 3]), key_identity(iter).hidden
        (False, ())
    """
    walk = _Key(package_of(innermost(_users(thing))), with_state=True)
    digest = hashlib.blake2b(walk.text(thing).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return KeyIdentity(digest, tuple(sorted(walk.hidden)))


def _users(thing: object) -> object:
    """Return the user's function or source within an object of Penstock; another one is returned itself."""
    if isinstance(thing, AwaitedSource):
        return thing.source
    is_maker = full_name(type(thing)) == _PER_WORKER
    return cast("PerWorker[..., object]", thing).make if is_maker else thing


class _Key(Walk):
    """A walk for the key of a cache on disk, in which values count as a whole.

    Attributes:
        hidden: the names of the types of values whose content isn't visible.
    """

    code_texts = Kept()

    def __init__(self, package: str, *, with_state: bool, depth: int = 0) -> None:
        super().__init__(package, with_state=with_state, depth=depth)
        self.hidden: set[str] = set()
        self._code_levels = 0  # functions and classes around the visited value
        self._completed: dict[int, object] = {}  # values whose text has what they hold beside, by id

    def text(self, value: object) -> str:
        if isinstance(value, (str, bytes, bytearray)) and type(value) in _TEXTS and len(value) > _TEXT_SIZE:
            content = value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value
            return f"{type(value).__name__} {len(value)} {hashlib.blake2b(content, digest_size=16).hexdigest()}"
        is_code = isinstance(value, (types.FunctionType, type))
        self._code_levels += is_code
        try:
            return super().text(value)
        finally:
            self._code_levels -= is_code

    def texts(self, values: Iterable[object]) -> str:
        left = iter(values)
        pieces = iter(lambda: list(itertools.islice(left, _PIECE)), [])
        return f"[{', '.join(map(self._piece, pieces))}]"

    def _piece(self, values: list[object]) -> str:
        if len(values) < _FEW:
            return ", ".join(map(self.text, values))
        plain = plain_bytes(values)
        content = ", ".join(map(self.text, values)).encode("utf-8", "surrogatepass") if plain is None else plain
        return f"{len(values)} {plain is None} {hashlib.blake2b(content, digest_size=16).hexdigest()}"

    def _sibling(self) -> Walk:
        walk = _Key(self.package, with_state=self.with_state, depth=self._depth)
        walk.hidden, walk._code_levels = self.hidden, self._code_levels
        return walk

    def follows(self, thing: object) -> bool:
        return super().follows(thing) or (package_of(thing) == "__main__" and not self.is_full)

    def may_hide_state(self, value: object) -> None:
        if not self._code_levels and package_of(value) not in _VALUELESS:
            self.hidden.add(type(value).__qualname__)

    def own_text(self, thing: object) -> str | None:
        kind = type(thing)
        parts: object = getattr(kind, "_identity_parts", None)
        if callable(parts) and any(package_of(base) == "penstock" for base in kind.__mro__):
            return f"{self.text(kind)} {self.text(parts(thing))} {_of_added(thing, self)}"
        if package_of(kind) == "datasets" and isinstance(own := getattr(thing, "_fingerprint", None), str):
            return f"{full_name(kind)} {own}"
        if isinstance(thing, types.MappingProxyType):
            return f"{full_name(kind)} {self.text(dict(cast('Mapping[object, object]', thing)))}"
        if callable(getattr(kind, "fingerprint", None)) or kind is _CACHED:
            return super().own_text(thing)
        return None

    def array_digest(self, array: NDArray[Any]) -> str:
        mapped = find_mapped(array)
        if mapped is not None:
            return self.text(mapped)
        if array.ndim == 0 or array.nbytes == 0:
            return array.tobytes().hex()
        digest = hashlib.blake2b(digest_size=16)
        rows = max(1, len(array) if array.flags.c_contiguous else _COPIED_BYTES * len(array) // array.nbytes)
        for begin in range(0, len(array), rows):
            digest.update(np.ascontiguousarray(array[begin : begin + rows]).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()

    def tensor(self, thing: object) -> str:
        detach: Callable[[], Any] = getattr(thing, "detach", lambda: thing)
        with contextlib.suppress(Exception):  # it is on a device, or has a dtype that NumPy lacks
            return super().tensor(detach())
        with contextlib.suppress(Exception):  # it is none of torch's, or sparse; a pickle of torch has addresses
            flat = detach().cpu().contiguous().reshape(-1)
            values = super().tensor(flat.view(sys.modules["torch"].uint8))
            return f"{flat.dtype} {tuple(cast('Any', thing).shape)} {values}"
        return self.content(thing)

    def beside(self, value: object) -> str:
        kind = type(value)
        if kind in _WHOLE or not issubclass(kind, _PARTLY) or id(value) in self._completed:
            return ""
        self._completed[id(value)] = value
        is_followed = self.follows(value) and package_of(value) not in _LIBRARIES
        with contextlib.suppress(Exception):  # the user's class may raise anything
            return "".join(f" {self.state(value, each)}" for each in _held_beside(value, is_followed=is_followed))
        self.may_hide_state(value)
        return ""

    def has_member(self, name: str, member: object) -> bool:
        return super().has_member(name, member) or package_of(member) == "functools"  # `__call__ = partialmethod(…)`

    def fields(self, thing: object) -> str:
        text = super().fields(thing)
        more = {} if package_of(thing) == "penstock" else _more_attributes(thing)
        return f"{text} {members_text(more, self, type(thing))}" if more else text

    def standard(self, thing: object) -> str:
        if defines_pickle(type(thing)) or package_of(thing) in _OF_PROCESS:
            return super().standard(thing)
        with contextlib.suppress(Exception):  # it can't be pickled
            content = self.content(thing)
            return "" if content == self.text(None) else content
        return ""

    def content(self, thing: object) -> str:
        shown = _shown(thing)
        if shown is not None:
            return self.text(shown)
        if defines_pickle(type(thing)):
            return self.text(thing.__reduce_ex__(4))
        # This raises TypeError for an object of a class in C with a state of its own.
        _, (_, *made_with), state, *_ = cast("tuple[Any, ...]", object.__reduce_ex__(thing, 4))
        text = self.state(thing, state)
        return f"{text} {self.text(tuple(made_with))}" if made_with else text


def _held_beside(value: object, *, is_followed: bool) -> Iterator[object]:
    """Yield what a function, or an object of a subclass of a container or array, holds beside its code or values."""
    attributes: object
    if isinstance(value, types.FunctionType):
        # Attributes of functions that aren't followed may be marks: `import torch` marks a function of `enum`.
        public = [name for name in vars(value) if is_followed and not name.startswith("_")]
        attributes = {name: vars(value)[name] for name in public} or None
    else:
        yield from _settings(value)
        if is_followed:
            yield type(value)
        attributes = None if package_of(value) == "numpy" else value.__getstate__()
    if attributes is not None:
        yield attributes


def _settings(value: object) -> tuple[object, ...]:
    """Return what an object of a subclass of a container or array holds that is neither a value nor an attribute."""
    match value:
        case np.ma.MaskedArray():
            return np.ma.getmaskarray(value), value.fill_value
        case defaultdict():
            return (value.default_factory,)
        case deque() if value.maxlen is not None:
            return (value.maxlen,)
        case _:
            return ()


def _shown(thing: object) -> object:
    """Return what shows the content of an object that can't be pickled; None for others."""
    match thing:
        case struct.Struct():
            return thing.format
        case memoryview():
            return thing.format, thing.shape, thing.tobytes()
        case types.UnionType():
            return thing.__args__
        case _:
            return list(cast("Iterable[object]", thing)) if type(thing) in _VIEWS else None


def _more_attributes(thing: object) -> dict[str, object]:
    """Return the attributes of an object of a dataclass that its comparison leaves out, except cached properties."""
    state: Any = object.__getstate__(thing)
    parts = cast("tuple[dict[str, object] | None, ...]", state if isinstance(state, tuple) else (state,))
    held = {name: value for part in parts for name, value in (part or {}).items()}
    compared = {field.name for field in dataclasses.fields(cast("Any", thing)) if field.compare}
    return {
        name: held[name]
        for name in held.keys() - compared
        if not isinstance(inspect.getattr_static(type(thing), name, None), functools.cached_property)
    }


def _of_added(thing: object, walk: Walk) -> str:
    """Return the text of the attributes of an object of Penstock that the code of a user's subclass names."""
    members = [vars(base).values() for base in type(thing).__mro__ if package_of(base) != "penstock"]
    codes = [each.__code__ for each in itertools.chain(*members) if isinstance(each, types.FunctionType)]
    named = frozenset[str]().union(*map(code_names, codes))
    held: dict[str, object] = getattr(thing, "__dict__", {})
    return members_text({name: held[name] for name in named & held.keys()}, walk)
