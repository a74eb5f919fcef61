"""The comparison of a loader's dataset with the one that a state was saved from, by their fingerprints."""

import warnings
from collections.abc import Collection
from typing import Final, Literal

import numpy as np

from penstock._graph import Fingerprint, Map, Node, differing_text, walk
from penstock._state import LoaderState
from penstock.errors import StateError, UsageError

_ALLOWABLE: Final = frozenset({"source", "order"})


def check_allowed(allow: Collection[str]) -> None:
    """Check that `allow` of `Loader.load_state_dict` names parts that may differ.

    Raises:
        UsageError: it names others.
    """
    if isinstance(allow, str):
        raise UsageError(f"allow must be a set of names; got {allow!r}. Pass allow={{{allow!r}}}.")
    unknown = set(allow) - _ALLOWABLE
    if unknown:
        raise UsageError(f"allow takes {sorted(_ALLOWABLE)}; got {sorted(unknown)}")


def compare(node: Node, own: Fingerprint, state: LoaderState, allow: Collection[str]) -> None:
    """Check that a state belongs to a dataset; warn the caller's caller of differences that may be meant.

    Args:
        node: the dataset.
        own: its fingerprint at the state's position.
        state: the state.
        allow: parts of the fingerprint that may differ.

    Raises:
        StateError: another part differs.
    """
    same = {part: state.fingerprint[part] == digest for part, digest in own.parts().items()}
    # Earlier versions saved no details, and some parts have none.
    alike = {part: state.details.get(part, digest) == digest for part, digest in own.details.items()}
    same["order"] = same["order"] and alike.get("order", True)
    differing = [part for part in ("source", "order") if not same[part] and part not in allow]
    if differing:
        part: Literal["source", "order"] = "source" if "source" in differing else "order"
        where = differing_text(node, own.steps, state.steps, part)
        raise StateError(
            f"this state belongs to a dataset with another {' and '.join(differing)}{where}. Load it into the "
            f"dataset it was saved from, or accept the difference with allow={set(differing)!r}."
        )
    where = differing_text(node, own.steps, state.steps, "functions")
    if not same["functions"]:
        warnings.warn(f"the dataset's functions differ from those of the state{where}", stacklevel=3)
    elif not alike.get("functions", True):
        warnings.warn(
            "the dataset's functions hold other values than those of the state, in closures, defaults, attributes "
            f"or globals, or in the function that opens a stream{where}",
            stacklevel=3,
        )
    if same["source"] and not alike.get("source", True):
        warnings.warn("the records of the dataset's source differ from those of the state", stacklevel=3)
    if state.numpy != np.__version__ and any(isinstance(s, Map) and s.form == "generator" for s in walk(node)):
        warnings.warn(
            f"the state was saved under NumPy {state.numpy}, this is {np.__version__}; distributions may differ",
            stacklevel=3,
        )
