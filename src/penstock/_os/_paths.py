"""The paths that users give, which are those of files and folders of this machine."""

import os
import re
from typing import Final, cast

from penstock.errors import UsageError

_ADDRESS: Final = re.compile(r".*://|[A-Za-z][\w+.-]+:/", re.DOTALL)  # a `Path` keeps one slash of an address


def local_path(path: str | os.PathLike[str], argument: str = "path") -> str:
    """Return the absolute form of a path.

    Args:
        path: as the user gave it.
        argument: the name of the argument, for messages.

    Raises:
        UsageError: it is no path, a URL, or begins with `~`, which would be the name of a folder.
    """
    known = cast("object", path)
    given = os.fsdecode(path) if isinstance(known, (str, bytes, os.PathLike)) else ""
    rule = f"{argument} must be the path of a local file or folder; got {path!r}."
    if _ADDRESS.match(given):
        raise UsageError(
            f"{rule} Copy or mount what is there. A source with an async read reads from a server, as "
            "docs/how-to/read-from-a-server.md shows. Of file:// pass the path alone, and write ./ before a name that "
            "ends with a colon."
        )
    if not given or "\0" in given:
        raise UsageError(f"{rule} Pass a str of at least one character, none of them null, or a pathlib.Path.")
    if given != os.path.expanduser(given):
        raise UsageError(f"{rule} ~ isn't expanded: pass os.path.expanduser(path).")
    return os.path.abspath(given)
