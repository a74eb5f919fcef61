"""The modules that a pickle names are found without loading it."""

import collections
import fractions
import functools
import json
import pickle
import statistics
from collections.abc import Callable
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from penstock._processes import modules_of
from tests.profiles import fewer

OBJECTS: dict[str, Callable[..., object]] = {
    "json": json.dumps,
    "fractions": fractions.Fraction,
    "statistics": statistics.median,
    "collections": collections.Counter,
    "functools": functools.lru_cache,
}
names = st.sampled_from(sorted(OBJECTS))
values = st.recursive(
    st.builds(OBJECTS.__getitem__, names) | st.integers() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


def named(value: object) -> set[str]:
    """Return the modules of the functions and classes in a value."""
    if callable(value):
        return {name for name, each in OBJECTS.items() if each is value}
    inner: list[object] = []
    if isinstance(value, dict):
        inner = [*cast("dict[object, object]", value).values()]
    elif isinstance(value, list | tuple):
        inner = [*cast("list[object]", value)]
    return set[str]().union(*map(named, inner))


@fewer()
@given(values, st.sampled_from([4, 5]), st.integers(0, 2))
def test_all_modules_are_found(value: object, protocol: int, depth: int) -> None:
    """Each module of a pickle is found once, also in pickles that it holds as bytes, and no other one."""
    pickled = pickle.dumps(value, protocol)
    for _ in range(depth):
        pickled = pickle.dumps(["bytes", pickled], protocol)
    found = modules_of(pickled)
    assert len(found) == len(set(found))
    assert set(found) == named(value)


def test_the_main_module_is_another_matter() -> None:
    """The main module isn't listed, and neither is anything for bytes that aren't a pickle."""
    assert modules_of(b"c__main__\nrun\n.") == ()
    assert modules_of(b"\x80\x04no pickle") == ()
