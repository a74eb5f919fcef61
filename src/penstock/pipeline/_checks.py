"""Checks of a pipeline's arguments; each raises a UsageError that states the rule, the value and the remedy."""

from fractions import Fraction
from typing import cast

from penstock.errors import UsageError


def check_count(what: str, count: object) -> None:
    """Check that an argument is an integer of at least 1.

    Raises:
        UsageError: it isn't.
    """
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise UsageError(f"{what} must be an integer of at least 1; got {count!r:.200}. Pass 1 or more")


def check_name(name: object) -> None:
    """Check that an argument is a stage's name, or None for the default name.

    Raises:
        UsageError: it isn't.
    """
    if name is not None and (not isinstance(name, str) or not name or "/" in name):
        raise UsageError(
            f"a stage's name is text without '/', which separates a path from its stages; got name={name!r:.200}. "
            "Use another character, or omit name"
        )


def check_choice(what: str, given: object, choices: tuple[str, ...]) -> None:
    """Check that an argument is one of the choices.

    Raises:
        UsageError: it isn't.
    """
    if given not in choices:
        raise UsageError(f"{what} is one of {', '.join(map(repr, choices))}; got {given!r:.200}. Choose one of these")


def check_max_failures(max_failures: object) -> None:
    """Check that an argument is a count of failures, -1 for any number, or a fraction of the items.

    Raises:
        UsageError: it isn't.
    """
    match max_failures:
        case bool():
            pass
        case int() if max_failures >= -1:
            return
        case Fraction() if 0 <= max_failures <= 1:
            return
        case _:
            pass
    raise UsageError(
        f"max_failures is an int of at least 0, -1 for any number, or a Fraction in [0, 1]; got {max_failures!r:.200}. "
        "Write one failure in a hundred as Fraction(1, 100)"
    )


def is_tuple_of(given: object, kind: type) -> bool:
    """Return whether an argument is a tuple whose members are all instances of `kind`."""
    return isinstance(given, tuple) and all(isinstance(each, kind) for each in cast("tuple[object, ...]", given))
