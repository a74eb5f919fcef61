"""The state of an iterable: the methods that save it and load it.

Three conventions are supported: `get_state` and `set_state`; `state_dict` and `load_state_dict`, as in torchdata and
Hugging Face datasets; and those of MosaicML Streaming, whose `state_dict` takes the number of samples read.

Guarantees:
  - A state is saved only within a pass, after its first element. Until then many iterables, such as those whose
    `__iter__` is a generator, still have the state of the end of the previous pass.
  - A new pass begins at the beginning, even if Penstock has resumed an earlier pass of the same object. Penstock
    doesn't change a state that the user has loaded into an iterable.
  - An iterable with `get_state` and `set_state` may continue a pass that was left, as an iterator does. It then begins
    each pass at the state that it had before the first one. Its states show whether it continues: the state after a
    pass's first element is that after the first element of a pass from the state before. This is examined once, and
    only if the state after a first element isn't that of the first pass, so other iterables are read once.
"""

import functools
import inspect
import json
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from penstock._caught import Caught
from penstock._only_next import only_next

_STREAMING_ARGUMENTS: Final = {"num_samples", "from_beginning"}
_HUGGING_FACE: Final = "datasets.iterable_dataset"
_SHUFFLE_BUFFER: Final = "BufferShuffledExamplesIterable"

_resumed: Final["weakref.WeakSet[Any]"] = weakref.WeakSet()
"""The iterables into which Penstock has loaded a state; some apply it to later passes, too."""


_NO_ELEMENT: Final = object()


@dataclass(slots=True)
class _Beginning:
    """The beginning of an iterable with `get_state`.

    Attributes:
        state: the state before the first pass, as JSON text.
        after_first: the state after the first element of a pass that began there; None until there was one.
        continues: whether `__iter__` continues a pass that was left; None if that isn't known.
    """

    state: str
    after_first: str | None = None
    continues: bool | None = None


_beginnings: Final["weakref.WeakKeyDictionary[Any, _Beginning]"] = weakref.WeakKeyDictionary()


class StateMethods(NamedTuple):
    """The functions that save and load the state of an iterable or an iterator."""

    save: Callable[[int], Any]
    """Returns the state; its argument is the number of elements that this pass has given since it began or resumed."""
    load: Callable[[Any], object]
    """Makes the next pass, or this iterator, continue from a state."""


def state_methods(target: object) -> StateMethods | None:
    """Return the functions that save and load an object's state; None if it has none, or resuming loses elements."""
    made: Any = target
    if _has_both(target, "get_state", "set_state"):
        return StateMethods(_without_count(made.get_state), made.set_state)
    if has_state_dict(target):
        return StateMethods(_without_count(made.state_dict), made.load_state_dict)
    if _is_streaming(target):
        return StateMethods(functools.partial(made.state_dict, from_beginning=False), made.load_state_dict)
    return None


def _without_count(save: Callable[[], Any]) -> Callable[[int], Any]:
    def state(given: int) -> object:
        del given
        return save()

    return state


def has_state_dict(target: object) -> bool:
    """Return whether an object has `state_dict()` and `load_state_dict`, and a resume with them loses no element."""
    made: Any = target
    return (
        _has_both(target, "state_dict", "load_state_dict")
        and not _needed_arguments(made.state_dict)
        and not forgets(target)
    )


def _is_streaming(target: object) -> bool:
    made: Any = target
    return (
        _has_both(target, "state_dict", "load_state_dict")
        and _needed_arguments(made.state_dict) == _STREAMING_ARGUMENTS
    )


def _has_both(target: object, save: str, load: str) -> bool:
    return callable(getattr(target, save, None)) and callable(getattr(target, load, None))


def begin_pass(iterable: object, epoch: int, state: object = None) -> None:
    """Make the next pass over an iterable begin at the beginning, or at a state.

    Args:
        iterable: any iterable; if it has no state, only its `set_epoch` is called, if it has one.
        epoch: the epoch of the pass.
        state: the result of the iterable's `StateMethods.save` in a pass of this epoch; None for the beginning.
    """
    made: Any = iterable
    if hasattr(made, "set_epoch"):
        made.set_epoch(epoch)
    methods = state_methods(made)
    if methods is None:
        return
    if _is_streaming(made) and hasattr(made, "next_epoch"):
        made.next_epoch = epoch  # the iterable ignores states of earlier epochs, and counts passes itself
    _beginning_of(made, methods)  # before anything is loaded
    if state is not None:
        methods.load(state)
        _remember(made)
    elif _was_resumed(made):
        _forget_state(made, methods, epoch)


def from_beginning(iterable: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator over an iterable from its beginning; call `begin_pass` before."""
    methods = state_methods(iterable)
    beginning = None if methods is None else _beginning_of(iterable, methods)
    return iter(iterable) if methods is None or beginning is None else _examined(iterable, methods, beginning)


def _examined(iterable: Iterable[Any], methods: StateMethods, beginning: _Beginning) -> Generator[Any]:
    """Yield the elements of a pass that begins where the first one did, unless the iterable's passes differ."""
    if beginning.continues:
        methods.load(json.loads(beginning.state))
    before = _as_text(methods)
    iterator = iter(iterable)
    first = next(iterator, _NO_ELEMENT)
    after = _as_text(methods)
    if before == beginning.state:
        beginning.after_first = after
    elif beginning.continues is None and after != beginning.after_first and before is not None and after is not None:
        iterator = iter(())  # a generator that is dropped may run code, so before a state is loaded
        beginning.continues = _after_first(iterable, methods, before) == after
        methods.load(json.loads(beginning.state if beginning.continues else after))
        if beginning.continues:
            iterator = iter(iterable)
            first = next(iterator, _NO_ELEMENT)
        elif first is not _NO_ELEMENT:
            iterator = iter(iterable)
    if first is not _NO_ELEMENT:
        yield first
        yield from only_next(iterator)


def _after_first(iterable: Iterable[Any], methods: StateMethods, before: str) -> str | None:
    """Return the state after the first element from a state on."""
    methods.load(json.loads(before))
    next(iter(iterable), _NO_ELEMENT)
    return _as_text(methods)


def _beginning_of(iterable: object, methods: StateMethods) -> _Beginning | None:
    """Return the beginning of an iterable, noted at the first call; None if no state has to be noted, or none can."""
    if not _has_both(iterable, "get_state", "set_state"):
        return None
    try:
        found = _beginnings.get(iterable)
        if found is None and (state := _as_text(methods)) is not None:
            found = _beginnings[iterable] = _Beginning(state)
    except TypeError:  # it can't be weakly referenced, or hashed
        return None
    return found


def _as_text(methods: StateMethods) -> str | None:
    """Return the state as JSON text; None if there is none, as in some iterables outside of a pass."""
    with Caught(Exception):
        return json.dumps(methods.save(0))
    return None


def forget_state(iterable: object) -> None:
    """Make the next pass over an iterable begin at the beginning, if Penstock has resumed a pass of it before."""
    methods = state_methods(iterable)
    if methods is not None and _was_resumed(iterable):
        _forget_state(iterable, methods, 0)


def load_state(iterable: object, state: object) -> None:
    """Make the next pass over an iterable with `state_dict` begin at a state."""
    made: Any = iterable
    made.load_state_dict(state)
    _remember(made)


def forgets(iterable: object) -> bool:
    """Return whether a resume from an iterable's state loses the elements of a shuffle buffer.

    The state of a Hugging Face `IterableDataset` doesn't include them, as its documentation says.
    """
    if type(iterable).__module__ != _HUGGING_FACE:
        return False
    steps: list[Any] = [getattr(iterable, "_ex_iterable", None)]
    while steps:
        step = steps.pop()
        if type(step).__name__ == _SHUFFLE_BUFFER and getattr(step, "buffer_size", 0) > 1:
            return True
        below = getattr(step, "ex_iterable", None)
        steps += [*([] if below is None else [below]), *getattr(step, "ex_iterables", ())]
    return False


def _needed_arguments(function: Callable[..., Any]) -> set[str]:
    """Return the names of a function's required arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions of compiled modules have no signature
        return set()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {each.name for each in parameters if each.default is each.empty and each.kind not in optional}


def _remember(iterable: object) -> None:
    try:
        _resumed.add(iterable)
    except TypeError:  # it can't be weakly referenced, or hashed
        return


def _was_resumed(iterable: object) -> bool:
    try:
        return iterable in _resumed
    except TypeError:
        return False


def _forget_state(iterable: object, methods: StateMethods, epoch: int) -> None:
    """Undo the loading of a state in iterables that apply it to later passes, too; others drop it after use."""
    if type(iterable).__module__ == _HUGGING_FACE:
        methods.load(None)  # until another state is loaded, it begins every pass of that epoch at the state
    elif _is_streaming(iterable):
        state: Mapping[str, Any] = methods.save(0)
        methods.load({**state, "epoch": epoch, "sample_in_epoch": 0})
