"""The command that the package installs, and a terminal for it."""

import io
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points

(_ENTRY,) = entry_points(group="console_scripts", name="penstock")
main: Callable[[Sequence[str]], int] = _ENTRY.load()


class Screen(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        """Return True."""
        return True
