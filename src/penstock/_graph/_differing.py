"""The steps in which a dataset differs from that of a state, for messages, found by a short digest of each step."""

from typing import Final, Literal, TypeAlias

from penstock._graph._describe import verb_text
from penstock._graph._fingerprint import STEP_DIGITS, functions_of, steps_of
from penstock._graph._nodes import Map, Node, chain, parents_of

Part: TypeAlias = Literal["source", "order", "functions"]
_MAX_NAMED: Final = 3


def differing_text(node: Node, own: str, saved: str, part: Part) -> str:
    """Return the steps that differ, as in ": step 2 of 4, shuffle(), differs"; "" if they can't be known.

    Args:
        node: the dataset.
        own: the digests of its steps.
        saved: those of the state; "" in states of earlier versions.
        part: the part of the fingerprint that differs. Steps that don't have it are left out, if others differ.
    """
    steps, ours, theirs = steps_of(node), _split(own), _split(saved)
    if not theirs or ours == theirs:
        return ""
    same = zip(ours, theirs, strict=False)
    first = next((number for number, (one, other) in enumerate(same) if one != other), min(len(ours), len(theirs)))
    if len(ours) == len(theirs):
        changed = [number for number in range(len(ours)) if ours[number] != theirs[number]]
        visible = [number for number in changed if verb_text(steps[number])] or changed
        fitting = [number for number in visible if _has(steps[number], part)] or visible
        named = ", and ".join(_named(steps, number) for number in fitting[:_MAX_NAMED])
        more = f", and {len(fitting) - _MAX_NAMED} more" if len(fitting) > _MAX_NAMED else ""
        return f": {named}{more}, {'differs' if len(fitting) == 1 else 'differ'}"
    if first and ours == theirs[:first] + theirs[len(theirs) - len(ours) + first :]:
        return f": the state's dataset has {_steps(len(theirs) - len(ours))} more after {_named(steps, first - 1)}"
    if first and theirs == ours[:first] + ours[len(ours) - len(theirs) + first :]:
        return f": the state's dataset lacks {_named(steps, first)}"
    return f": they differ from {_named(steps, min(first, len(steps) - 1))}, on"


def _split(digests: str) -> list[str]:
    return [digests[start : start + STEP_DIGITS] for start in range(0, len(digests), STEP_DIGITS)]


def _has(step: Node, part: Part) -> bool:
    """Return whether a step has a part of the fingerprint."""
    is_base = len(chain(step)) == 1
    if part == "functions":
        return bool(functions_of(step)) or len(parents_of(step)) > 1
    return is_base or (part == "order" and not (isinstance(step, Map) and step.on_error != "skip"))


def _named(steps: list[Node], number: int) -> str:
    """Return the place and the text of the verb that made a step; a verb may add steps below its own."""
    verbs = list(map(verb_text, steps))
    verb = next(filter(None, verbs[number:]), "")
    return f"step {sum(map(bool, verbs[:number])) + 1} of {sum(map(bool, verbs))}, {verb}"


def _steps(count: int) -> str:
    return "one step" if count == 1 else f"{count} steps"
