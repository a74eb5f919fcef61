"""Types of arguments that several commands have, for argparse."""

import argparse
from collections.abc import Callable


def whole_number(least: int) -> Callable[[str], int]:
    """Return a type: a whole number that is at least `least`."""

    def parse(text: str) -> int:
        value = int(text) if text.isdecimal() else -1
        if value < least:
            raise argparse.ArgumentTypeError(f"a whole number of at least {least} is needed; got {text!r}")
        return value

    return parse


def one_of(name: str) -> Callable[[str], tuple[int, int]]:
    """Return a type: K/N, which is number K, from 0, of N parts or ranks; `name` is the word for one of them."""

    def parse(text: str) -> tuple[int, int]:
        number, _, count = text.partition("/")
        if not (number.isdecimal() and count.isdecimal() and int(number) < int(count)):
            message = f"{name} K of N, with K from 0 and below N, is needed; got {text!r}"
            raise argparse.ArgumentTypeError(message)
        return int(number), int(count)

    return parse
