"""`penstock index`: the indexes of files, written beside them for all machines that read these."""

import argparse
import sys
from collections.abc import Callable

from penstock._cli.terminal import ENDED
from penstock.sources import as_source, indexing_beside

_DESCRIPTION = """\
Finds the records of files, and writes their places to a folder .penstock beside them. Sources
of these files, on any machine, then read no file to find its records. Without the command, each
machine does so at the first use, and keeps the places in its own cache.

A file that changes later is indexed again by the sources that read it.
"""


def add_parser(add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add this command's parser; `add` makes it."""
    parser = add(
        "index",
        help="find the records of files once for all machines",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("paths", metavar="PATH", nargs="+", help="a file, a glob or a folder, as for ps.read")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command, and return its exit status."""
    for path in arguments.paths:
        with indexing_beside():
            source = as_source(path)
        sys.stdout.write(f"{path}: {source!r}\n")
    return ENDED
