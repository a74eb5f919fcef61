"""Checks of verbs' arguments and of the datasets they are called on. Errors show the chain of steps."""

import contextlib
import importlib.util
import itertools
import math
import operator
import re
from typing import NoReturn, SupportsIndex

from penstock._graph._code import is_lambda_or_local
from penstock._graph._describe import chain_text, function_name, verb_text
from penstock._graph._fingerprint import functions_of
from penstock._graph._length import is_endless, is_indexable, length
from penstock._graph._nodes import Filter, Fold, Map, Node, Split, Stream, Substitute, parents_of, walk
from penstock._graph._rewrite import varies_by_epoch
from penstock._signatures import check_takes
from penstock.errors import GraphError, MissingDependencyError, NoLengthError, UsageError

MAX_POSITIONS = 1 << 62
_MOST_STEPS = 200
_UNITS = {
    "": 1,
    **{f"{unit}B": 1000**power for power, unit in enumerate("KMGT", 1)},
    **{f"{unit}IB": 1024**power for power, unit in enumerate("KMGT", 1)},
}


def need_indexable(node: Node, verb: str, remedy: str) -> int:
    """Return the node's length, or raise a GraphError that names the step below `verb` without positions.

    Args:
        node: the node.
        verb: the call that needs positions, for the message.
        remedy: the remedy below a step without positions; a step or a stream may have another one.
    """
    count = length(node)
    if count is None:
        culprit, text = _culprit(node)
        raise GraphError(
            f"{verb} needs a dataset whose elements have positions, and {text} can only be read in order. "
            f"{_positions_remedy(culprit, verb, remedy)}"
        )
    return count


def _culprit(node: Node) -> tuple[Node, str]:
    """Return the lowest step without positions, and the text of it and of the part that it is in.

    A node with several parents is returned only if all of its parts have positions.
    """
    parents = parents_of(node)
    for number, parent in enumerate(parents):
        if not is_indexable(parent):
            culprit, text = _culprit(parent)
            names: tuple[str, ...] = getattr(node, "names", ())
            place = f" (part {names[number]!r} of {chain_text(node)})" if number < len(names) else ""
            return culprit, f"{text}{place}"
    return node, chain_text(node)


def _positions_remedy(culprit: Node, verb: str, remedy: str) -> str:
    """Return the remedy for a verb that needs positions, above a step without them."""
    match culprit:
        case Stream():
            instead = {
                "shuffle()": "Use window_shuffle(n), or make",
                "take()": "Use limit(n), or make",
                "indexing": "Iterate over it, or make",
                "len()": "Count them in a loop, or make",
                "on_error=Substitute(…)": 'Use on_error="skip", or make',
            }
            return f"{instead.get(verb, 'Make')} the dataset of a source with a length and items, by ps.read."
        case Filter():
            return f"{remedy} Or give the filter an index: filter(…, index=path)."
        case Fold(value=value) | Split(value=value) if value.positions_remedy:
            return f"{remedy} {value.positions_remedy}"
        case Map():
            return f"{remedy} Or use on_error=ps.Substitute(), which leaves out no element."
        case _:
            return remedy


def finite_length(node: Node) -> int:
    """Return the node's length for `len()`, or raise a NoLengthError that names the step without one."""
    count = length(node)
    if is_endless(node):
        remedy = "limit(n)" if count is None else "take(n)"
        raise NoLengthError(f"{chain_text(node)} repeats without end and has no length. Use {remedy} first.")
    if count is None:
        culprit, text = _culprit(node)
        raise NoLengthError(
            f"{text} can only be read in order, so its number of elements is known only after reading. "
            f"{_positions_remedy(culprit, 'len()', 'Count them in a loop.')}"
        )
    return count


def need_finite(node: Node, verb: str, remedy: str | None = None) -> int:
    """Return the node's length, or raise a GraphError if it repeats without end or is read in order.

    Args:
        node: the node.
        verb: the call that needs positions and an end, for the message.
        remedy: as in `need_indexable`; None if `verb` can be used below the step without positions.
    """
    count = need_indexable(node, verb, f"Use {verb} before it." if remedy is None else remedy)
    if is_endless(node):
        raise GraphError(f"{verb} needs a dataset with an end, and {chain_text(node)} has none. Use take(n) first.")
    return count


def need_fixed_order(node: Node, verb: str) -> None:
    """Raise a GraphError if the node's order changes with the epoch, since `verb` relies on positions."""
    if varies_by_epoch(node):
        raise GraphError(
            f"{verb} relies on the positions of elements, and {chain_text(node)} has another order in every epoch. "
            f"Use {verb} first and shuffle after it, or fix the order by reindex(FixedOrder(Shuffle(n, seed))), of "
            "penstock.sampling, in place of shuffle(). epoch(0) fixes random steps, too, also those above it."
        )


def need_end(node: Node, given: str, *, counts_from_end: bool) -> None:
    """Raise a GraphError if positions are counted from the end of a node without end."""
    if counts_from_end and is_endless(node):
        raise GraphError(
            f"{chain_text(node)} repeats without end, so positions can't be counted from there; got {given}. "
            "Count from the start to a given stop, or use take(n) first."
        )


def check_depth(node: Node) -> None:
    """Raise a GraphError if too many steps are one above the other.

    Python's limit of recursion is 1,000 calls. Pickle needs three for each step, loaders up to four, and the user's
    program has some of its own.
    """
    level: tuple[Node, ...] = (node,)
    for _ in range(_MOST_STEPS):
        below = itertools.chain.from_iterable(map(parents_of, level))
        level = tuple({id(each): each for each in below}.values()) if len(level) > 1 else tuple(below)
        if not level:
            return
    verb = verb_text(node) or "this step"
    raise GraphError(
        f"at most {_MOST_STEPS} steps may be one above the other, from a source up; {verb} is number "
        f"{_MOST_STEPS + 1}. Join all parts by one call, such as ps.concatenate(parts), and call several functions in "
        "one map."
    )


def need_reach(node: Node, given: str, stop: int) -> None:
    """Raise a GraphError if a node without end has too few passes for positions below `stop`."""
    count = length(node)
    if count and count < stop and is_endless(node):
        raise GraphError(_reach_text(node, count, given))


def position_text(node: Node, count: int, position: int) -> str:
    """Return why a node with positions below `count` has no such position."""
    if is_endless(node):
        return _reach_text(node, count, f"[{position}]")
    return f"position must be in [{-count}, {count}); got {position}"


def _reach_text(node: Node, count: int, given: str) -> str:
    return (
        f"{chain_text(node)} has the positions below {count}, since repeat() without end makes at most 2**31 "
        f"passes in an epoch; got {given}. Repeat a short dataset twice, as in repeat(1000).repeat()."
    )


def need_count(name: str, value: object, least: int = 0, remedy: str = "") -> int:
    """Return `value` if it is a whole number of at least `least`, else raise a UsageError that names it."""
    number = need_integer(name, value)
    if not least <= number <= MAX_POSITIONS:
        text = f"{name} must be at least {least} and at most 2**62; got {name}={number}"
        raise UsageError(f"{text}. {remedy}" if remedy else text)
    return number


def need_integer(name: str, value: object) -> int:
    """Return `value` if it is a whole number, else raise a UsageError that names it."""
    if type(value) is int:
        return value
    # A bool is an int in Python, and as an argument always a mistake.
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        with contextlib.suppress(TypeError):  # an array has this method, too, which only works for a single number
            return operator.index(value)
    raise UsageError(f"{name} must be a whole number; got {name}={value!r}")


def need_function(verb: str, function: object, *arguments: str, remedy: str = "") -> None:
    """Raise a UsageError if the argument for a function can't be called, or certainly not with these arguments.

    Args:
        verb: the method that takes the function.
        function: the argument.
        arguments: what the function is called with; nothing to check no call.
        remedy: for a function that takes others.
    """
    if not callable(function):
        raise UsageError(f"{verb} takes a function; got {function!r}")
    if arguments:
        bind = "Bind other arguments with functools.partial"
        check_takes(function, arguments, f"the function of {verb}", f"{remedy}. {bind}" if remedy else bind)


def need_jax() -> None:
    """Raise a MissingDependencyError where JAX isn't installed."""
    if importlib.util.find_spec("jax") is None:
        raise MissingDependencyError("JAX", extra="jax")


def need_name(name: object) -> str:
    """Return `name` if it can name a step, else raise a UsageError."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"name must be a str of at least one character; got name={name!r}")
    return name


def verify_step(step: Map) -> None:
    """Raise a UsageError for an unknown `on_error`, a GraphError for one that needs positions and has none."""
    if isinstance(step.on_error, Substitute):
        need_count("attempts", step.on_error.attempts, 1)
        if step.on_error.budget is not None:
            need_count("budget", step.on_error.budget)
        need_indexable(step.parent, "on_error=Substitute(…)", 'Use on_error="skip" there.')
    elif step.on_error not in ("raise", "skip"):
        raise UsageError(f'on_error must be "raise", "skip" or ps.Substitute(…); got on_error={step.on_error!r}')


def refuse(node: Node, message: str) -> NoReturn:
    """Raise a GraphError with the chain of steps and a message."""
    raise GraphError(f"{chain_text(node)}: {message}")


def verify_cached(node: Node, *, on_disk: bool, version: object) -> None:
    """Raise an error if elements can't be cached: they differ by epoch, or their functions have no name."""
    if version is not None and not isinstance(version, str):
        raise UsageError(f'version must be a str; got version={version!r}. Pass one such as version="1".')
    for step in walk(node):
        if isinstance(step, Map) and step.form != "none":
            refuse(
                node,
                f"cache() would repeat the random numbers of step {step.name!r} in every epoch. Put it before.",
            )
        for function in functions_of(step) if isinstance(step, Map | Split) else ():
            if on_disk and version is None and is_lambda_or_local(function):
                refuse(
                    node,
                    f"a cache on disk must distinguish versions of step {function_name(function)!r}, which is a lambda "
                    'or a local function. Define it in a module, or pass version="1" and change that with the code.',
                )


def parse_bytes(name: str, size: object) -> int:
    """Return a number of bytes, given a number or text such as "2GiB", or raise a UsageError that names it."""
    number: float = 0
    if isinstance(size, SupportsIndex):
        with contextlib.suppress(UsageError):
            number = need_integer(name, size)
    elif isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?B)?\s*", size.upper())
        number = float(match[1]) * _UNITS[match[2] or ""] if match else 0
    if 0 < number < math.inf:
        return int(number)
    raise UsageError(f'{name} must be a number of bytes above 0, or text such as "2GiB"; got {name}={size!r}')
