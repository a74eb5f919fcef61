"""Calls that are refused, and the check of their messages: each has the rule, the value and the remedy."""

import re
from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from penstock.errors import PenstockError

Case: TypeAlias = tuple[Callable[[], object], type[PenstockError], tuple[str, ...]]


def case(call: Callable[[], object], kind: type[PenstockError], *words: str) -> Case:
    """Return a call, the error that it raises, and words of the message."""
    return call, kind, words


def anything(value: Any) -> Any:
    """Return a value that the type checkers would refuse, too."""
    return value


def check_message(case: Case) -> None:
    """Fail unless the call raises an error of exactly its class, whose message has the words, and no gap in it."""
    call, kind, words = case
    with pytest.raises(PenstockError) as caught:
        call()
    assert type(caught.value) is kind
    message = str(caught.value)
    for part in words:
        assert part in message
    assert not re.search(r"  |\.\.|np\.(int|float)", message.replace("..,", ""))
