"""The command that the package installs."""

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

(_ENTRY,) = entry_points(group="console_scripts", name="penstock")
main: Callable[[Sequence[str]], int] = _ENTRY.load()
