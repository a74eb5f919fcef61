"""The public names of Penstock, as Python finds them: every module, function, class and member without underscore.

Run as a module it prints them, one a line; `scripts/public-names` keeps that output.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import penstock

COMMITTED = Path(__file__).with_suffix(".txt")


def public_modules() -> Iterator[ModuleType]:
    """Import each public module and yield it; one whose framework isn't installed is left out."""
    yield penstock
    for found in pkgutil.walk_packages(penstock.__path__, "penstock."):
        if any(part.startswith("_") for part in found.name.split(".")):
            continue
        try:
            yield importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] == "penstock":
                raise


def public_objects() -> Iterator[tuple[str, object]]:
    """Yield (dotted name, object) for each object of the public modules, without its members."""
    for module in public_modules():
        names: list[str] | None = getattr(module, "__all__", None)
        if names is None:
            names = [name for name, value in vars(module).items() if _is_own(module, name, value)]
        for name in sorted(names):
            value: object = getattr(module, name)
            if not inspect.ismodule(value):
                yield f"{module.__name__}.{name}", value


def public_members(name: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield (dotted name, member) for what a class and its internal bases define: methods, properties, fields."""
    if inspect.isclass(value):
        own: dict[str, object] = {}
        for part in reversed([value, *filter(_is_internal, value.__mro__[1:])]):
            own |= {**dict.fromkeys(inspect.get_annotations(part)), **vars(part)}
        for member in sorted(own):
            if not member.startswith("_"):
                yield f"{name}.{member}", own[member]


def public_names() -> list[str]:
    """Return all public names, sorted; members are listed where their class is named first."""
    names = [module.__name__ for module in public_modules()]
    seen: list[object] = []
    for name, value in sorted(public_objects(), key=lambda entry: (entry[0].count("."), entry[0])):
        names.append(name)
        if not any(value is other for other in seen):
            seen.append(value)
            names += [member for member, _ in public_members(name, value)]
    return sorted(names)


def _is_internal(base: type) -> bool:
    """Return whether a class is Penstock's own, and nothing but a part of others."""
    return base.__module__.startswith("penstock.") and not any(
        inspect.isclass(value) and value is base for _, value in public_objects()
    )


def _is_own(module: ModuleType, name: str, value: object) -> bool:
    return not name.startswith("_") and getattr(value, "__module__", None) == module.__name__


if __name__ == "__main__":
    print("\n".join(public_names()))  # noqa: T201 - its output is the list
