"""What must hold of a graph before it can be built on or run; errors name the step by its chain."""

import re
from typing import NoReturn, SupportsIndex

from penstock._graph._code import is_lambda_or_local
from penstock._graph._describe import chain_text, function_name
from penstock._graph._length import is_endless, is_indexable, length
from penstock._graph._nodes import FlatMap, Map, Node, Substitute, parents_of, walk
from penstock._graph._rewrite import varies_by_epoch
from penstock.errors import GraphError, NoLengthError, UsageError

MAX_POSITIONS = 1 << 62
_UNITS = {
    "": 1,
    **{f"{unit}B": 1000**power for power, unit in enumerate("KMGT", 1)},
    **{f"{unit}IB": 1024**power for power, unit in enumerate("KMGT", 1)},
}


def need_indexable(node: Node, verb: str, remedy: str) -> int:
    """Return the node's length, or raise a GraphError that says why `verb` can't stand above it."""
    count = length(node)
    if count is None:
        raise GraphError(
            f"{verb} needs a dataset whose elements have positions, and {_culprit_text(node)} can only be read "
            f"in order. {remedy}"
        )
    return count


def _culprit_text(node: Node) -> str:
    """Return the lowest step of an ordered node that can only be read in order, with the part of a joint that it is in.

    A joint that orders by itself, as one after the other, is the culprit only where no part is.
    """
    parents = parents_of(node)
    for number, parent in enumerate(parents):
        if not is_indexable(parent):
            text = _culprit_text(parent)
            names: tuple[str, ...] = getattr(node, "names", ())
            return f"{text} (part {names[number]!r} of {chain_text(node)})" if number < len(names) else text
    return chain_text(node)


def finite_length(node: Node) -> int:
    """Return the node's length for `len()`, or raise a NoLengthError that says why there is none."""
    count = length(node)
    if count is None:
        raise NoLengthError(f"{_culprit_text(node)} can only be read in order; reading tells how many elements it has")
    if is_endless(node):
        raise NoLengthError(f"{chain_text(node)} repeats without end and has no length. Use take(n) first.")
    return count


def need_finite(node: Node, verb: str) -> int:
    """Return the node's length, or raise a GraphError where it repeats without end or can only be read in order."""
    count = need_indexable(node, verb, f"Use {verb} before it.")
    if is_endless(node):
        raise GraphError(f"{verb} needs a dataset with an end, and {chain_text(node)} has none. Use take(n) first.")
    return count


def need_fixed_order(node: Node, verb: str) -> None:
    """Raise a GraphError where the node's order changes with the epoch, and so would what `verb` goes by position."""
    if varies_by_epoch(node):
        raise GraphError(
            f"{verb} goes by the position of each element, and {chain_text(node)} has another order in every epoch. "
            f"Use {verb} first and shuffle after it, or fix the order with epoch(0)."
        )


def need_end(node: Node, given: str, *, counts_from_end: bool) -> None:
    """Raise a GraphError if positions are counted from the end of a node that has none."""
    if counts_from_end and is_endless(node):
        raise GraphError(
            f"{chain_text(node)} repeats without end, so positions can't be counted from there; got {given}. "
            "Count from the start to a given stop, or use take(n) first."
        )


def need_count(name: str, value: object, least: int = 0) -> int:
    """Return `value` if it is a whole number of at least `least`, else raise a UsageError that names it."""
    number = need_integer(name, value)
    if not least <= number <= MAX_POSITIONS:
        raise UsageError(f"{name} must be at least {least} and at most 2**62; got {name}={number}")
    return number


def need_integer(name: str, value: object) -> int:
    """Return `value` if it is a whole number, else raise a UsageError that names it."""
    # bool is an int to Python, but never meant as one.
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise UsageError(f"{name} must be a whole number; got {name}={value!r}")
    return value.__index__()


def need_function(verb: str, function: object) -> None:
    """Raise a UsageError if what was given for a step can't be called."""
    if not callable(function):
        raise UsageError(f"{verb} takes a function; got {function!r}")


def need_name(name: object) -> str:
    """Return `name` if it can name a step, else raise a UsageError."""
    if not isinstance(name, str) or not name:
        raise UsageError(f"name must be a str of at least one character; got name={name!r}")
    return name


def verify_step(step: Map) -> None:
    """Raise if the step's `on_error` is none that is known or can't work over its parent."""
    if isinstance(step.on_error, Substitute):
        need_count("attempts", step.on_error.attempts, 1)
        if step.on_error.budget is not None:
            need_count("budget", step.on_error.budget)
        need_indexable(step.parent, "on_error=Substitute(…)", 'Use on_error="skip" there.')
    elif step.on_error not in ("raise", "skip"):
        raise UsageError(f'on_error must be "raise", "skip" or ps.Substitute(…); got on_error={step.on_error!r}')


def refuse(node: Node, message: str) -> NoReturn:
    """Raise a GraphError about the whole chain."""
    raise GraphError(f"{chain_text(node)}: {message}")


def verify_cached(node: Node, *, on_disk: bool, version: str | None) -> None:
    """Raise a GraphError if a node's elements can't be kept: they differ from epoch to epoch, or nothing names them."""
    for step in walk(node):
        if isinstance(step, Map) and step.form != "none":
            refuse(
                node,
                f"cache() would give every epoch the random numbers of the first in step {step.name!r}. Put it before.",
            )
        function = step.function if isinstance(step, Map | FlatMap) else None
        if on_disk and version is None and function is not None and is_lambda_or_local(function):
            refuse(
                node,
                f"a cache on disk must tell one version of step {function_name(function)!r} from another, and it is a "
                'lambda or a local function. Define it in a module, or say version="1" and change that with the code.',
            )


def parse_bytes(name: str, size: object) -> int:
    """Return a number of bytes from a number or text such as "2GiB", or raise a UsageError that names it."""
    if isinstance(size, int) and not isinstance(size, bool) and size > 0:
        return size
    if isinstance(size, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]I?B)?\s*", size.upper())
        if match and float(match[1]) > 0:
            return int(float(match[1]) * _UNITS[match[2] or ""])
    raise UsageError(f'{name} must be a number of bytes above 0, or text such as "2GiB"; got {name}={size!r}')
